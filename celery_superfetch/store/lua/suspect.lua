-- Marks a job as a suspect: its next requeue or recovery puts it on probation. A script and not a plain HSETNX,
-- which a server over its memory limit refuses, while claims go on: it would refuse the job at each claim.
-- KEYS: the job's history
-- ARGV: seconds to keep the history, if it is a new one (the old one has expired a moment ago)
-- Returns: nothing
-- Crash: the mark is in the history, and the job where it was. A repetition changes nothing.
local history, window = KEYS[1], tonumber(ARGV[1])
redis.call('HDEL', history, '')  -- a removal first (shared.lua)
redis.call('HSETNX', history, 'solo_runs', 1)
if redis.call('TTL', history) < 0 then redis.call('EXPIRE', history, window) end
