-- Settles jobs: they leave their private lists for good, and so do their counters.
-- KEYS: for each job its private list, its counters, and its owner's running jobs
-- ARGV: for each job its payload, 1 where it may have counters, and its claim id
-- Returns: for each job how many entries were removed; 0 means that it was taken away
-- Crash: the job is settled; a lost reply makes the caller look before it asks again.
local removed = {}
for i = 1, #KEYS / 3 do
  local private, counters, running = KEYS[3 * i - 2], KEYS[3 * i - 1], KEYS[3 * i]
  -- From the right, where the oldest claims are.
  removed[i] = redis.call('LREM', private, -1, ARGV[3 * i - 2])
  if ARGV[3 * i - 1] == '1' then
    if removed[i] > 0 then redis.call('DEL', counters) end
    -- Only what has counters can be on probation.
    if redis.call('HGET', running, 'alone') == ARGV[3 * i] then
      redis.call('HDEL', running, 'alone')
    end
  end
  redis.call('HDEL', running, ARGV[3 * i])
end
return removed
