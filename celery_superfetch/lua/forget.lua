-- Deletes jobs of the dead set for good, by id or by age.
-- KEYS: dead set, dead jobs, junk, unannounced, stats
-- ARGV: name of the counter to raise, ms of age from which on jobs go (0: none), most to
--       delete by age, then job ids
-- Returns: number of jobs deleted
-- Crash: each job is there whole or gone.
local dead, jobs, junk, unannounced, stats = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local counter, age, most = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])
local ids = {}
for i = 4, #ARGV do ids[#ids + 1] = ARGV[i] end
if age > 0 then
  local time = redis.call('TIME')
  local now = time[1] * 1000 + math.floor(time[2] / 1000)
  ids = redis.call('ZRANGEBYSCORE', dead, '-inf', now - age, 'LIMIT', 0, most)
end
local deleted = 0
for _, id in ipairs(ids) do
  deleted = deleted + redis.call('HDEL', jobs, id)
  redis.call('ZREM', dead, id)
  redis.call('ZREM', junk, id)
  redis.call('SREM', unannounced, id)
end
if deleted > 0 then redis.call('HINCRBY', stats, counter, deleted) end
return deleted
