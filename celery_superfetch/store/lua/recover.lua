-- Gives orphans back, each to the front of the queue it came from or on probation, and counts it. What
-- they have handed on stays noted, for their next claim.
-- KEYS: the owner's facts, private list, public queue list, flag, stats, probation list, lists with
--       probation, then each job's counters
-- ARGV: 1 when the owner must be marked reaped (0: a live owner asks for a job of its own
--       whose pool child was lost), window in s, ms of the queue's x-expires (0: none), queue
--       list, owner, reason, then for each job, newest first: claim id, recoveries the decision
--       saw, strikes from now on, blame ("exact", "suspect" or ""), which solitude is its
--       next (0: it is not on probation)
-- Returns: for each job "ok", or "unmarked", "moved", "recounted" when its decision no longer
--       holds
-- Crash: each job is in exactly one list and counted if it moved. All move at once, so that a
--       consumer that waits gets the oldest and not the first that was moved.
local facts, private, queue, flag, stats, probation, on_probation = unpack(KEYS, 1, 7)
local marked, window, expires = ARGV[1] == '1', tonumber(ARGV[2]), tonumber(ARGV[3])
local queue_list, owner, reason = ARGV[4], ARGV[5], ARGV[6]
local no = wrong(queue, probation)
if no then return no end
local unmarked = marked and redis.call('HGET', facts, 'state') ~= 'reaped'
redis.call('SISMEMBER', on_probation, queue_list)
local now = tonumber(redis.call('TIME')[1])
local jobs = #KEYS - 7
-- All is read before anything moves, whatever for: what has another type is found here.
local before, payloads, steps = {}, {}, {}
for i = 1, jobs do
  before[i] = redis.call('HMGET', KEYS[7 + i], 'recoveries', 'history', 'probation', 'token')
  local id = ARGV[2 + 5 * i]
  payloads[i], steps[i] = unpack(redis.call('HMGET', private, id, 's' .. id))
end
local function history(before, blame, id)
  local readable, entries = pcall(cjson.decode, before or '[]')
  if not readable or type(entries) ~= 'table' then entries = {} end
  -- A live owner asks again if it heard no answer, and for one job at a time.
  local claim = not marked and id or nil
  table.insert(entries, {owner = owner, reason = reason, strike = blame, at = now, claim = claim})
  -- The latest few are enough to tell the story; the field must not grow without bound.
  while #entries > 20 do table.remove(entries, 1) end
  return cjson.encode(entries)
end

local outcomes, counted, recovered = {}, {}, 0
local function recover(i)
  local counters, at = KEYS[7 + i], 2 + 5 * i
  local id, expected, strikes, blame, solitude = unpack(ARGV, at, at + 4)
  local suspect = solitude ~= '0'
  local events = history(before[i][2], blame, id)
  if suspect then
    redis.call('SADD', on_probation, queue_list)
    redis.call('LPUSH', probation, payloads[i])
  else
    redis.call('RPUSH', queue, payloads[i])
  end
  redis.call('HDEL', private, id, 'w' .. id, 's' .. id)
  if expires > 0 and not suspect then redis.call('PEXPIRE', queue, expires) end
  redis.call('HSET', counters, 'recoveries', expected + 1, 'strikes', strikes, 'history', events,
    'token', token(id, counters, before[i][4]))
  if steps[i] then redis.call('HSET', counters, 'steps', steps[i]) end
  if suspect then
    redis.call('HSET', counters, 'probation', solitude)
  elseif before[i][3] then
    -- Its own app may never let it run alone, where another's had put it there.
    redis.call('HDEL', counters, 'probation')
  end
  if redis.call('TTL', counters) < 0 then redis.call('EXPIRE', counters, window) end
  recovered = recovered + 1
  count_by_task(stats, 'recovered', queue_list, payloads[i])
end
redis.call('HDEL', private, 'w')  -- a removal first (shared.lua)
for i = 1, jobs do
  local counters, at = KEYS[7 + i], 2 + 5 * i
  if unmarked then
    outcomes[i] = 'unmarked'
  elseif not payloads[i] then
    outcomes[i] = 'moved'
  elseif counted[counters] or (before[i][1] or '0') ~= ARGV[at + 1] then
    outcomes[i] = 'recounted'
  else
    outcomes[i], counted[counters] = 'ok', true
    if ARGV[at + 4] == '0' then recover(i) end
  end
end
-- Suspects come behind those that wait already, the oldest first.
for i = jobs, 1, -1 do
  if outcomes[i] == 'ok' and ARGV[6 + 5 * i] ~= '0' then recover(i) end
end
if recovered > 0 then
  flagged(flag, window)
  redis.pcall('HINCRBY', stats, 'recovered', recovered)
end
return outcomes
