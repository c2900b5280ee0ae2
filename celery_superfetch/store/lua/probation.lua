-- Claims the job that has waited longest on probation, for an owner that runs nothing.
-- KEYS: owners, lists with probation, probation list, the owner's private list
-- ARGV: owner, queue list, prefix of counters, claim id
-- Returns: {"ok", payload, {recoveries, strikes, requeues, token, steps, probation}};
--       {"none"} when none waits, {"unregistered"}
-- Crash: the job is in the private list of a registered owner, and counts there as if it ran: it
--       may kill whoever decodes it.
local owners, on_probation, probation, private = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local owner, queue_list, counters, id = ARGV[1], ARGV[2], ARGV[3], ARGV[4]
if not redis.call('ZSCORE', owners, owner) then return {'unregistered'} end
redis.call('SISMEMBER', on_probation, queue_list)
redis.call('RPOP', probation, 0)  -- a removal first, and arrival before departure (shared.lua)
local payload = redis.call('LRANGE', probation, -1, -1)[1]
if not payload then
  redis.call('SREM', on_probation, queue_list)
  return {'none'}
end
local digest = redis.sha1hex(payload)
local mark = redis.call(
  'HMGET', counters .. digest, 'recoveries', 'strikes', 'requeues', 'token', 'steps', 'probation')
if mark[5] then redis.call('HSET', private, 's' .. id, mark[5]) end
redis.call('HSET', private, id, payload)
redis.call('RPOP', probation)
if redis.call('EXISTS', probation) == 0 then redis.call('SREM', on_probation, queue_list) end
return {'ok', payload, mark}
