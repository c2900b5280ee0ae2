-- Puts one job of the dead set back on a queue, as if it were new, but that it has handed on what it has.
-- KEYS: dead set, dead jobs, the caps of each, unannounced, bytes under each cap, stats, public queue list,
--       the job's counters, lock of those who retry it, flag
-- ARGV: job id, payload, ms of the queue's x-expires (0: none that we know of), what it has handed on
--       (empty: nothing), seconds for which that is remembered
-- Returns: 1, or 0 when the job is no longer in the dead set
-- Crash: the job is in exactly one of the two.
local jobs, stats, queue, counters, lock, flag = KEYS[2], unpack(KEYS, 6, 10)
local id, payload, steps = ARGV[1], ARGV[2], ARGV[4]
local expires, window = tonumber(ARGV[3]), tonumber(ARGV[5])
redis.call('DEL', lock)
local no = wrong(queue)
if no then return no end
local caps = capped({id})
if redis.call('HEXISTS', jobs, id) == 0 then return 0 end
-- An x-expires that is known to others only may be over in a moment. They will set it again.
redis.call('PERSIST', queue)
redis.call('HDEL', jobs, '')  -- may it leave? It arrives before (shared.lua)
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
