-- Takes, renews or gives back the right to announce a killed job, and notes how far that came.
-- KEYS: unannounced, the job's announcement, dead set
-- ARGV: job id, who asks, how long it may take in ms (0: give the right back), TTL in s,
--       1 for a new try, then field and value of each thing to note
-- Returns: time of death in ms, number of tries, chord, told; nil when the job is announced, or by somebody else
-- Crash: the right ends with its time, and the next who takes it reads what was noted.
local unannounced, announcement, dead = KEYS[1], KEYS[2], KEYS[3]
local id, who, time_limit, ttl = ARGV[1], ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4])
if redis.call('SISMEMBER', unannounced, id) == 0 then return nil end
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
-- A job that was put back by hand meanwhile, and killed again, is announced from the start.
local died = redis.call('ZSCORE', dead, id) or '0'
if redis.call('HGET', announcement, 'died') ~= died then redis.call('DEL', announcement) end
local holder, ends = unpack(redis.call('HMGET', announcement, 'who', 'ends'))
if holder and holder ~= who and tonumber(ends) > now then return nil end
redis.call('HSET', announcement, 'who', who, 'ends', now + time_limit, 'died', died)
if ARGV[5] == '1' then redis.call('HINCRBY', announcement, 'tries', 1) end
-- One that gives the right back was not killed by what it did: that try does not count.
if time_limit == 0 then redis.call('HINCRBY', announcement, 'tries', -1) end
for at = 6, #ARGV, 2 do redis.call('HSET', announcement, ARGV[at], ARGV[at + 1]) end
redis.call('EXPIRE', announcement, ttl)
return redis.call('HMGET', announcement, 'died', 'tries', 'chord', 'told')
