-- Claims the job that has waited longest on probation, for an owner that runs nothing.
-- KEYS: owners, lists with probation, the owner's running jobs, probation list, private list
-- ARGV: owner, queue list, prefix of counters, claim id
-- Returns: {"ok", payload, {recoveries, strikes, requeues}}; {"none"} when none waits, {"busy"}
--       when the owner runs something, {"unregistered"}
-- Crash: the job is in the private list of a registered owner, and counts there as if it ran,
--       with nothing beside it: it may kill whoever decodes it. "?" says that it was not started.
local owners, on_probation, running, probation, private =
  KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local owner, queue_list, counters, id = ARGV[1], ARGV[2], ARGV[3], ARGV[4]
if not redis.call('ZSCORE', owners, owner) then return {'unregistered'} end
for _, value in ipairs(redis.call('HVALS', running)) do
  if value ~= '-' then return {'busy'} end
end
local payload = redis.call('RPOP', probation)
if redis.call('EXISTS', probation) == 0 then redis.call('SREM', on_probation, queue_list) end
if not payload then return {'none'} end
redis.call('LPUSH', private, payload)
local digest = redis.sha1hex(payload)
redis.call('HSET', running, 'alone', id, id, '?' .. digest)
local mark = redis.call('HMGET', counters .. digest, 'recoveries', 'strikes', 'requeues')
return {'ok', payload, mark}
