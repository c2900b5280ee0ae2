-- Lets one owner of a database at a time quiesce for jobs on probation: it claims nothing until it has no
-- job left, and then runs the next suspect alone. A quiesce has a time limit; if the owner's jobs have not
-- ended by then, it was in vain, and the suspects may run alongside others from then on.
-- KEYS: the latest quiesce, index of queue lists with probation, then the probation lists that the owner
--       would serve (none: its quiesce has served its purpose, and ends now)
-- ARGV: owner, ms of the first quiesce, how many times as long no owner quiesces afterwards, prefix of
--       histories, seconds to keep a history, most bytes of suspects that the script reads, then the queue
--       list of each probation list
-- Returns: {1 when the owner quiesces, 0 when it may not (any more), -1 when no suspect waits that needs a
--       quiesce; 1 where the next suspect of some list may run alongside others}. If suspects are large, it
--       reads those of some lists, of other lists first each time; the suspects of the others wait
-- Crash: the quiesce ends at its time limit, and the pause after it counts from there.
local latest, on_probation = KEYS[1], KEYS[2]
local owner, first, work = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])
local histories, window, room = ARGV[4], tonumber(ARGV[5]), tonumber(ARGV[6])
local lists = #KEYS - 2
local MOST_FREED = 100  -- suspects, of all lists, that one call lets run alongside others
local now = now()
local noted = read_note('hash', 'HMGET', latest, 'owner', 'since', 'until', 'next', 'serves')
read_note('set', 'SISMEMBER', on_probation, '')
delete_foreign()
-- If the server's clock was set back, the latest quiesce says nothing: its times are in the future.
if now < counter(noted[2]) then noted = {} end
local since, ends = counter(noted[2]), counter(noted[3])
-- The pause after a quiesce (ms). It counts as a second at least, since owners call once a second.
local function pause_after(from, to) return work * math.max(to - from, 1000) end
-- Stores a quiesce: its begin and its end, the length of the next one, and whether it is still needed.
local function store(from, to, length, serves)
  redis.call('DEL', latest)
  redis.call('HSET', latest, 'owner', owner, 'since', from, 'until', to, 'next', length,
    'serves', serves)
  -- An owner that waits for the next one calls every second: by then it has, or none is needed.
  redis.call('PEXPIRE', latest, to - now + 2 * pause_after(from, to))
end
local mine, quiesces = noted[1] == owner, now < ends

-- If this owner's jobs have not ended in time, they may never end, or wait for one of these suspects.
local in_vain = mine and not quiesces and noted[5] == '1' and #KEYS > 2
-- The suspect at a place of a list (1: the next to run), or nil; a key of another type has none.
local function suspect_of(probation, at)
  local payload = redis.pcall('LINDEX', probation, -at)
  if type(payload) ~= 'string' then return end
  room = room - #payload
  return payload
end
-- Lets the next suspects of a list run alongside others.
local function free(probation)
  for at = 1, math.max(1, math.floor(MOST_FREED / lists)) do
    local payload = room > 0 and suspect_of(probation, at)
    if not payload then return end
    local history = histories .. redis.sha1hex(payload)
    redis.pcall('HSET', history, 'quiesced', 1)
    -- If the history had expired, HSET has made one, which would stay for ever.
    if redis.pcall('TTL', history) == -1 then redis.pcall('EXPIRE', history, window) end
  end
end
local function is_free(probation)
  local payload = room > 0 and suspect_of(probation, 1)
  return payload and redis.pcall('HEXISTS', histories .. redis.sha1hex(payload), 'quiesced') == 1
end

local waits, free_waits = false, 0
local offset = lists > 0 and now % lists or 0
for at = 1, lists do
  local i = 3 + (offset + at) % lists
  if redis.call('EXISTS', KEYS[i]) == 0 then
    redis.call('SREM', on_probation, ARGV[i + 4])
  else
    if in_vain then free(KEYS[i]) end
    if is_free(KEYS[i]) then free_waits = 1 else waits = true end
  end
end
if in_vain and free_waits == 1 then redis.pcall('HSET', latest, 'serves', 0) end
if not waits then
  -- A suspect has run alone, in this worker or another: the next quiesce is as short as the first.
  if mine and (quiesces or #KEYS == 2) then store(since, now, first, 0) end
  return {free_waits - 1, free_waits}
end
if mine and quiesces then return {1, free_waits} end
if now < ends + pause_after(since, ends) then return {0, free_waits} end
local length = counter(noted[4])
if length <= 0 then length = first end
store(now, now + length, 2 * length, 1)
return {1, free_waits}
