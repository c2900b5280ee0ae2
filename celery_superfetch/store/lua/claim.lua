-- Claims jobs: from the public queue lists into the caller's private lists; starts the first of
-- them, where their runners wait for nothing else.
-- KEYS: owners, the flag that some job has counters, the caller's running jobs, the public queue
--       lists in the order of claiming, the caller's facts. The private lists are named here:
--       there may be a hundred, and few are touched
-- ARGV: owner, most jobs, most bytes, prefix of counters, length of the prefix of all keys,
--       prefix of the private lists, lists to take from in turn, number of jobs to start, number
--       of jobs to confirm, then list number, payload and claim id of each of those, then a claim
--       id for each new job to start
-- Returns: nil when the owner is not registered; or {started, jobs} or, where there is more to say,
--       {started, jobs, marks, errors}: the number of jobs that were recorded as running (the first
--       of those confirmed, then of the new ones), {list number, payload, mark, ...}, the mark of
--       each confirmed job, {list number, text, ...}. A mark is -1 (no longer the caller's), 0 (has
--       no counters) or {recoveries, strikes, requeues}
-- Crash: the jobs are in the private lists of a registered owner, and some recorded as running
--       that have not begun. A lost reply is found there by the caller, or by the reaper after
--       its death.
local owners, flag, running, facts = KEYS[1], KEYS[2], KEYS[3], KEYS[#KEYS]
local owner, most, room = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])
local counters, cut, prefix = ARGV[4], tonumber(ARGV[5]) + 1, ARGV[6]
local turn, starts, confirm = tonumber(ARGV[7]), tonumber(ARGV[8]), tonumber(ARGV[9])
-- One question for three, each with its bit. Whose facts are there, and who runs nothing, is not
-- marked reaped: more need not be known where nothing new is taken.
local bits = redis.call('EXISTS', facts, flag, flag, running, running, running, running)
local idle, counted = bits % 2 == 1 and bits < 4, bits % 4 > 1
if not (idle and most == 0 or redis.call('ZSCORE', owners, owner)) then return false end
local function mark(payload)
  if not counted then return 0 end
  local key = counters .. redis.sha1hex(payload)
  -- A key of another type says as little as none, and the job has been claimed.
  local known = redis.pcall('HMGET', key, 'recoveries', 'strikes', 'requeues')
  return (known[1] or known[2] or known[3]) and known or 0
end

local function private_of(at) return prefix .. string.sub(KEYS[at + 3], cut) end

local started = 0
local function start(id, payload)
  if started == starts then return end
  -- One with a time of its own is going to wait (Celery's JSON; another is struck off later). The
  -- digest of a large one keeps everybody waiting for longer than its question does.
  if #payload > 16384 or string.find(payload, '"eta": "', 1, true) then
    starts = started
    return
  end
  -- Refused over the memory limit by a server before 7.0: then it asks when it starts.
  local answer = redis.pcall('HSET', running, id, redis.sha1hex(payload))
  if type(answer) == 'table' then starts = started else started = started + 1 end
end

local marks = {}
for i = 1, confirm do
  local at = 7 + 3 * i
  local payload = ARGV[at + 1]
  local held = redis.call('LPOS', private_of(ARGV[at]), payload)
  marks[i] = held and mark(payload) or -1
  if held then start(ARGV[at + 2], payload) end
end

local jobs, errors, dry = {}, {}, {}
local count, ids = #KEYS - 4, 9 + 3 * confirm
local function take(at)
  local queue, private = KEYS[at + 3], private_of(at)
  -- One command, and no copy of the payload on its way through this script.
  local payload = redis.pcall('LMOVE', queue, private, 'RIGHT', 'LEFT')
  if type(payload) == 'table' and string.find(payload.err, 'OOM') then
    -- Over its memory limit a server before 7.0 refuses what adds, unless a removal came first.
    payload = redis.pcall('LLEN', private)
    if type(payload) == 'number' then payload = redis.pcall('RPOP', queue) end
    if type(payload) == 'string' then redis.call('LPUSH', private, payload) end
  end
  if type(payload) == 'table' then
    errors[#errors + 1] = at
    errors[#errors + 1] = payload.err
    payload = false
  end
  if not payload then
    dry[at] = true
    return false
  end
  jobs[#jobs + 1] = at
  jobs[#jobs + 1] = payload
  jobs[#jobs + 1] = mark(payload)
  start(ARGV[ids + #jobs / 3], payload)
  most, room = most - 1, room - #payload
  return true
end
-- `turn` lists at a time, one job of each in turn, until they are dry; then the next lot.
for first = 1, count, turn do
  local more = true
  while more and most > 0 and room > 0 do
    more = false
    for at = first, math.min(first + turn - 1, count) do
      if most > 0 and room > 0 and not dry[at] and take(at) then more = true end
    end
  end
end
if confirm + #errors == 0 then return {started, jobs} end
return {started, jobs, marks, errors}
