-- Drops jobs of one app, and junk, from the dead set: those that are too old or too many, the oldest first.
-- KEYS: dead set, dead jobs, the caps of each, unannounced, bytes under each cap, stats, how many kills have
--       dropped, then each cap
-- ARGV: ms of age from which on jobs go, most to drop of each cap for each cause, then for each cap the most
--       jobs, and the most bytes of their records (0: any number)
-- Returns: for each cap the number dropped for their age, and the number dropped because there were too
--       many, with those that kills have dropped since the last time
-- Crash: each job is there whole or gone.
local dead, jobs, caps, unannounced, bytes, stats, dropped = unpack(KEYS, 1, 7)
local age, batch = tonumber(ARGV[1]), tonumber(ARGV[2])
-- What has another type is found before anything goes.
for _, note in ipairs({bytes, dropped}) do read_note('hash', 'HLEN', note) end
for _, hash in ipairs({jobs, caps}) do redis.call('HLEN', hash) end
redis.call('ZCARD', dead)
for at = 8, #KEYS do redis.call('ZCARD', KEYS[at]) end
redis.call('SISMEMBER', unannounced, '')
delete_foreign(stats)
local before = {}
for at = 8, #KEYS do before[at] = counter(redis.call('HGET', dropped, KEYS[at])) end
local function prune(cap, ids)
  if #ids == 0 then return 0 end
  capped(ids)
  drop(ids, cap)
  redis.pcall('HINCRBY', stats, 'dead_dropped', #ids)
  return #ids
end
local counts = {}
for at = 8, #KEYS do
  local cap = KEYS[at]
  local most_jobs, most_bytes = tonumber(ARGV[2 * at - 13]), tonumber(ARGV[2 * at - 12])
  local old = redis.call('ZRANGEBYSCORE', cap, '-inf', now() - age, 'LIMIT', 0, batch)
  counts[#counts + 1] = prune(cap, old)
  counts[#counts + 1] = before[at] + prune(cap, surplus(cap, most_jobs, most_bytes, 0, batch))
end
redis.call('DEL', dropped)
return counts
