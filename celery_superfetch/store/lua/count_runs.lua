-- Adds the counts of a worker's runs (a report) to the metrics of all workers and to the charts, and drops rows
-- to which no worker has added for long. A row is one counter, or all buckets of a task's histogram of seconds: if one bucket were
-- dropped alone, the histogram would look like one that began again.
-- KEYS: counters (name -> count), rows (row -> when it was counted last), reports (the latest one of each
--       worker -> when it was added), series of the charts, rows of the charts
-- ARGV: the worker, number of the report, ms for which it is remembered, ms after which a row without counts is dropped, most rows, number of buckets, their labels; then
--       name and growth of each counter
-- Returns: nothing
-- Crash: all was added, or nothing. If the reply is lost, the worker sends the report again, and the script
--       finds it among the reports.
local counters, rows, reports, minutes, minute_rows = unpack(KEYS)
local worker, number, remember_ms = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])
local keep_ms, most_rows, labels = tonumber(ARGV[4]), tonumber(ARGV[5]), tonumber(ARGV[6])
local first, now = 7 + labels, now()
local function report(number) return worker .. ':' .. number end
read_note('hash', 'HLEN', counters)
read_note('zset', 'ZCARD', rows)
read_note('zset', 'ZCARD', reports)
read_note('hash', 'HLEN', minutes)
read_note('zset', 'ZCARD', minute_rows)
delete_foreign()
if redis.call('ZSCORE', reports, report(number)) then return end
redis.call('ZADD', reports, now, report(number))
redis.call('ZREM', reports, report(number - 1))  -- they come in their order
redis.call('ZREMRANGEBYSCORE', reports, '-inf', now - remember_ms)
redis.call('PEXPIRE', reports, remember_ms)
local room = most_rows - redis.call('ZCARD', rows)
for _, row in ipairs(redis.call('ZRANGEBYSCORE', rows, '-inf', now - keep_ms, 'LIMIT', 0, 100)) do
  redis.call('ZREM', rows, row)
  room = room + 1
  local task = string.match(row, '^seconds\t\t(.*)$')
  if not task then redis.call('HDEL', counters, row) end
  for at = 7, task and first - 1 or 0 do
    redis.call('HDEL', counters, 'seconds\t' .. ARGV[at] .. '\t' .. task)
  end
end
local ended = {}  -- row of the charts -> runs: a queue list may have many tasks
for at = first, #ARGV, 2 do
  local name = ARGV[at]
  local how, part, task = string.match(name, '^([^\t]*)\t([^\t]*)\t(.*)$')
  local row = how == 'seconds' and 'seconds\t\t' .. task or name
  -- The package's own tasks are no work of the app: beat's alone would be a run each few seconds.
  if how ~= 'seconds' and not string.find(task, '^celery_superfetch%.') then
    local total, of_list = how .. '\t', how .. '\t' .. part
    ended[total] = (ended[total] or 0) + tonumber(ARGV[at + 1])
    if of_list ~= total then ended[of_list] = (ended[of_list] or 0) + tonumber(ARGV[at + 1]) end
  end
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
for name, runs in pairs(ended) do count_in_chart(minutes, minute_rows, name, runs) end
redis.call('PEXPIRE', counters, keep_ms)
redis.call('PEXPIRE', rows, keep_ms)
