-- Claims jobs: moves them to the caller's private list, first those in its landing lists, where its
-- blocking reads have put them, then others from the queue lists. The first of them are recorded as
-- running, if the caller starts them at once; the others get a waiting note.
-- KEYS: owners, the flag that some job has a history, the caller's private list, the paused queues, then
--       the queue lists in the order of claiming. The names of the landing lists are made here from theirs:
--       there may be a hundred
-- ARGV: owner, most jobs (at least as many as there are landing lists), most bytes, prefix of histories, length
--       of the prefix of all keys, prefix of the landing lists, fairness width (number of neighbouring lists
--       from which jobs are taken in rotation; 0: only what landed is taken), number of jobs to record as
--       running, number of the first claim, the separator between a queue's name and a priority, the priorities
--       that have a list of their own with spaces between them, then for each list whose landing list has jobs
--       its position in the order of the lists, and the length and the end of the payload that the caller's
--       read has brought (0 and empty: none)
-- Returns: nil when the owner is not registered; or {started, jobs, errors, paused}: how many of the jobs,
--       the first ones, were recorded as running, {list number, payload, mark, ...} in the order of their
--       claims' numbers, {number of a list that could not be read, text, ...}, {number of a list of a paused
--       queue, ...}: nothing was claimed from that list, and what landed from it stays where it is. A
--       payload is 1 if the caller has it from its read. A mark is 0 (has no history) or {recoveries,
--       strikes, requeues, token, steps, stops, first claim}
-- Crash: the jobs are in the private list of a registered owner; some are recorded as running although
--       they have not begun. If the reply is lost, the caller finds them there (`Owner.reconcile`), or the
--       reaper does after its death.
local owners, flag, private, paused = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local FIRST_LIST, FIRST_LANDED = 4, 12  -- keys before the lists; the first argument on what has landed
local owner, most, room = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])
local counters, cut, landing = ARGV[4], tonumber(ARGV[5]) + 1, ARGV[6]
local width, starts, number = tonumber(ARGV[7]), tonumber(ARGV[8]), tonumber(ARGV[9])
local separator, steps = ARGV[10], ARGV[11]
if not redis.call('ZSCORE', owners, owner) then return false end
-- Mostly there is neither, and one question tells.
local either = redis.call('EXISTS', flag, paused)
local counted = either > 0 and redis.call('EXISTS', flag) == 1
local function mark(payload)
  if not counted then return 0 end
  local key = counters .. redis.sha1hex(payload)
  -- A key of another type says as little as none, and the job is on its way.
  local counts = redis.pcall(
    'HMGET', key, 'recoveries', 'strikes', 'requeues', 'token', 'steps', 'stops', 'first_claim')
  return (counts[1] or counts[2] or counts[3] or counts[5]) and counts or 0
end
local function name_of(at) return string.sub(KEYS[at + FIRST_LIST], cut) end
-- The separator may be a part of the queue's name; only with a priority after it, it ends that.
local function queue_of(name)
  for step in string.gmatch(steps, '%S+') do
    local ending = separator .. step
    if #name > #ending and string.sub(name, -#ending) == ending then
      return string.sub(name, 1, -#ending - 1)
    end
  end
  return name
end
local closed, closed_lists = {}, {}  -- numbers of the lists of paused queues, as a set and in order
if either > (counted and 1 or 0) then
  local is_paused = {}
  -- A key of another type pauses nothing.
  for _, queue in ipairs(redis.pcall('HKEYS', paused)) do is_paused[queue] = true end
  for at = 1, #KEYS - FIRST_LIST do
    if is_paused[queue_of(name_of(at))] then
      closed[at], closed_lists[#closed_lists + 1] = true, at
    end
  end
end

local jobs, errors, fields, started = {}, {}, {}, 0
local sources = {}  -- of each job
local with_caller = {}  -- positions in `jobs` of the payloads that are not sent again
local function take(at, source, payload)
  local id = string.format('%.0f:', number + #sources) .. name_of(at)
  fields[#fields + 1], fields[#fields + 2] = id, payload
  -- A job with an ETA does not start at once: neither it nor those behind it are recorded as running.
  -- Celery's JSON is recognised; for any other the caller puts the waiting note back.
  if started < starts and string.find(payload, '"eta": "') then starts = started end
  if started < starts then
    started = started + 1
  else
    fields[#fields + 1], fields[#fields + 2] = 'w' .. id, ''
  end
  local counts = mark(payload)
  sources[#sources + 1] = source
  jobs[#jobs + 1], jobs[#jobs + 2], jobs[#jobs + 3] = at, payload, counts
  if counts ~= 0 and counts[5] then  -- the steps that earlier runs have published
    fields[#fields + 1], fields[#fields + 2] = 's' .. id, counts[5]
  end
  most, room = most - 1, room - #payload
end
-- What is not there is false; what cannot be read is noted, and stays where it is: nil.
local function popped(at, source, ...)
  local answer = redis.pcall('RPOP', source, ...)
  if type(answer) ~= 'table' or not answer.err then return answer end
  -- Before 7.0 a server that refuses all writes, such as a replica, answers this to each list. That is no error
  -- of a list: this raises it.
  redis.call('HDEL', private, '')
  errors[#errors + 1], errors[#errors + 2] = at, answer.err
end

local to_come = (#ARGV - FIRST_LANDED + 1) / 3  -- landing lists that were not claimed from yet
for i = FIRST_LANDED, #ARGV, 3 do
  local at, length, ending = tonumber(ARGV[i]), tonumber(ARGV[i + 1]), ARGV[i + 2]
  local source = landing .. name_of(at)
  to_come = to_come - 1
  -- All that lies there, the oldest first: what an earlier read left without a name comes with it. But room
  -- for one job is left to each list to come: if reads of another channel of this owner have brought jobs
  -- here, too, these could use up `most`, and no later claim would name the lists to come.
  for _, payload in ipairs(not closed[at] and popped(at, source, most - to_come) or {}) do
    take(at, source, payload)
    -- Another one may lie there: what the caller's read had moved was put back meanwhile.
    if length > 0 and #payload == length and string.sub(payload, -#ending) == ending then
      with_caller[#with_caller + 1] = #jobs - 1
    end
  end
end
-- From a list by itself, several at once: as many as have room if all are as large as the largest yet.
local function take_all(at)
  local source, count, largest = KEYS[at + FIRST_LIST], 1, 1
  while most > 0 and room > 0 do
    count = math.min(count, most, math.ceil(room / largest))
    local payloads = popped(at, source, count) or {}
    for _, payload in ipairs(payloads) do
      take(at, source, payload)
      largest = math.max(largest, #payload)
    end
    if #payloads < count then return end
    count = 8
  end
end
-- `width` lists at a time, one job of each in rotation, until all are empty; then the next `width` lists.
for first = 1, #KEYS - FIRST_LIST, math.max(width, 1) do
  local last = math.min(first + width - 1, #KEYS - FIRST_LIST)
  if first == last and not closed[first] then take_all(first) end
  local open = {}
  for at = first, first < last and last or 0 do
    if not closed[at] then open[#open + 1] = at end
  end
  while #open > 0 do
    local left = {}  -- of thousands of lists few have a second job
    for _, at in ipairs(open) do
      local payload = most > 0 and room > 0 and popped(at, KEYS[at + FIRST_LIST])
      if payload then
        take(at, KEYS[at + FIRST_LIST], payload)
        left[#left + 1] = at
      end
    end
    open = left
  end
end
-- Lua hands over no more than 8,000 values at once. What refuses some of these refuses the first.
for first = 1, #fields, 4000 do
  local last = math.min(first + 3999, #fields)
  -- After a removal a server over its memory limit allows this, before 7.0, too.
  local answer = redis.pcall('HSET', private, unpack(fields, first, last))
  if type(answer) == 'table' then
    for i = #sources, 1, -1 do redis.call('RPUSH', sources[i], jobs[3 * i - 1]) end
    return answer
  end
end
for _, position in ipairs(with_caller) do jobs[position] = 1 end
return {started, jobs, errors, closed_lists}
