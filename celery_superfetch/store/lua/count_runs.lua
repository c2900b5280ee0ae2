-- Adds what a worker has counted of its runs, and drops rows that no worker has counted in for long.
-- KEYS: the counters, the rows of counters
-- ARGV: ms after which a row without news goes, most rows, number of labels of times, these labels;
--       then name and growth of each counter
-- Returns: nothing
-- Crash: nothing half done. Where the reply is lost, the same growth may come twice.
-- A row is one counter, or all times of a task: a histogram that loses one of its buckets looks like
-- one that began again.
local counters, rows = KEYS[1], KEYS[2]
local silence, most, labels = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
local first, now = 4 + labels, now()
redis.call('HLEN', counters)
local room = most - redis.call('ZCARD', rows)
for _, row in ipairs(redis.call('ZRANGEBYSCORE', rows, '-inf', now - silence, 'LIMIT', 0, 100)) do
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
    else  -- a new one has no task, and no queue list
      row = how .. '\t\t'
      name = how == 'seconds' and 'seconds\t' .. part .. '\t' or row
    end
  end
  redis.call('ZADD', rows, now, row)
  redis.pcall('HINCRBY', counters, name, ARGV[at + 1])
end
redis.call('PEXPIRE', counters, silence)
redis.call('PEXPIRE', rows, silence)
