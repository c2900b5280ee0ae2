-- Has jobs wait again that were to start.
-- KEYS: the owner's private list
-- ARGV: claim ids
-- Returns: nothing
-- Crash: nothing was changed, or they wait.
for _, id in ipairs(ARGV) do
  redis.call('HDEL', KEYS[1], 'w' .. id)  -- before 7.0 a full server allows what follows a removal
  if redis.call('HEXISTS', KEYS[1], id) == 1 then redis.call('HSET', KEYS[1], 'w' .. id, '') end
end
