-- Gives orphans back, each to the front of the queue it came from or on probation, and counts it.
-- KEYS: the owner's facts, private list, public queue list, flag, stats, the owner's running
--       jobs, probation list, lists with probation, then each job's counters
-- ARGV: 1 when the owner must be marked reaped (0: a live owner asks for a job of its own
--       whose pool child was lost), window in s, ms of the queue's x-expires (0: none), queue
--       list, owner, reason, then for each job, newest first: payload, recoveries the decision
--       saw, strikes from now on, blame ("exact", "suspect" or ""), 1 for probation, claim id
-- Returns: for each job "ok", or "unmarked", "moved", "recounted" when its decision no longer
--       holds
-- Crash: each job is in exactly one list and counted if it moved. All move at once, so that a
--       consumer that waits gets the oldest and not the first that was moved.
local facts, private, queue, flag, stats, running, probation, on_probation =
  KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6], KEYS[7], KEYS[8]
local marked, window, expires = ARGV[1] == '1', tonumber(ARGV[2]), tonumber(ARGV[3])
local queue_list, owner, reason = ARGV[4], ARGV[5], ARGV[6]
local kind = redis.call('TYPE', queue).ok
if kind ~= 'list' and kind ~= 'none' then
  return redis.error_reply("WRONGTYPE '" .. queue .. "' is no queue, it holds a " .. kind)
end
local unmarked = marked and redis.call('HGET', facts, 'state') ~= 'reaped'
local now = tonumber(redis.call('TIME')[1])

local function count(counters, strikes, blame)
  redis.call('HINCRBY', counters, 'recoveries', 1)
  redis.call('HSET', counters, 'strikes', strikes)
  -- The latest few are enough to tell the story; the field must not grow without bound.
  local history = cjson.decode(redis.call('HGET', counters, 'history') or '[]')
  history[#history + 1] = {owner = owner, reason = reason, strike = blame, at = now}
  while #history > 20 do table.remove(history, 1) end
  redis.call('HSET', counters, 'history', cjson.encode(history))
  if redis.call('TTL', counters) < 0 then redis.call('EXPIRE', counters, window) end
end
local function forget(id)
  if id == '' then return end
  if marked then
    -- Of those that ran at its owner's death it stays one.
    redis.call('HSET', running, id, 'struck')
    return
  end
  redis.call('HDEL', running, id)
  if redis.call('HGET', running, 'alone') == id then redis.call('HDEL', running, 'alone') end
end

local outcomes, total, suspects = {}, 0, {}
for i = 1, #KEYS - 8 do
  local counters, at = KEYS[8 + i], 1 + 6 * i
  local payload, expected, strikes, blame, id =
    ARGV[at], ARGV[at + 1], ARGV[at + 2], ARGV[at + 3], ARGV[at + 5]
  if unmarked then
    outcomes[i] = 'unmarked'
  elseif (redis.call('HGET', counters, 'recoveries') or '0') ~= expected then
    outcomes[i] = 'recounted'
  elseif redis.call('LREM', private, 1, payload) == 0 then
    outcomes[i] = 'moved'
  else
    count(counters, strikes, blame)
    forget(id)
    if ARGV[at + 4] == '1' then
      suspects[#suspects + 1] = payload
      redis.call('HSET', counters, 'probation', 1)
    else
      redis.call('RPUSH', queue, payload)
      -- Its own app may never let it run alone, where another's had put it there.
      redis.call('HDEL', counters, 'probation')
    end
    outcomes[i], total = 'ok', total + 1
  end
end
-- Behind those that wait already, the oldest first.
for i = #suspects, 1, -1 do redis.call('LPUSH', probation, suspects[i]) end
if #suspects > 0 then redis.call('SADD', on_probation, queue_list) end
if total > 0 then
  if expires > 0 and total > #suspects then redis.call('PEXPIRE', queue, expires) end
  redis.call('SET', flag, 1, 'EX', window)
  redis.call('HINCRBY', stats, 'recovered', total)
end
return outcomes
