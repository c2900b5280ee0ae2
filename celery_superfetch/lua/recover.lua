-- Gives one orphan back to the front of the queue it came from, and counts that.
-- KEYS: the owner's facts, private list, public queue list, the job's counters, flag, stats
-- ARGV: payload, 1 when the owner must be marked reaped (0: a live owner asks for a job of
--       its own whose pool child was lost), recoveries the decision saw, 1 for a strike,
--       window in s, ms of the queue's x-expires (0: none), owner, reason
-- Returns: "ok"; "unmarked", "moved" or "recounted" when the decision no longer holds
-- Crash: the job is in exactly one list and counted if it moved.
local facts, private, queue, counters, flag, stats =
  KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6]
local payload, marked, expected, strike = ARGV[1], ARGV[2], ARGV[3], tonumber(ARGV[4])
local window, expires, owner, reason = tonumber(ARGV[5]), tonumber(ARGV[6]), ARGV[7], ARGV[8]
if marked == '1' and redis.call('HGET', facts, 'state') ~= 'reaped' then return 'unmarked' end
if (redis.call('HGET', counters, 'recoveries') or '0') ~= expected then return 'recounted' end
local kind = redis.call('TYPE', queue).ok
if kind ~= 'list' and kind ~= 'none' then
  return redis.error_reply('WRONGTYPE queue key ' .. queue .. ' holds a ' .. kind)
end
if redis.call('LREM', private, 1, payload) == 0 then return 'moved' end
redis.call('RPUSH', queue, payload)
if expires > 0 then redis.call('PEXPIRE', queue, expires) end
redis.call('HINCRBY', counters, 'recoveries', 1)
if strike > 0 then redis.call('HINCRBY', counters, 'strikes', 1) end
local entry = cjson.encode({owner = owner, reason = reason, strike = strike,
  at = tonumber(redis.call('TIME')[1])})
-- The latest few are enough to tell the story; the field must not grow without bound.
local history = cjson.decode(redis.call('HGET', counters, 'history') or '[]')
history[#history + 1] = cjson.decode(entry)
while #history > 20 do table.remove(history, 1) end
redis.call('HSET', counters, 'owner', owner, 'reason', reason, 'history', cjson.encode(history))
if redis.call('TTL', counters) < 0 then redis.call('EXPIRE', counters, window) end
redis.call('SET', flag, 1, 'EX', window)
redis.call('HINCRBY', stats, 'recovered', 1)
return 'ok'
