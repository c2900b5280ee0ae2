-- Deletes jobs of the dead set for good, and counts them.
-- KEYS: dead set, dead jobs, the caps of each, unannounced, stats
-- ARGV: counter, then job ids
-- Returns: number of jobs deleted
-- Crash: each job is there whole or gone.
local ids = {unpack(ARGV, 2)}
local deleted = drop(ids, capped(ids))
if deleted > 0 then redis.pcall('HINCRBY', KEYS[5], ARGV[1], deleted) end
return deleted
