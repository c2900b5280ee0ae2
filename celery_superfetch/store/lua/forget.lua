-- Deletes jobs of the dead set for good, and counts them.
-- KEYS: dead set, dead jobs, the caps of each, unannounced, stats
-- ARGV: counter, then job ids
-- Returns: number of jobs deleted
-- Crash: each job is there whole or gone.
local dead, jobs, caps, unannounced, stats = unpack(KEYS)
local ids = {unpack(ARGV, 2)}
-- What has another type is found before anything goes.
local capped = redis.call('HMGET', caps, unpack(ids))
redis.call('HLEN', jobs)
redis.call('SISMEMBER', unannounced, '')
for _, index in ipairs({dead, unpack(capped)}) do
  if index then redis.call('ZCARD', index) end
end
for at, id in ipairs(ids) do
  if capped[at] then redis.call('ZREM', capped[at], id) end
end
redis.call('ZREM', dead, unpack(ids))
redis.call('HDEL', caps, unpack(ids))
redis.call('SREM', unannounced, unpack(ids))
local deleted = redis.call('HDEL', jobs, unpack(ids))
if deleted > 0 then redis.pcall('HINCRBY', stats, ARGV[1], deleted) end
return deleted
