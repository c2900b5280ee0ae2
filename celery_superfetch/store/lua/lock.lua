-- Takes a lock if it is free. It expires unless it is released before.
-- KEYS: the lock
-- ARGV: ms that it holds
-- Returns: 1 when this call took it, else 0
-- Crash: the lock expires by itself.
local lock = KEYS[1]
-- One that lasts for longer than it was to is from before the server's clock was set back.
local held = read_note('string', 'GET', lock)
local longest = counter(held) + 1000
local ttl_s = redis.call('TTL', lock)
-- One without an end was not taken here: it would be held for ever.
if type(held) == 'string' and ttl_s >= 0 and ttl_s * 1000 <= longest then return 0 end
-- A removal first, on servers before 7.0 (shared.lua).
redis.call('DEL', lock)
redis.call('SET', lock, ARGV[1], 'PX', ARGV[1])
return 1
