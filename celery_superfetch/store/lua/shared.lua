-- Functions of several scripts: `scripts.py` puts this text before each script that calls one.
-- KEYS: none of its own; for `capped`, `surplus` and `drop` a script has first the dead set, dead jobs, the
--       caps of each, unannounced, and the bytes under each cap
-- ARGV: none
-- Returns: nothing
-- Crash: it is a part of its script.
-- A script that moves a job begins with a removal, if need be of nothing: a server over its memory limit
-- allows a script all that follows a removal (before 7.0; later servers run these scripts anyway). And it
-- pushes the job to the new place before it removes it from the old one: if the user's ACL forbids one of
-- the two commands, the script ends there, and the job is not lost.

-- The server's clock, in ms.
local function now()
  local time = redis.call('TIME')
  return time[1] * 1000 + math.floor(time[2] / 1000)
end

-- Sets the flag that some job has a history, for at least this time: apps keep histories for different
-- times, and if the flag expired first, claims would not read them.
local function flagged(flag, window)
  if redis.call('TTL', flag) < window then redis.call('SET', flag, 1, 'EX', window) end
end

-- An owner's two rows in the ranks (`heartbeat.lua`): that it is in a group, and that it waits for jobs.
local function rank_rows(group, owner)
  return group .. ':a:' .. owner, group .. ':w:' .. owner
end

-- Removes an owner from the ranks of a group. A key of another type has no rows.
local function drop_ranks(ranks, group, owner)
  if group then redis.pcall('ZREM', ranks, rank_rows(group, owner)) end
end

-- A number of a job's history as Python reads it (`whole` in `records.py`): 0 where it is none. If the two
-- differed, each decision on the job would be refused as made on an older history, and it would stay.
local function counter(text)
  local number = type(text) == 'string' and string.match(text, '^%-?%d+$') and tonumber(text) or 0
  return math.abs(number) <= 2 ^ 53 and number or 0
end

-- Whether a job can be pushed to a key, and the key's type. Scripts check it before the first write.
local function takes(name)
  local kind = redis.call('TYPE', name).ok
  return kind == 'list' or kind == 'none', kind
end

-- The fencing token of a claim that ends. The token of the job's next claim has to be greater, even if the
-- clock of the next owner, by which it numbers its claims, is behind (`Claimed.token`). Jobs of equal bytes
-- share a token.
local tokens = {}
local function token(id, counters, earlier)
  local number = tonumber(string.match(id, '^%d+')) or 0
  tokens[counters] = math.max(number, (tokens[counters] or counter(earlier)) + 1)
  return string.format('%.0f', tokens[counters])
end

-- Counts in a job's history that a claim of it ended in a requeue, and keeps there what its next claim needs.
-- An error counts nothing, and does not stop the script.
local function count_requeue(history, id, token_before, steps, window)
  redis.pcall('HINCRBY', history, 'requeues', 1)
  redis.pcall('HSET', history, 'token', token(id, history, token_before))
  if not token_before then
    redis.pcall('HSET', history, 'first_claim', string.match(id, '^%d+') or 0)
  end
  if steps then redis.pcall('HSET', history, 'steps', steps) end
  if redis.call('TTL', history) < 0 then redis.call('EXPIRE', history, window) end
end

-- An error if one of these keys is no queue; else nil.
local function wrong(...)
  for _, name in ipairs({...}) do
    local fits, kind = takes(name)
    if not fits then
      return redis.error_reply("WRONGTYPE '" .. name .. "' is not a queue: the key holds a " .. kind)
    end
  end
end

-- Runs a command on a key (nil: it has none) and a list of values of any length, a thousand at a time:
-- Lua hands over no more than 8,000 ("too many results to unpack"). Returns the sum of the replies.
local function call_in_parts(command, key, values)
  local total = 0
  for first = 1, #values, 1000 do
    local last = math.min(first + 999, #values)
    if key then
      total = total + redis.call(command, key, unpack(values, first, last))
    else
      total = total + redis.call(command, unpack(values, first, last))
    end
  end
  return total
end

-- Reads the caps of some dead jobs, the sizes of their records, and each key that `drop` will change: one
-- of another type raises here.
local record_bytes = {}
local function capped(ids)
  local caps = {}
  for at, id in ipairs(ids) do
    caps[at] = redis.call('HGET', KEYS[3], id)
    record_bytes[id] = redis.call('HSTRLEN', KEYS[2], id)
  end
  redis.call('HLEN', KEYS[2])
  redis.call('SISMEMBER', KEYS[4], '')
  redis.call('ZCARD', KEYS[1])
  for _, cap in ipairs(caps) do
    if cap then redis.call('ZCARD', cap) end
  end
  return caps
end

-- The oldest dead jobs under a cap that have to go, `batch` at most: so many that `jobs` are left, or fewer,
-- and as many bytes as `most_bytes` allows (0: any number) beside a record of `coming` bytes.
local function surplus(cap, most_jobs, most_bytes, coming, batch)
  local ids = {}
  local over = redis.call('ZCARD', cap) - most_jobs
  local bytes = counter(redis.pcall('HGET', KEYS[5], cap)) + coming
  while #ids < batch and (over > 0 or (most_bytes > 0 and bytes > most_bytes)) do
    local page = redis.call('ZRANGE', cap, #ids, math.min(#ids + 50, batch) - 1)
    if #page == 0 then break end
    for _, id in ipairs(page) do
      if over <= 0 and (most_bytes == 0 or bytes <= most_bytes) then return ids end
      ids[#ids + 1] = id
      over, bytes = over - 1, bytes - redis.call('HSTRLEN', KEYS[2], id)
    end
  end
  return ids
end

-- Deletes dead jobs that `capped` has read, from the cap of each, or from one; returns how many were there.
local function drop(ids, caps)
  local shrunk = {}
  for at, id in ipairs(ids) do
    local cap = caps
    if type(caps) == 'table' then cap = caps[at] end
    if cap then
      redis.call('ZREM', cap, id)
      shrunk[cap] = (shrunk[cap] or 0) + (record_bytes[id] or 0)
    end
  end
  for cap, bytes in pairs(shrunk) do
    -- An error must not stop the script. If keys were evicted, the sum is wrong until the cap is empty.
    local left = redis.pcall('HINCRBY', KEYS[5], cap, -bytes)
    if type(left) ~= 'number' or left <= 0 or redis.call('EXISTS', cap) == 0 then
      redis.pcall('HDEL', KEYS[5], cap)
    end
  end
  call_in_parts('ZREM', KEYS[1], ids)
  call_in_parts('HDEL', KEYS[3], ids)
  call_in_parts('SREM', KEYS[4], ids)
  return call_in_parts('HDEL', KEYS[2], ids)
end

-- Keys of notes that hold another type than the package writes there. `read_note` finds them.
local foreign = {}

-- Reads a note: a job's history, an index, a counter. A key of another type, which only a stranger can have
-- written, counts as no note. If it raised, one such key would keep all jobs of its script waiting for ever.
local function read_note(kind, command, key, ...)
  local reply = redis.pcall(command, key, ...)
  if type(reply) ~= 'table' or not reply.err then return reply end
  local held = redis.call('TYPE', key).ok
  if held == kind or held == 'none' then return redis.call(command, key, ...) end  -- it raises
  foreign[#foreign + 1] = key
  return {}
end

-- Deletes such keys, so that the package's own note can be written. A script calls it after its checks and
-- before its other writes. The server's log names each, and with `stats` they are counted.
local function delete_foreign(stats)
  for _, key in ipairs(foreign) do
    redis.log(redis.LOG_WARNING, 'celery_superfetch: ' .. key .. ' held a ' .. redis.call('TYPE', key).ok
      .. ', which this package never writes there. It was deleted, and counts as empty.')
    redis.call('DEL', key)
    if stats then redis.pcall('HINCRBY', stats, 'foreign_keys', 1) end
  end
  foreign = {}
end

-- Whether a lock is held. One without an end was not taken by `lock.lua`, and would be held for ever; one that
-- lasts for longer than it was to is from before the server's clock was set back.
local function is_locked(lock)
  local held, ttl_s = read_note('string', 'GET', lock), redis.call('TTL', lock)
  return type(held) == 'string' and ttl_s >= 0 and ttl_s * 1000 <= counter(held) + 1000
end

-- Counts a job by queue list and task, for metrics. An error counts nothing, and does not stop the script.
-- Rows are bounded: beyond 2,000 fields a new row has no task, beyond 2,500 no queue list either. The caller
-- names registered tasks only: a producer, who names the others, could use all rows up. `passed` drops rows
-- that have not grown for a week, by their times in `rows`.
local row_of = {}
local function count_by_task(stats, rows, event, queue_list, task)
  local name = event .. '\t' .. queue_list .. '\t' .. task
  local row = row_of[name]
  if not row then
    local size = redis.pcall('HLEN', stats)
    if type(size) ~= 'number' then return end
    row = name
    if size >= 2000 and redis.pcall('HEXISTS', stats, name) ~= 1 then
      row = event .. '\t' .. queue_list .. '\t'
      if size >= 2500 and redis.pcall('HEXISTS', stats, row) ~= 1 then row = event .. '\t\t' end
    end
    row_of[name] = row
    redis.pcall('ZADD', rows, now(), row)
  end
  redis.pcall('HINCRBY', stats, row, 1)
end

-- A series of the charts with one more count. It is a text: the number of its last slot, a space, then a comma
-- and a count for each slot up to that one (empty: nothing was counted). A slot is a minute, or ten, numbered
-- since the epoch; the latest `most` are kept. With `is_most` the count of a slot is the greatest that it got,
-- else their sum.
local function with_count(series, slot, most, count, is_most)
  local function added(before)
    before = tonumber(before) or 0
    return string.format('%.0f', is_most and math.max(before, count) or before + count)
  end
  local head, last, latest = string.match(series or '', '^((%d+) [,%d]*,)(%d*)$')
  last = tonumber(last)
  -- The server's clock may be set back a little, in a failover say. If it is far behind the last slot, the
  -- times of all slots were wrong.
  if not last or slot - last >= most or last - slot > 5 then return slot .. ' ,' .. added() end
  if slot <= last then return head .. added(latest) end
  local row = series .. string.rep(',', slot - last) .. added()
  local _, size = string.gsub(row, ',', ',')
  local at = string.find(row, ',', 1, true)
  for _ = 1, size - most do at = string.find(row, ',', at + 1, true) end
  return slot .. ' ' .. string.sub(row, at)
end

-- Adds a count to both series of a row of the charts: of the latest hour by minutes, and of the latest day by
-- ten minutes, each with the slot that is under way. `name`: event, tab, queue list; without a queue list it is
-- the event's total. Rows are bounded: beyond 4,000 a new queue list has no row, and counts in the total alone.
-- `passed` drops rows that have not grown for a day. An error counts nothing, and does not stop the script.
local CHART_MS = 86400000 + 600000
local function count_in_chart(minutes, rows, name, count, is_most)
  local by_minute, by_ten = '1\t' .. name, '10\t' .. name
  local before = redis.pcall('HMGET', minutes, by_minute, by_ten)
  if before.err then return end
  if not before[1] and string.sub(name, -1) ~= '\t' then
    local size = redis.pcall('HLEN', minutes)
    if type(size) ~= 'number' or size >= 8000 then return end
  end
  local at = now()
  local minute, ten = math.floor(at / 60000), math.floor(at / 600000)
  redis.pcall('HSET', minutes, by_minute, with_count(before[1], minute, 61, count, is_most),
    by_ten, with_count(before[2], ten, 145, count, is_most))
  if string.match(before[1] or '', '^%d+') ~= tostring(minute) then  -- once a minute is enough
    redis.pcall('ZADD', rows, at, name)
    redis.pcall('PEXPIRE', minutes, CHART_MS)
    redis.pcall('PEXPIRE', rows, CHART_MS)
  end
end

-- Counts an event of some jobs of one queue list in the charts.
local function chart(minutes, rows, event, queue_list, count)
  count_in_chart(minutes, rows, event .. '\t', count)
  if queue_list ~= '' then count_in_chart(minutes, rows, event .. '\t' .. queue_list, count) end
end

-- The entries of a job's history (JSON) and one more, to which it adds the time. It keeps the latest 20:
-- the field must not grow without bound.
local function with_entry(before, entry)
  local readable, found = pcall(cjson.decode, before or '[]')
  local entries = {}
  for _, earlier in ipairs(readable and type(found) == 'table' and found or entries) do
    if type(earlier) == 'table' then table.insert(entries, earlier) end
  end
  entry.at = tonumber(redis.call('TIME')[1])
  table.insert(entries, entry)
  while #entries > 20 do table.remove(entries, 1) end
  -- An entry by somebody's hand may have what cannot be written. An error would end the script half-way.
  local written, text = pcall(cjson.encode, entries)
  return written and text or cjson.encode({entry})
end

-- Lists a job that stops cut short again and again, for `status`: the latest hundred. An error lists
-- nothing, and does not stop the script.
local function name_stopped(stopped, record, window)
  redis.pcall('ZADD', stopped, now(), record)
  redis.pcall('ZREMRANGEBYRANK', stopped, 0, -101)
  redis.pcall('EXPIRE', stopped, window)
end
