-- Takes, renews or gives back the right to announce a killed job, and notes how far that came.
-- KEYS: unannounced, the job's announcement, dead set, owners, the running jobs of whoever asks
-- ARGV: job id, who asks, its owner (empty: it is none), for how many ms nobody else may then, TTL in
--       s, what to add to the tries, then field and value of each thing to note
-- Returns: time of death in ms, number of tries, chord, told, pause; nil when the job is announced, or by
--       somebody else, or is left alone
-- Crash: the right ends with the owner, or with its time, and the next who takes it reads what was noted.
--       It counts among what the owner ran: it may have been what ended it.
local unannounced, announcement, dead, owners, running = unpack(KEYS)
local id, who, owner, time_limit, ttl = ARGV[1], ARGV[2], ARGV[3], tonumber(ARGV[4]), tonumber(ARGV[5])
if owner == '' then redis.call('HDEL', running, id) end
if redis.call('SISMEMBER', unannounced, id) == 0 then return nil end
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
-- A job that was put back by hand meanwhile, and killed again, is announced from the start.
local died = redis.call('ZSCORE', dead, id) or '0'
local holder, its_owner, ends, told_of = unpack(redis.call('HMGET', announcement, 'who', 'owner', 'ends', 'died'))
if told_of ~= died then
  redis.call('DEL', announcement)
elseif holder ~= who then
  -- An owner that hangs lives: what was taken from it would count as a crash.
  local lives = its_owner and its_owner ~= ''
  if lives then lives = redis.call('ZSCORE', owners, its_owner) else lives = tonumber(ends) > now end
  if lives then return nil end
end
redis.call('HSET', announcement, 'who', who, 'owner', owner, 'ends', now + time_limit, 'died', died)
redis.call('HINCRBY', announcement, 'tries', ARGV[6])
for at = 7, #ARGV, 2 do redis.call('HSET', announcement, ARGV[at], ARGV[at + 1]) end
redis.call('EXPIRE', announcement, ttl)
if redis.call('ZSCORE', owners, owner) then redis.call('HSET', running, id, 'announcing') end
return redis.call('HMGET', announcement, 'died', 'tries', 'chord', 'told', 'pause')
