-- Writes down what a pass that does not stay saw of the owners' silence.
-- KEYS: silences
-- ARGV: owner and row of each; an empty row for one that is gone
-- Returns: number of rows
-- Crash: rows of this pass and of the one before may stand side by side; each is true.
local silences = KEYS[1]
for i = 1, #ARGV, 2 do
  -- The removal first: a server over its memory limit allows what follows a write.
  redis.call('HDEL', silences, ARGV[i])
  if ARGV[i + 1] ~= '' then redis.call('HSET', silences, ARGV[i], ARGV[i + 1]) end
end
return redis.call('HLEN', silences)
