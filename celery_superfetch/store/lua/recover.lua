-- Recovers jobs whose runs were lost: returns each to the front of its queue, or to probation, and counts
-- the recovery in its history. The reaper calls it for a dead owner, a live owner for a job whose pool
-- process was lost. Each job's steps note is kept in its history, for the next claim.
-- KEYS: the owner's record, private list, public queue list, flag that some job has a history, stats,
--       probation list, index of queue lists with probation, jobs that many stops cut short, rows of stats,
--       series of the charts, rows of the charts, then each job's history
-- ARGV: 1 if the owner must be marked reaped (0: a live owner calls), seconds to keep a history, ms of
--       the queue's x-expires (0: none), queue list, owner, reason, most stops with which a job goes to
--       the front, stops from which on `status` names a job, then for each job, newest first: claim id,
--       recoveries that the decision saw, strikes from now on, blame ("exact", "suspect", "stop" or ""),
--       number of its next solo run (0: it is not on probation), 1 where its own process was lost and
--       its owner lives, its record for `status`, name of its task (empty: it is not registered)
-- Returns: for each job "ok"; or why its decision no longer holds: "unmarked" (the owner lives), "moved"
--       (it is not in the private list), "recounted" (its history has changed)
-- Crash: each job is in exactly one list, and counted if it moved. All move at once, so that a waiting
--       consumer gets the oldest and not the first that was moved. A repetition finds "moved".
local owner_record, private, queue, flag, stats, probation, on_probation, stopped, rows, minutes, minute_rows =
  unpack(KEYS, 1, 11)
local marked, window, expires = ARGV[1] == '1', tonumber(ARGV[2]), tonumber(ARGV[3])
local queue_list, owner, reason = ARGV[4], ARGV[5], ARGV[6]
local to_front, named = tonumber(ARGV[7]), tonumber(ARGV[8])
local OF_ALL, OF_EACH, FIRST_KEY = 8, 8, 11  -- arguments, and the keys before the histories
local function args_of(i) return unpack(ARGV, OF_ALL + OF_EACH * (i - 1) + 1, OF_ALL + OF_EACH * i) end
local no = wrong(queue, probation)
if no then return no end
local unmarked = marked and redis.call('HGET', owner_record, 'state') ~= 'reaped'
read_note('set', 'SISMEMBER', on_probation, queue_list)
local jobs = #KEYS - FIRST_KEY
-- All is read before anything moves: if the private list or the owner's record has another type, the script
-- raises here, while each job is in its place. A history of another type counts as none.
local before, payloads, steps = {}, {}, {}
for i = 1, jobs do
  before[i] = read_note('hash', 'HMGET', KEYS[FIRST_KEY + i], 'recoveries', 'history', 'solo_runs',
    'token', 'quiesced', 'stops', 'deaths', 'alongside')
  local id = args_of(i)
  payloads[i], steps[i] = unpack(redis.call('HMGET', private, id, 's' .. id))
end

local outcomes, counted, recovered = {}, {}, 0
local function recover(i)
  local history = KEYS[FIRST_KEY + i]
  local id, expected, strikes, blame, solo_runs, own, record, task = args_of(i)
  local _, entries, was_suspect, token_before, quiesced = unpack(before[i], 1, 5)
  local suspect, is_stop = solo_runs ~= '0', blame == 'stop'
  local is_strike = blame == 'exact' or blame == 'suspect'
  local function one_more(at) return counter(before[i][at]) + 1 end
  local stops, deaths, alongside = one_more(6), one_more(7), one_more(8)
  -- If a live owner does not get the reply, it finds by this entry that the job was counted (`_settle` in
  -- `settlement.py`): else it would count the loss twice.
  local claim = not marked and id or nil
  entries = with_entry(entries, {owner = owner, reason = reason, strike = is_strike and blame or '',
    stop = is_stop or nil, claim = claim})
  if suspect then
    redis.call('SADD', on_probation, queue_list)
    -- If a quiesce for it was in vain, it may run alongside others, and the next owner claims it. Other
    -- suspects go behind those that wait.
    redis.call(quiesced and 'RPUSH' or 'LPUSH', probation, payloads[i])
  else
    -- If a job that stops its worker always came first again, it would starve all others.
    redis.call(is_stop and stops > to_front and 'LPUSH' or 'RPUSH', queue, payloads[i])
  end
  redis.call('HDEL', private, id, 'w' .. id, 's' .. id)
  if expires > 0 and not suspect then redis.call('PEXPIRE', queue, expires) end
  redis.call('HSET', history, 'recoveries', expected + 1, 'strikes', strikes, 'history', entries,
    'token', token(id, history, token_before))
  if not token_before then redis.call('HSET', history, 'first_claim', string.match(id, '^%d+') or 0) end
  if steps[i] then redis.call('HSET', history, 'steps', steps[i]) end
  if is_stop then redis.call('HSET', history, 'stops', stops) end
  if is_strike and own == '0' then redis.call('HSET', history, 'deaths', deaths) end
  if blame == 'suspect' then redis.call('HSET', history, 'alongside', alongside) end
  if suspect then
    redis.call('HSET', history, 'solo_runs', solo_runs)
  elseif was_suspect then
    -- If another app had put it on probation, and its own has no strike limit, it would stay there.
    redis.call('HDEL', history, 'solo_runs')
  end
  if redis.call('TTL', history) < 0 then redis.call('EXPIRE', history, window) end
  if is_stop and stops >= named then name_stopped(stopped, record, window) end
  recovered = recovered + 1
  count_by_task(stats, rows, 'recovered', queue_list, task)
end
redis.call('HDEL', private, 'w')  -- a removal first (shared.lua)
delete_foreign(stats)
local suspects = {}
for i = 1, jobs do
  local history = KEYS[FIRST_KEY + i]
  local _, expected, _, _, solo_runs = args_of(i)
  if unmarked then
    outcomes[i] = 'unmarked'
  elseif not payloads[i] then
    outcomes[i] = 'moved'
  elseif counted[history] or counter(before[i][1]) ~= tonumber(expected) then
    outcomes[i] = 'recounted'
  else
    outcomes[i], counted[history] = 'ok', true
    if solo_runs == '0' then recover(i) else suspects[#suspects + 1] = i end
  end
end
-- Suspects go behind those that wait already, the oldest first.
for at = #suspects, 1, -1 do recover(suspects[at]) end
if recovered > 0 then
  flagged(flag, window)
  redis.pcall('HINCRBY', stats, 'recovered', recovered)
  chart(minutes, minute_rows, 'recovered', queue_list, recovered)
end
return outcomes
