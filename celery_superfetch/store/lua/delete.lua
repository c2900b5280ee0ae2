-- Deletes jobs of the dead set for good.
-- KEYS: dead set, dead jobs, the caps of each, unannounced, bytes under each cap, stats
-- ARGV: job ids
-- Returns: number of jobs deleted
-- Crash: each job is there whole or gone.
local deleted = drop(ARGV, capped(ARGV))
if deleted > 0 then redis.pcall('HINCRBY', KEYS[6], 'dead_deleted', deleted) end
return deleted
