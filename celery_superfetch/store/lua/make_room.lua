-- Lets one owner of a database at a time quiesce for jobs on probation, for a bounded time. Those that it
-- did so for in vain may run alongside others from then on.
-- KEYS: the latest quiesce, lists with probation, then the probation lists the owner would serve
-- ARGV: owner, ms of the first quiesce, how many times as long nobody quiesces afterwards, prefix of
--       histories, seconds to remember them, bytes of suspects that are enough for one script, then
--       the queue list of each probation list; none: its quiesce lasted until now, and served its end
-- Returns: {1 when the owner quiesces, 0 when it may not (any more), -1 when nothing is on probation;
--       1 where the next suspect of some list may run alongside others}. Where suspects are large it
--       looks at those of some lists, of other ones first each time; the others wait
-- Crash: the quiesce ends when it would have ended; what follows counts from there.
local latest, on_probation = KEYS[1], KEYS[2]
local owner, first, work = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])
local histories, window, room = ARGV[4], tonumber(ARGV[5]), tonumber(ARGV[6])
local lists = #KEYS - 2
local MOST_FREED = 100  -- suspects, of all lists, that one call lets run alongside others
local now = now()
local noted = redis.call('HMGET', latest, 'owner', 'since', 'until', 'next', 'serves')
-- The server's clock was set back: that lets nobody quiesce, nor keeps anybody from it.
if now < tonumber(noted[2] or 0) then noted = {} end
local since, ends = tonumber(noted[2] or 0), tonumber(noted[3] or 0)
-- It counts as a second at least: its owner says only once in a while that it lasts.
local function cost(from, to) return work * math.max(to - from, 1000) end
local function note(from, to, length, serves)
  redis.call('DEL', latest)
  redis.call('HSET', latest, 'owner', owner, 'since', from, 'until', to, 'next', length,
    'serves', serves)
  -- Whoever waits for the next asks every second: by then it was asked for, or is not needed.
  redis.call('PEXPIRE', latest, to - now + 2 * cost(from, to))
end
local mine, quiesces = noted[1] == owner, now < ends

-- Its jobs have not ended in time: they never end, perhaps, or wait for one of these suspects.
local in_vain = mine and not quiesces and noted[5] == '1' and #KEYS > 2
-- A suspect of a list, the next one is the first; what is no list has none.
local function suspect_of(probation, at)
  local payload = redis.pcall('LINDEX', probation, -at)
  if type(payload) ~= 'string' then return end
  room = room - #payload
  return payload
end
local function free(probation)
  for at = 1, math.max(1, math.floor(MOST_FREED / lists)) do
    local payload = room > 0 and suspect_of(probation, at)
    if not payload then return end
    local history = histories .. redis.sha1hex(payload)
    redis.pcall('HSET', history, 'quiesced', 1)
    -- The history may have been over by now: it is not to stay for ever.
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
  -- A suspect had its turn, here or elsewhere.
  if mine and (quiesces or #KEYS == 2) then note(since, now, first, 0) end
  return {free_waits - 1, free_waits}
end
if mine and quiesces then return {1, free_waits} end
if now < ends + cost(since, ends) then return {0, free_waits} end
local length = tonumber(noted[4] or first)
note(now, now + length, 2 * length, 1)
return {1, free_waits}
