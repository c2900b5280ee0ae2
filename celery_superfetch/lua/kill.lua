-- Moves one job from a private list to the dead set, whole.
-- KEYS: the owner's facts, private list, the job's counters, dead set, dead jobs, junk,
--       unannounced, stats, the owner's running jobs, overflow
-- ARGV: payload, 1 when the owner must be marked reaped, recoveries the decision saw, job id,
--       record (JSON), most jobs in the dead set, 1 for junk, most junk, claim id
-- Returns: {"ok", id in the dead set}; {"unmarked"}, {"moved"} or {"recounted"} when the decision
--       no longer holds
-- Crash: the job is in the dead set, unannounced; a later pass announces it.
local facts, private, counters, dead, jobs, junk, unannounced, stats, running, overflow =
  KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6], KEYS[7], KEYS[8], KEYS[9], KEYS[10]
local payload, marked, expected, id, record = ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5]
local most, is_junk, most_junk = tonumber(ARGV[6]), ARGV[7] == '1', tonumber(ARGV[8])
if marked == '1' and redis.call('HGET', facts, 'state') ~= 'reaped' then return {'unmarked'} end
if (redis.call('HGET', counters, 'recoveries') or '0') ~= expected then return {'recounted'} end
-- Its death was the fault of one run: a copy that waited in the same list is not killed with it.
-- The counters do not tell where the first strike is the last.
if marked == '1' and ARGV[9] ~= '' then
  local ran = redis.call('HGET', running, ARGV[9])
  if ran ~= id and ran ~= '?' .. id then return {'recounted'} end
end
if redis.call('LREM', private, 1, payload) == 0 then return {'moved'} end
if marked ~= '1' then
  redis.call('HDEL', running, ARGV[9])
  if redis.call('HGET', running, 'alone') == ARGV[9] then redis.call('HDEL', running, 'alone') end
elseif ARGV[9] ~= '' then
  -- Of those that ran at its owner's death it stays one.
  redis.call('HSET', running, ARGV[9], 'struck')
end
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
-- Another item of the same bytes is there: both are kept, or killing one would lose the other.
-- By microseconds, a free name is found at once however many there are.
local name, number = id, time[1] * 1000000 + time[2]
while redis.call('HSETNX', jobs, name, record) == 0 do
  name, number = string.format('%s-%.0f', id, number), number + 1
end
redis.call('DEL', counters)
redis.call('ZADD', dead, now, name)
redis.call('HINCRBY', stats, 'killed', 1)
if is_junk then
  redis.call('ZADD', junk, now, name)
else
  redis.call('SADD', unannounced, name)
end
local function drop(oldest)
  if not oldest then return end
  redis.call('ZREM', dead, oldest)
  redis.call('ZREM', junk, oldest)
  redis.call('HDEL', jobs, oldest)
  redis.call('SREM', unannounced, oldest)
  redis.call('HINCRBY', stats, 'dead_dropped', 1)
  redis.call('SET', overflow, (redis.call('GET', overflow) or 0) + 1)
end
-- One came, so one has to go; a lowered limit is reached by `trim`.
if redis.call('ZCARD', dead) > most then drop(redis.call('ZRANGE', dead, 0, 0)[1]) end
if redis.call('ZCARD', junk) > most_junk then drop(redis.call('ZRANGE', junk, 0, 0)[1]) end
return {'ok', name}
