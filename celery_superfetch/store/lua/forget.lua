-- Deletes jobs of the dead set for good.
-- KEYS: dead set, dead jobs, the caps of each, unannounced, stats
-- ARGV: job ids
-- Returns: number of jobs deleted
-- Crash: each job is there whole or gone.
local dead, jobs, caps, unannounced, stats = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
-- What has another type is found before anything goes.
local capped = redis.call('HMGET', caps, unpack(ARGV))
redis.call('HLEN', jobs)
redis.call('SISMEMBER', unannounced, '')
for _, index in ipairs({dead, unpack(capped)}) do
  if index then redis.call('ZCARD', index) end
end
for at, id in ipairs(ARGV) do
  if capped[at] then redis.call('ZREM', capped[at], id) end
end
redis.call('ZREM', dead, unpack(ARGV))
redis.call('HDEL', caps, unpack(ARGV))
redis.call('SREM', unannounced, unpack(ARGV))
local deleted = redis.call('HDEL', jobs, unpack(ARGV))
if deleted > 0 then redis.pcall('HINCRBY', stats, 'dead_deleted', deleted) end
return deleted
