-- Takes a lock if it is free. It expires unless it is released before.
-- KEYS: the lock
-- ARGV: ms that it holds
-- Returns: 1 when this call took it, else 0
-- Crash: the lock expires by itself.
local lock = KEYS[1]
if is_locked(lock) then return 0 end
-- A removal first, on servers before 7.0 (shared.lua).
redis.call('DEL', lock)
redis.call('SET', lock, ARGV[1], 'PX', ARGV[1])
return 1
