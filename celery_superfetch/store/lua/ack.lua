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
local missing, counted, key, arg = {}, {}, 0, 1
for i = 1, settled do
  local private, running = KEYS[key + 1], KEYS[key + 2]
  local payload, counts, id = ARGV[arg + 1], ARGV[arg + 2], ARGV[arg + 3]
  key, arg = key + 2, arg + 3
  -- Before it leaves: what has another type is found here.
  redis.call('HDEL', running, id)
  -- From the right, where the oldest claims are.
  local there = redis.call('LREM', private, -1, payload) > 0
  if not there then missing[#missing + 1] = i end
  if counts == '1' then
    counted[#counted + 1] = there
  end
end
for _, there in ipairs(counted) do
  key = key + 1
  if there then redis.call('DEL', KEYS[key]) end
end
for i = key + 1, #KEYS do
  -- A removal first: before 7.0 a server over its memory limit allows what follows one.
  redis.call('HDEL', KEYS[i], '')
  redis.call('HSET', KEYS[i], ARGV[arg + 1], ARGV[arg + 2])
  arg = arg + 2
end
return missing
