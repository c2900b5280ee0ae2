-- Writes down what a pass that does not stay saw of the owners' silence.
-- KEYS: silences
-- ARGV: number of owners that are gone, those owners, then owner and row of each other
-- Returns: number of rows
-- Crash: rows of this pass and of the one before may stand side by side; each is true.
local silences, gone = KEYS[1], tonumber(ARGV[1])
-- The removals first: a server over its memory limit allows what follows a write.
redis.call('HDEL', silences, '')
for i = 2, gone + 1 do redis.call('HDEL', silences, ARGV[i]) end
for i = gone + 2, #ARGV, 2 do redis.call('HSET', silences, ARGV[i], ARGV[i + 1]) end
return redis.call('HLEN', silences)
