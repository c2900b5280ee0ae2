-- Claims jobs: from the public queue lists into the caller's private lists.
-- KEYS: owners, the flag that some job has counters, then the public queue lists in the order of
--       claiming. The private lists are named here: there may be a hundred, and few are touched
-- ARGV: owner, most jobs, most bytes, prefix of counters, length of the prefix of all keys,
--       prefix of the private lists, lists to take from in turn, number of jobs to confirm, then
--       list number and payload of each of those
-- Returns: {"unregistered"}; or {"ok", marks, jobs, errors} with marks[i] = -1 (no longer
--       the caller's), 0 (has no counters) or its {recoveries, strikes, requeues}, jobs =
--       {list number, payload, mark, ...} and errors = {list number, text, ...}
-- Crash: the jobs are in the private lists of a registered owner. A lost reply is found
--       there by the caller, or by the reaper after its death.
local owners, flag = KEYS[1], KEYS[2]
local owner, most, room = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])
local counters, cut, prefix = ARGV[4], tonumber(ARGV[5]) + 1, ARGV[6]
local turn, confirm = tonumber(ARGV[7]), tonumber(ARGV[8])
if not redis.call('ZSCORE', owners, owner) then return {'unregistered'} end
local counted = redis.call('EXISTS', flag) == 1
local function mark(payload)
  if not counted then return 0 end
  local key = counters .. redis.sha1hex(payload)
  if redis.call('EXISTS', key) == 0 then return 0 end
  return redis.call('HMGET', key, 'recoveries', 'strikes', 'requeues')
end

local function private_of(at) return prefix .. string.sub(KEYS[at + 2], cut) end

local marks = {}
for i = 1, confirm do
  local payload = ARGV[8 + 2 * i]
  local held = redis.call('LPOS', private_of(ARGV[7 + 2 * i]), payload)
  marks[i] = held and mark(payload) or -1
end

local jobs, errors, dry = {}, {}, {}
local count = #KEYS - 2
local function take(at)
  local queue, private = KEYS[at + 2], private_of(at)
  -- One command, and no copy of the payload on its way through this script.
  local payload = redis.pcall('LMOVE', queue, private, 'RIGHT', 'LEFT')
  if type(payload) == 'table' and string.find(payload.err, 'OOM') then
    -- Over its memory limit a server before 7.0 refuses what adds, unless a removal came first.
    payload = redis.pcall('RPOP', queue)
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
return {'ok', marks, jobs, errors}
