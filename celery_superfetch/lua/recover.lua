-- Gives orphans back to the front of the queue they came from, and counts that.
-- KEYS: the owner's facts, private list, public queue list, flag, stats, the owner's running
--       jobs, then each job's counters
-- ARGV: 1 when the owner must be marked reaped (0: a live owner asks for a job of its own
--       whose pool child was lost), window in s, ms of the queue's x-expires (0: none), owner,
--       reason, then for each job, newest first: payload, recoveries the decision saw, 1 for
--       a strike, claim id
-- Returns: for each job "ok", or "unmarked", "moved", "recounted" when its decision no longer
--       holds
-- Crash: each job is in exactly one list and counted if it moved. All move at once, so that a
--       consumer that waits gets the oldest and not the first that was moved.
local facts, private, queue, flag, stats, running =
  KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6]
local marked, window, expires = ARGV[1] == '1', tonumber(ARGV[2]), tonumber(ARGV[3])
local owner, reason = ARGV[4], ARGV[5]
local kind = redis.call('TYPE', queue).ok
if kind ~= 'list' and kind ~= 'none' then
  return redis.error_reply("WRONGTYPE '" .. queue .. "' is no queue, it holds a " .. kind)
end
local unmarked = marked and redis.call('HGET', facts, 'state') ~= 'reaped'
local now = tonumber(redis.call('TIME')[1])

local function count(counters, strike)
  redis.call('HINCRBY', counters, 'recoveries', 1)
  if strike > 0 then redis.call('HINCRBY', counters, 'strikes', 1) end
  -- The latest few are enough to tell the story; the field must not grow without bound.
  local history = cjson.decode(redis.call('HGET', counters, 'history') or '[]')
  history[#history + 1] = {owner = owner, reason = reason, strike = strike, at = now}
  while #history > 20 do table.remove(history, 1) end
  redis.call('HSET', counters, 'history', cjson.encode(history))
  if redis.call('TTL', counters) < 0 then redis.call('EXPIRE', counters, window) end
end

local outcomes, total = {}, 0
for i = 1, #KEYS - 6 do
  local counters, at = KEYS[6 + i], 2 + 4 * i
  local payload, expected, strike = ARGV[at], ARGV[at + 1], tonumber(ARGV[at + 2])
  if unmarked then
    outcomes[i] = 'unmarked'
  elseif (redis.call('HGET', counters, 'recoveries') or '0') ~= expected then
    outcomes[i] = 'recounted'
  elseif redis.call('LREM', private, 1, payload) == 0 then
    outcomes[i] = 'moved'
  else
    redis.call('RPUSH', queue, payload)
    redis.call('HDEL', running, ARGV[at + 3])
    count(counters, strike)
    outcomes[i], total = 'ok', total + 1
  end
end
if total > 0 then
  if expires > 0 then redis.call('PEXPIRE', queue, expires) end
  redis.call('SET', flag, 1, 'EX', window)
  redis.call('HINCRBY', stats, 'recovered', total)
end
return outcomes
