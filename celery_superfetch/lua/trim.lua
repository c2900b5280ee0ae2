-- Drops jobs of the dead set that are too old or too many, the oldest first.
-- KEYS: dead set, dead jobs, junk, unannounced, stats, overflow
-- ARGV: ms of age from which on jobs go, most jobs, most junk, most to drop for each cause
-- Returns: number dropped for their age; number dropped because there were too many, with those
--       that kills have dropped since the last time
-- Crash: each job is there whole or gone.
local dead, jobs, junk, unannounced, stats, overflow =
  KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6]
local age, most, most_junk, batch =
  tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])
local function drop(ids)
  for _, id in ipairs(ids) do
    redis.call('ZREM', dead, id)
    redis.call('ZREM', junk, id)
    redis.call('HDEL', jobs, id)
    redis.call('SREM', unannounced, id)
  end
  if #ids > 0 then redis.call('HINCRBY', stats, 'dead_dropped', #ids) end
  return #ids
end
local function surplus(key, limit)
  local over = math.min(redis.call('ZCARD', key) - limit, batch)
  return over > 0 and redis.call('ZRANGE', key, 0, over - 1) or {}
end
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local aged = drop(redis.call('ZRANGEBYSCORE', dead, '-inf', now - age, 'LIMIT', 0, batch))
local many = drop(surplus(junk, most_junk)) + drop(surplus(dead, most))
local before = tonumber(redis.call('GET', overflow) or 0)
if before > 0 then redis.call('DEL', overflow) end
return {aged, many + before}
