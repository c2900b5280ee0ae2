-- Puts one job of the dead set back on a queue, as if it were new; only the steps that it has published
-- stay in its history, so that they are not published again.
-- KEYS: dead set, dead jobs, the caps of each, unannounced, bytes under each cap, stats, queue list, the
--       job's history, the lock of its retry, flag that some job has a history
-- ARGV: job id, payload, ms of the queue's x-expires (0: the caller knows none), its steps note (empty: it
--       has none), seconds to keep a history
-- Returns: 1, or 0 if the job is no longer in the dead set
-- Crash: the job is in exactly one of the two.
local jobs, stats, queue, counters, lock, flag = KEYS[2], unpack(KEYS, 6, 10)
local id, payload, steps = ARGV[1], ARGV[2], ARGV[4]
local expires, window = tonumber(ARGV[3]), tonumber(ARGV[5])
redis.call('DEL', lock)
local no = wrong(queue)
if no then return no end
local caps = capped({id})
if redis.call('HEXISTS', jobs, id) == 0 then return 0 end
-- An x-expires that the caller does not know may be over in a moment. The queue's users set it again.
redis.call('PERSIST', queue)
redis.call('HDEL', jobs, '')  -- a removal first, and arrival before departure (shared.lua)
redis.call('LPUSH', queue, payload)
redis.call('HDEL', jobs, id)
drop({id}, caps)
if expires > 0 then redis.call('PEXPIRE', queue, expires) end
redis.call('DEL', counters)
if steps ~= '' then
  redis.call('HSET', counters, 'steps', steps)
  redis.call('EXPIRE', counters, window)
  flagged(flag, window)
end
redis.pcall('HINCRBY', stats, 'retried', 1)
return 1
