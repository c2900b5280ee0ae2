-- Takes a lock if it is free. It expires, where nobody releases it before.
-- KEYS: the lock
-- ARGV: ms that it holds
-- Returns: 1 when this call took it, else 0
-- Crash: the lock expires by itself.
local lock = KEYS[1]
-- One that lasts for longer than it was to is from before the server's clock was set back.
local longest = tonumber(redis.call('GET', lock) or 0) + 1000
if redis.call('EXISTS', lock) == 1 and redis.call('TTL', lock) * 1000 <= longest then return 0 end
-- A removal first, on servers before 7.0 (shared.lua).
redis.call('DEL', lock)
redis.call('SET', lock, ARGV[1], 'PX', ARGV[1])
return 1
