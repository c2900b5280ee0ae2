-- Counts jobs that their owner lost to another, or that the server lost.
-- KEYS: stats
-- ARGV: event ("ownership_lost", or "lost": the time is noted, too), then for each job its queue list
--       and its payload, or as much of that as names its task
-- Returns: nothing
-- Crash: they are counted, or not.
local stats, event = KEYS[1], ARGV[1]
redis.call('HINCRBY', stats, event, (#ARGV - 1) / 2)
if event == 'lost' then redis.call('HSET', stats, 'lost\tat', now()) end
for i = 2, #ARGV, 2 do count_by_task(stats, event, ARGV[i], ARGV[i + 1]) end
