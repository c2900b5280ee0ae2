-- Records a pass as the last one, counts it, and drops rows of stats that have not grown for long.
-- KEYS: the last pass, stats, rows of stats
-- ARGV: ms after which a row without growth is dropped, then field and value of each thing that is known of it
-- Returns: nothing
-- Crash: the pass is recorded, and counted or not.
local pass, stats, rows, keep_ms = KEYS[1], KEYS[2], KEYS[3], tonumber(ARGV[1])
read_note('zset', 'ZCARD', rows)
delete_foreign(stats)
redis.pcall('HSET', pass, 'at', string.format('%.0f', now()), unpack(ARGV, 2))
redis.call('EXPIRE', pass, 604800)
local silent = redis.pcall('ZRANGEBYSCORE', rows, '-inf', now() - keep_ms, 'LIMIT', 0, 100)
for _, row in ipairs(silent) do
  redis.pcall('HDEL', stats, row)
  redis.pcall('ZREM', rows, row)
end
local numbers = {}
for i = 2, #ARGV, 2 do numbers[ARGV[i]] = tonumber(ARGV[i + 1]) end
if not numbers.seconds then return end
local sums = {number = 1, ms = numbers.seconds * 1000, owners = numbers.owners, errors = numbers.errors}
for name, growth in pairs(sums) do
  redis.pcall('HINCRBY', stats, 'pass\t' .. name, string.format('%.0f', growth))
end
