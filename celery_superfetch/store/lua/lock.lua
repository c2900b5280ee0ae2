-- Takes a lock that is never released: it expires.
-- KEYS: the lock
-- ARGV: ms it holds
-- Returns: 1 when this call took it, else 0
-- Crash: the lock expires by itself.
local lock = KEYS[1]
if redis.call('EXISTS', lock) == 1 then return 0 end
-- The removal first: a server over its memory limit allows what follows a write.
redis.call('DEL', lock)
redis.call('SET', lock, 1, 'PX', ARGV[1])
return 1
