-- Clears the start records of claimed jobs that have not begun: puts their waiting notes back.
-- KEYS: the owner's private list
-- ARGV: claim ids
-- Returns: nothing
-- Crash: all have the note, or none was changed.
for _, id in ipairs(ARGV) do
  redis.call('HDEL', KEYS[1], 'w' .. id)  -- before 7.0 a full server allows what follows a removal
  if redis.call('HEXISTS', KEYS[1], id) == 1 then redis.call('HSET', KEYS[1], 'w' .. id, '') end
end
