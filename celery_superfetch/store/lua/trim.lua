-- Drops jobs of one app's in the dead set, and junk, that are too old or too many, the oldest first.
-- KEYS: dead set, dead jobs, the caps of each, unannounced, stats, overflow, then each cap
-- ARGV: ms of age from which on jobs go, most to drop of each cap for each cause, then the most
--       jobs of each
-- Returns: number dropped for their age; number dropped because there were too many, with those
--       that kills have dropped since the last time
-- Crash: each job is there whole or gone.
local dead, jobs, caps, unannounced, stats, overflow = unpack(KEYS, 1, 6)
local age, batch = tonumber(ARGV[1]), tonumber(ARGV[2])
-- What has another type is found before anything goes.
for _, hash in ipairs({jobs, caps}) do redis.call('HLEN', hash) end
redis.call('ZCARD', dead)
for at = 7, #KEYS do redis.call('ZCARD', KEYS[at]) end
redis.call('SISMEMBER', unannounced, '')
local before = tonumber(redis.call('GET', overflow)) or 0
local function prune(cap, ids)
  if #ids == 0 then return 0 end
  local under = {}
  for at = 1, #ids do under[at] = cap end
  drop(ids, under)
  redis.pcall('HINCRBY', stats, 'dead_dropped', #ids)
  return #ids
end
local aged, many = 0, before
for at = 7, #KEYS do
  local cap, most = KEYS[at], tonumber(ARGV[at - 4])
  aged = aged
    + prune(cap, redis.call('ZRANGEBYSCORE', cap, '-inf', now() - age, 'LIMIT', 0, batch))
  local over = math.min(redis.call('ZCARD', cap) - most, batch)
  if over > 0 then many = many + prune(cap, redis.call('ZRANGE', cap, 0, over - 1)) end
end
redis.call('DEL', overflow)
return {aged, many}
