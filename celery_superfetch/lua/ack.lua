-- Settles jobs: they leave their private lists for good, and so do their counters.
-- KEYS: for each job its private list and its counters
-- ARGV: for each job its payload, and 1 where it may have counters
-- Returns: for each job how many entries were removed; 0 means that it was taken away
-- Crash: the job is settled; a lost reply makes the caller look before it asks again.
local removed = {}
for i = 1, #KEYS / 2 do
  -- From the right, where the oldest claims are.
  removed[i] = redis.call('LREM', KEYS[2 * i - 1], -1, ARGV[2 * i - 1])
  if removed[i] > 0 and ARGV[2 * i] == '1' then redis.call('DEL', KEYS[2 * i]) end
end
return removed
