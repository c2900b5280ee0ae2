-- Deletes jobs of the dead set for good.
-- KEYS: dead set, dead jobs, junk, unannounced, stats
-- ARGV: job ids
-- Returns: number of jobs deleted
-- Crash: each job is there whole or gone.
local dead, jobs, junk, unannounced, stats = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local deleted = 0
for _, id in ipairs(ARGV) do
  deleted = deleted + redis.call('HDEL', jobs, id)
  redis.call('ZREM', dead, id)
  redis.call('ZREM', junk, id)
  redis.call('SREM', unannounced, id)
end
if deleted > 0 then redis.call('HINCRBY', stats, 'dead_deleted', deleted) end
return deleted
