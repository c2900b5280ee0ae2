-- Requeues jobs without a strike; jobs on probation go back to their probation list, except in a rollback.
-- If the worker's stop cut a run short, it counts as a stop. Each job's steps note is kept in its history,
-- for the next claim.
-- KEYS: private list, public queue list, flag that some job has a history, stats, probation list, index of
--       queue lists with probation, jobs that many stops cut short, rows of stats, then each job's history
-- ARGV: queue list, "front" (next to be claimed), "back" or "rollback" (to the front of the queue, from
--       probation, too), seconds to keep a history, ms of the queue's x-expires (0: none), owner, most stops
--       with which a job goes to the front, stops from which on `status` names a job, then for each job its
--       claim id, its record for `status` if a stop cut its run short (empty: none did), and name of its
--       task (empty: it is not registered); for the front the newest first
-- Returns: the numbers (from 1) of the jobs that were not in the private list; the others were requeued
-- Crash: each job is in exactly one of the lists. All move at once, so that a waiting consumer gets the
--       oldest and not the first that was moved. A repetition finds nothing more to do.
local private, queue, flag, stats, probation, on_probation, stopped, rows = unpack(KEYS, 1, 8)
local queue_list, push = ARGV[1], ARGV[2] == 'back' and 'LPUSH' or 'RPUSH'
local window, expires, owner = tonumber(ARGV[3]), tonumber(ARGV[4]), ARGV[5]
local to_front, named = tonumber(ARGV[6]), tonumber(ARGV[7])
local no = wrong(queue, probation)
if no then return no end
read_note('set', 'SISMEMBER', on_probation, queue_list)
local jobs, payloads, steps, earlier = #KEYS - 8, {}, {}, {}
for i = 1, jobs do
  local id = ARGV[5 + 3 * i]
  payloads[i], steps[i] = unpack(redis.call('HMGET', private, id, 's' .. id))
  earlier[i] = read_note('hash', 'HMGET', KEYS[i + 8], 'solo_runs', 'token', 'stops', 'history')
end
redis.call('HDEL', private, 'w')  -- a removal first (shared.lua)
delete_foreign(stats)
local total, to_queue, gone, missing = 0, false, {}, {}
for i = 1, jobs do
  local id, record, task, history = ARGV[5 + 3 * i], ARGV[6 + 3 * i], ARGV[7 + 3 * i], KEYS[i + 8]
  local payload, suspected, token_before, stops, entries = payloads[i], unpack(earlier[i], 1, 4)
  if payload and not gone[id] then
    total, gone[id] = total + 1, true
    local is_stop = record ~= ''
    stops = counter(stops) + 1
    -- If a job that stops its worker always came first again, it would starve all others.
    local push = is_stop and stops > to_front and 'LPUSH' or push
    if suspected and ARGV[2] ~= 'rollback' then
      redis.call('SADD', on_probation, queue_list)
      redis.call(push, probation, payload)
    else
      redis.call(push, queue, payload)
      to_queue = true
    end
    redis.call('HDEL', private, id, 'w' .. id, 's' .. id)
    count_requeue(history, id, token_before, steps[i], window)
    if is_stop then
      redis.pcall('HSET', history, 'stops', stops)
      local entry = {owner = owner, reason = 'its worker was stopping', strike = '', stop = true}
      redis.pcall('HSET', history, 'history', with_entry(entries, entry))
      if stops >= named then name_stopped(stopped, record, window) end
    end
    count_by_task(stats, rows, 'requeued', queue_list, task)
  else
    missing[#missing + 1] = i
  end
end
if total > 0 then
  if expires > 0 and to_queue then redis.call('PEXPIRE', queue, expires) end
  flagged(flag, window)
  redis.pcall('HINCRBY', stats, 'requeued', total)
end
return missing
