-- Puts one exported job into the dead set, as it was.
-- KEYS: dead set, dead jobs, junk, unannounced, stats
-- ARGV: job id, record (JSON), time of death in ms, most jobs in the dead set, 1 for junk, most
--       junk, 1 when its caller was not told yet
-- Returns: "ok"; "present" when it is there already; "full" when it would push out another
-- Crash: the job is there whole or not at all; the file still has it.
local dead, jobs, junk, unannounced, stats = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local id, record, died_at = ARGV[1], ARGV[2], ARGV[3]
local most, is_junk, most_junk = tonumber(ARGV[4]), ARGV[5] == '1', tonumber(ARGV[6])
if redis.call('ZSCORE', dead, id) then return 'present' end
if redis.call('ZCARD', dead) >= most then return 'full' end
if is_junk and redis.call('ZCARD', junk) >= most_junk then return 'full' end
redis.call('ZADD', dead, died_at, id)
redis.call('HSET', jobs, id, record)
if is_junk then redis.call('ZADD', junk, died_at, id) end
if ARGV[7] == '1' then redis.call('SADD', unannounced, id) end
redis.call('HINCRBY', stats, 'dead_imported', 1)
return 'ok'
