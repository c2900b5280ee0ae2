-- Claims the next job on probation, for an owner that has no other job; or for an owner that has others, if
-- a quiesce for this job was in vain. Of a paused queue it claims none.
-- KEYS: owners, index of queue lists with probation, probation list, the owner's private list, the
--       paused queues
-- ARGV: owner, queue list, prefix of histories, 1 where the job would run alongside others, the queue of the
--       list, claim id
-- Returns: {"ok", payload, {recoveries, strikes, requeues, token, steps, stops, first claim, probation}};
--       {"none"} when none waits, {"waits"} when it may not run alongside others, {"paused"} when its queue is
--       paused, {"unregistered"}
-- Crash: the job is in the private list of a registered owner, recorded as running from its claim on: the
--       worker may be killed by decoding it, and that is a strike.
local owners, on_probation, probation, private, paused = unpack(KEYS)
local owner, queue_list, histories, alongside, queue, id = unpack(ARGV)
if not redis.call('ZSCORE', owners, owner) then return {'unregistered'} end
-- A key of another type pauses nothing.
if redis.pcall('HEXISTS', paused, queue) == 1 then return {'paused'} end
read_note('set', 'SISMEMBER', on_probation, queue_list)
redis.call('RPOP', probation, 0)  -- a removal first, and arrival before departure (shared.lua)
local payload = redis.call('LRANGE', probation, -1, -1)[1]
if not payload then
  delete_foreign()
  redis.call('SREM', on_probation, queue_list)
  return {'none'}
end
local history = histories .. redis.sha1hex(payload)
local mark = read_note('hash',
  'HMGET', history, 'recoveries', 'strikes', 'requeues', 'token', 'steps', 'stops', 'first_claim',
  'solo_runs')
local may_run_alongside = redis.pcall('HEXISTS', history, 'quiesced') == 1
if alongside == '1' and not may_run_alongside then return {'waits'} end
delete_foreign()
if mark[5] then redis.call('HSET', private, 's' .. id, mark[5]) end
redis.call('HSET', private, id, payload)
redis.call('RPOP', probation)
if redis.call('EXISTS', probation) == 0 then redis.call('SREM', on_probation, queue_list) end
return {'ok', payload, mark}
