-- Starts a job in the process that will run it, unless it is no longer its owner's to run.
-- KEYS: the owner's facts, its running jobs, stats
-- ARGV: claim id, digest, 1 to record the job as running (0: it may be settled already),
--       starts that could not be recorded since this process last asked
-- Returns: "ok"; "reaped" when the owner was taken for dead, "called off" when the owner gave
--       the job back before it was started, "not alone" when it is on probation and another
--       runs, "beside probation" when one on probation does
-- Crash: the job is recorded as running and its process may not have begun. Asking again with
--       the same claim id is harmless.
local facts, running, stats = KEYS[1], KEYS[2], KEYS[3]
local id, digest, record, unrecorded = ARGV[1], ARGV[2], ARGV[3] == '1', tonumber(ARGV[4])
if unrecorded > 0 then redis.call('HINCRBY', stats, 'unrecorded', unrecorded) end
if redis.call('HGET', facts, 'state') == 'reaped' then return 'reaped' end
local known = redis.call('HMGET', running, id, 'alone')
local state, alone = known[1], known[2]
-- The mark stays: the answer may be lost, and the same process ask again.
if state == '-' then return 'called off' end
if alone == id then
  local record = redis.call('HGETALL', running)
  for i = 1, #record, 2 do
    if record[i] ~= 'alone' and record[i] ~= id and record[i + 1] ~= '-' then return 'not alone' end
  end
  redis.call('HSET', running, id, digest)
  return 'ok'
end
-- A task with early ack may be settled already, and could not be given back.
if alone and record then return 'beside probation' end
if record then redis.call('HSET', running, id, digest) end
return 'ok'
