-- Settles jobs: they leave their private lists for good, and so do their counters. Records those
-- that start in their place.
-- KEYS: for each settled job its private list and its owner's running jobs; then the counters of
--       those that may have some; then, for each that starts, its owner's running jobs
-- ARGV: number of settled jobs, then for each its payload, 1 where it may have counters, and its
--       claim id; then, for each that starts, its claim id and its digest
-- Returns: the numbers of those settled jobs that were not there: they had been taken away
-- Crash: the jobs are settled, and some recorded as running that have not begun; a lost reply
--       makes the caller look before it asks again.
local settled = tonumber(ARGV[1])
local missing, key, arg = {}, 2 * settled, 1
for i = 1, settled do
  local private, running = KEYS[2 * i - 1], KEYS[2 * i]
  local payload, counted, id = ARGV[arg + 1], ARGV[arg + 2] == '1', ARGV[arg + 3]
  arg = arg + 3
  -- From the right, where the oldest claims are.
  local there = redis.call('LREM', private, -1, payload) > 0
  if not there then missing[#missing + 1] = i end
  if counted then
    key = key + 1
    if there then redis.call('DEL', KEYS[key]) end
    -- Only what has counters can be on probation.
    if redis.call('HGET', running, 'alone') == id then redis.call('HDEL', running, 'alone') end
  end
  redis.call('HDEL', running, id)
end
for i = key + 1, #KEYS do
  local running = KEYS[i]
  -- A removal first: before 7.0 a server over its memory limit allows what follows one.
  if settled == 0 then redis.call('HDEL', running, '') end
  -- One that was given back stays called off.
  redis.call('HSETNX', running, ARGV[arg + 1], ARGV[arg + 2])
  arg = arg + 2
end
return missing
