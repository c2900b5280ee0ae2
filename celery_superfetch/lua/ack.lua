-- Settles jobs: they leave their private lists for good, and so do their counters. Records those
-- that start in their place.
-- KEYS: for each settled job its private list, its counters, and its owner's running jobs; then,
--       for each that starts, its owner's running jobs
-- ARGV: number of settled jobs, then for each its payload, 1 where it may have counters, and its
--       claim id; then, for each that starts, its claim id and its digest
-- Returns: for each settled job how many entries were removed; 0 means that it was taken away
-- Crash: the jobs are settled, and some recorded as running that have not begun; a lost reply
--       makes the caller look before it asks again.
local settled = tonumber(ARGV[1])
local removed = {}
for i = 1, settled do
  local private, counters, running = KEYS[3 * i - 2], KEYS[3 * i - 1], KEYS[3 * i]
  local payload, counted, id = ARGV[3 * i - 1], ARGV[3 * i] == '1', ARGV[3 * i + 1]
  -- From the right, where the oldest claims are.
  removed[i] = redis.call('LREM', private, -1, payload)
  if counted then
    if removed[i] > 0 then redis.call('DEL', counters) end
    -- Only what has counters can be on probation.
    if redis.call('HGET', running, 'alone') == id then redis.call('HDEL', running, 'alone') end
  end
  redis.call('HDEL', running, id)
end
for i = 1, #KEYS - 3 * settled do
  local running, at = KEYS[3 * settled + i], 3 * settled + 2 * i
  -- A removal first: before 7.0 a server over its memory limit allows what follows one.
  if settled == 0 then redis.call('HDEL', running, '') end
  -- One that was given back stays called off.
  redis.call('HSETNX', running, ARGV[at], ARGV[at + 1])
end
return removed
