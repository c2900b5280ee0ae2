-- Hands on a step of a job, a message that it sends because it ends: once, however often the job runs.
-- KEYS: the owner's private list, the public queue list, then the other lists that expire with that
-- ARGV: claim id, name of the step, the message, ms of the queue's x-expires (0: none)
-- Returns: 1; 0 where this run or an earlier one has handed it on already; -1 where the claim is over:
--       the job is another's by now, and so are its steps
-- Crash: the message is on its queue, and noted beside the claim. A repetition finds nothing to do.
local private, queue = KEYS[1], KEYS[2]
local id, name, message, expires = ARGV[1], ARGV[2], ARGV[3], tonumber(ARGV[4])
local claim = redis.call('HMGET', private, id, 's' .. id)
if not claim[1] then return -1 end
local steps = claim[2] or ''
if string.find(steps, name, 1, true) then return 0 end
-- What is no queue is found here, and so is that a server before 7.0 is over its memory limit, which
-- refuses a script its first write alone: nothing was changed.
redis.call('LPUSH', queue, message)
redis.call('HSET', private, 's' .. id, steps .. name)
for i = 2, expires > 0 and #KEYS or 0 do redis.call('PEXPIRE', KEYS[i], expires) end
return 1
