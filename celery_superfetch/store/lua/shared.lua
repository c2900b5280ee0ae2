-- What several scripts do: it stands before those that call one of its functions.
-- KEYS: none of its own; `capped` and `drop` know the dead set, dead jobs, the caps of each and
--       unannounced, which come first wherever jobs of the dead set go
-- ARGV: none
-- Returns: nothing
-- Crash: it is a part of its script.
-- A server over its memory limit lets our scripts run, but for one before 7.0: that allows a script
-- what follows a removal, wherefore they begin with one, if need be of nothing. A job arrives before it
-- leaves: a user who may no longer do the one or the other (ACL) is told so then, and the job is there.

-- The server's clock, in ms.
local function now()
  local time = redis.call('TIME')
  return time[1] * 1000 + math.floor(time[2] / 1000)
end

-- Flags that some job has counters, no shorter than others do: apps remember jobs for different times.
local function flagged(flag, window)
  if redis.call('TTL', flag) < window then redis.call('SET', flag, 1, 'EX', window) end
end

-- Whether a job can arrive there. It is asked before one leaves the place where it is, as all is read
-- that has to have the right type.
local function takes(name)
  local kind = redis.call('TYPE', name).ok
  return kind == 'list' or kind == 'none', kind
end

-- The fencing token of a claim that ends: that of the job's next one has to be greater, whatever the
-- clocks of those who number their claims say (`Claimed.token`). Jobs of equal bytes share one.
local tokens = {}
local function token(id, counters, earlier)
  local number = tonumber(string.match(id, '^%d+')) or 0
  tokens[counters] = math.max(number, (tonumber(tokens[counters] or earlier) or 0) + 1)
  return string.format('%.0f', tokens[counters])
end

-- The error that one of these is no queue, if it is none.
local function wrong(...)
  for _, name in ipairs({...}) do
    local fits, kind = takes(name)
    if not fits then
      return redis.error_reply("WRONGTYPE '" .. name .. "' is no queue, it holds a " .. kind)
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

-- The caps of some dead jobs, and a look at whatever has to change when they go.
local function capped(ids)
  local caps = {}
  for at, id in ipairs(ids) do caps[at] = redis.call('HGET', KEYS[3], id) end
  redis.call('HLEN', KEYS[2])
  redis.call('SISMEMBER', KEYS[4], '')
  redis.call('ZCARD', KEYS[1])
  for _, cap in ipairs(caps) do
    if cap then redis.call('ZCARD', cap) end
  end
  return caps
end

-- Deletes dead jobs, under these caps; how many were there.
local function drop(ids, caps)
  for at, id in ipairs(ids) do
    if caps[at] then redis.call('ZREM', caps[at], id) end
  end
  call_in_parts('ZREM', KEYS[1], ids)
  call_in_parts('HDEL', KEYS[3], ids)
  call_in_parts('SREM', KEYS[4], ids)
  return call_in_parts('HDEL', KEYS[2], ids)
end

-- Counts a job by queue list and task, for metrics. What fails is not counted: it is worth no job's
-- way. Rows are bounded: beyond 2,000 fields a new one has no task, beyond 2,500 no queue either; nor
-- has one whose task is not in its headers, or very long.
local function count_by_task(stats, event, queue_list, payload)
  -- Celery's header, in JSON. A body is in base64, or the quotes in it have backslashes.
  local at = string.find(payload, '"task":')
  local task = at and string.match(payload, '^%s*"([^"\\%c]*)"', at + 7) or ''
  if #task > 200 then task = '' end
  local size = redis.pcall('HLEN', stats)
  if type(size) ~= 'number' then return end
  local row = event .. '\t' .. queue_list .. '\t'
  local has_row = redis.pcall('HEXISTS', stats, row .. task) == 1
  if size < 2000 or has_row then
    row = row .. task
  elseif size >= 2500 and redis.pcall('HEXISTS', stats, row) ~= 1 then
    row = event .. '\t\t'
  end
  redis.pcall('HINCRBY', stats, row, 1)
end


-- The entries of a job's history and one more, which gets the time. The latest few are enough to tell
-- the story; the field must not grow without bound.
local function with_entry(before, entry)
  local readable, entries = pcall(cjson.decode, before or '[]')
  if not readable or type(entries) ~= 'table' then entries = {} end
  entry.at = tonumber(redis.call('TIME')[1])
  table.insert(entries, entry)
  while #entries > 20 do table.remove(entries, 1) end
  return cjson.encode(entries)
end

-- Lists a job that stops cut short again and again, for `status`: the latest hundred. What fails is not
-- listed: that is worth no job's way.
local function name_stopped(stopped, record, window)
  redis.pcall('ZADD', stopped, now(), record)
  redis.pcall('ZREMRANGEBYRANK', stopped, 0, -101)
  redis.pcall('EXPIRE', stopped, window)
end
