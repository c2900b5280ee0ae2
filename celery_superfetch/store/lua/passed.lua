-- Records a pass as the last one, counts it, counts in the charts how many jobs it saw waiting, and drops rows
-- of stats and of the charts that have not grown for long.
-- KEYS: the last pass, stats, rows of stats, series of the charts, rows of the charts
-- ARGV: ms after which a row of stats without growth is dropped, jobs that wait on all queue lists, then field
--       and value of each thing that is known of the pass
-- Returns: nothing
-- Crash: the pass is recorded, and counted or not.
local pass, stats, rows, minutes, minute_rows = unpack(KEYS)
local keep_ms, waiting = tonumber(ARGV[1]), tonumber(ARGV[2])
read_note('zset', 'ZCARD', rows)
read_note('hash', 'HLEN', minutes)
read_note('zset', 'ZCARD', minute_rows)
delete_foreign(stats)
redis.pcall('HSET', pass, 'at', string.format('%.0f', now()), unpack(ARGV, 3))
redis.call('EXPIRE', pass, 604800)
local silent = redis.pcall('ZRANGEBYSCORE', rows, '-inf', now() - keep_ms, 'LIMIT', 0, 100)
for _, row in ipairs(silent) do
  redis.pcall('HDEL', stats, row)
  redis.pcall('ZREM', rows, row)
end
count_in_chart(minutes, minute_rows, 'waiting\t', waiting, true)
for _, row in ipairs(redis.pcall('ZRANGEBYSCORE', minute_rows, '-inf', now() - CHART_MS, 'LIMIT', 0, 100)) do
  redis.pcall('HDEL', minutes, '1\t' .. row, '10\t' .. row)
  redis.pcall('ZREM', minute_rows, row)
end
local numbers = {}
for i = 3, #ARGV, 2 do numbers[ARGV[i]] = tonumber(ARGV[i + 1]) end
if not numbers.seconds then return end
local sums = {number = 1, ms = numbers.seconds * 1000, owners = numbers.owners, errors = numbers.errors}
for name, growth in pairs(sums) do
  redis.pcall('HINCRBY', stats, 'pass\t' .. name, string.format('%.0f', growth))
end
