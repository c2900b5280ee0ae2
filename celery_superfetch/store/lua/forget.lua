-- Deletes jobs of the dead set for good, and counts them.
-- KEYS: dead set, dead jobs, the caps of each, unannounced, stats, then their cap, where
--       it is known
-- ARGV: counter, then job ids
-- Returns: number of jobs deleted
-- Crash: each job is there whole or gone.
local ids = {unpack(ARGV, 2)}
local found = capped(ids)
-- What is only there goes, too: it would be the oldest again and again.
for at in ipairs(ids) do found[at] = found[at] or KEYS[6] end
local deleted = drop(ids, found)
if deleted > 0 then redis.pcall('HINCRBY', KEYS[5], ARGV[1], deleted) end
return deleted
