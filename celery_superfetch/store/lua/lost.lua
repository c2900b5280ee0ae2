-- Counts a job that its owner lost to another.
-- KEYS: stats
-- ARGV: queue list, payload
-- Returns: nothing
-- Crash: it is counted, or not.
redis.call('HINCRBY', KEYS[1], 'ownership_lost', 1)
count_by_task(KEYS[1], 'ownership_lost', ARGV[1], ARGV[2])
