-- Gives one job back to its queue on purpose; never counted against it.
-- KEYS: private list, public queue list, the job's counters, flag, stats
-- ARGV: payload, "front" (next to be claimed) or "back", seconds to remember that it was
--       delivered, ms of the queue's x-expires (0: none)
-- Returns: 1, or 0 when the job was no longer in the private list
-- Crash: the job is in exactly one of the two lists.
local private, queue, counters, flag, stats = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local payload, where, window, expires = ARGV[1], ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4])
local kind = redis.call('TYPE', queue).ok
if kind ~= 'list' and kind ~= 'none' then
  return redis.error_reply('WRONGTYPE queue key ' .. queue .. ' holds a ' .. kind)
end
-- From the left: what is given back is mostly what was claimed last.
if redis.call('LREM', private, 1, payload) == 0 then return 0 end
redis.call(where == 'front' and 'RPUSH' or 'LPUSH', queue, payload)
if expires > 0 then redis.call('PEXPIRE', queue, expires) end
redis.call('HINCRBY', counters, 'requeues', 1)
if redis.call('TTL', counters) < 0 then redis.call('EXPIRE', counters, window) end
redis.call('SET', flag, 1, 'EX', window)
redis.call('HINCRBY', stats, 'requeued', 1)
return 1
