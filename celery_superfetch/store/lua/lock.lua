-- Takes the first of some locks that is free. It expires, where nobody releases it before.
-- KEYS: the locks
-- ARGV: ms that each of them holds
-- Returns: the number of the lock that this call took, 0 for none
-- Crash: the lock expires by itself.
for i, lock in ipairs(KEYS) do
  if redis.call('EXISTS', lock) == 0 then
    -- The removal first: a server over its memory limit allows what follows a write.
    redis.call('DEL', lock)
    redis.call('SET', lock, 1, 'PX', ARGV[i])
    return i
  end
end
return 0
