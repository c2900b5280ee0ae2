-- Registers an owner, or writes its facts anew, and counts as a heartbeat.
-- KEYS: owners, the owner's facts, its host's owners, lists with probation, tombstones
-- ARGV: owner, then field and value of each fact
-- Returns: as a heartbeat does, with no quiet owners; or {"reaped"} when this owner was taken
--       for dead
-- Crash: the caller is registered and claims nothing; it is judged like any owner.
local owners, facts, host, reaped = KEYS[1], KEYS[2], KEYS[3], KEYS[5]
local owner = ARGV[1]
if redis.call('ZSCORE', reaped, owner) or redis.call('HGET', facts, 'state') == 'reaped' then
  return {'reaped'}
end
local probation = redis.call('SMEMBERS', KEYS[4])
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
-- The removal first: a server over its memory limit allows what follows a write.
redis.call('ZREM', owners, owner)
redis.call('ZADD', owners, now, owner)
for i = 2, #ARGV, 2 do
  redis.call('HSET', facts, ARGV[i], ARGV[i + 1])
end
redis.call('HSETNX', facts, 'registered_at', now)
redis.call('SADD', host, owner)
return {'ok', now, {}, redis.call('SMEMBERS', host), probation}
