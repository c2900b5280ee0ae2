-- Moves one job from a private list to the dead set, whole.
-- KEYS: the owner's facts, private list, the job's counters, dead set, dead jobs, junk,
--       unannounced, stats, the owner's running jobs
-- ARGV: payload, 1 when the owner must be marked reaped, recoveries the decision saw, job id,
--       record (JSON), most jobs in the dead set, 1 for junk, most junk, claim id
-- Returns: "ok"; "unmarked", "moved" or "recounted" when the decision no longer holds
-- Crash: the job is in the dead set, unannounced; a later pass announces it.
local facts, private, counters, dead, jobs, junk, unannounced, stats, running =
  KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6], KEYS[7], KEYS[8], KEYS[9]
local payload, marked, expected, id, record = ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5]
local most, is_junk, most_junk = tonumber(ARGV[6]), ARGV[7] == '1', tonumber(ARGV[8])
if marked == '1' and redis.call('HGET', facts, 'state') ~= 'reaped' then return 'unmarked' end
if (redis.call('HGET', counters, 'recoveries') or '0') ~= expected then return 'recounted' end
if redis.call('LREM', private, 1, payload) == 0 then return 'moved' end
if marked ~= '1' then
  redis.call('HDEL', running, ARGV[9])
  if redis.call('HGET', running, 'alone') == ARGV[9] then redis.call('HDEL', running, 'alone') end
elseif ARGV[9] ~= '' then
  -- Of those that ran at its owner's death it stays one.
  redis.call('HSET', running, ARGV[9], 'struck')
end
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
redis.call('DEL', counters)
redis.call('ZADD', dead, now, id)
redis.call('HSET', jobs, id, record)
redis.call('HINCRBY', stats, 'killed', 1)
if is_junk then
  redis.call('ZADD', junk, now, id)
else
  redis.call('SADD', unannounced, id)
end
local function drop(oldest)
  if not oldest then return end
  redis.call('ZREM', dead, oldest)
  redis.call('ZREM', junk, oldest)
  redis.call('HDEL', jobs, oldest)
  redis.call('SREM', unannounced, oldest)
  redis.call('HINCRBY', stats, 'dead_dropped', 1)
end
-- One came, so at most a few have to go; a lowered limit is reached over several kills.
for _ = 1, 10 do
  if redis.call('ZCARD', dead) > most then drop(redis.call('ZRANGE', dead, 0, 0)[1]) end
  if redis.call('ZCARD', junk) > most_junk then drop(redis.call('ZRANGE', junk, 0, 0)[1]) end
end
return 'ok'
