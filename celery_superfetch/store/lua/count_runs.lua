-- Adds the counts of a worker's runs to the metrics of all workers, and drops rows to which no worker has
-- added for long. A row is one counter, or all buckets of a task's histogram of seconds: if one bucket were
-- dropped alone, the histogram would look like one that began again.
-- KEYS: counters (name -> count), rows (row -> when it was counted last)
-- ARGV: ms after which a row without counts is dropped, most rows, number of buckets, their labels; then
--       name and growth of each counter
-- Returns: nothing
-- Crash: all was added, or nothing. If the reply is lost, the worker may add the same growth twice.
local counters, rows = KEYS[1], KEYS[2]
local keep_ms, most_rows, labels = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
local first, now = 4 + labels, now()
read_note('hash', 'HLEN', counters)
read_note('zset', 'ZCARD', rows)
delete_foreign()
local room = most_rows - redis.call('ZCARD', rows)
for _, row in ipairs(redis.call('ZRANGEBYSCORE', rows, '-inf', now - keep_ms, 'LIMIT', 0, 100)) do
  redis.call('ZREM', rows, row)
  room = room + 1
  local task = string.match(row, '^seconds\t\t(.*)$')
  if not task then redis.call('HDEL', counters, row) end
  for at = 4, task and first - 1 or 0 do
    redis.call('HDEL', counters, 'seconds\t' .. ARGV[at] .. '\t' .. task)
  end
end
for at = first, #ARGV, 2 do
  local name = ARGV[at]
  local how, part, task = string.match(name, '^([^\t]*)\t([^\t]*)\t(.*)$')
  local row = how == 'seconds' and 'seconds\t\t' .. task or name
  if not redis.call('ZSCORE', rows, row) then
    if room > 0 then
      room = room - 1
    else  -- beyond the limit, a new counter is added to one without a task and a queue list
      row = how .. '\t\t'
      name = how == 'seconds' and 'seconds\t' .. part .. '\t' or row
    end
  end
  redis.call('ZADD', rows, now, row)
  redis.pcall('HINCRBY', counters, name, ARGV[at + 1])
end
redis.call('PEXPIRE', counters, keep_ms)
redis.call('PEXPIRE', rows, keep_ms)
