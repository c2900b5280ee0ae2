-- Publishes a step, a message that Celery sends because a job ends: once, however often the job runs. The
-- process that runs the job calls it.
-- KEYS: the owner's private list, the public queue list, then the other lists that expire with that
-- ARGV: claim id, name of the step (its family, a colon, its number there; `model/step.py`), 1 where the
--       job is over with it (its retry or replacement), the message, ms of the queue's x-expires (0: none)
-- Returns: 1; 0 where an earlier run, or an earlier try of this call, has published it; -1 where the
--       claim is over: the job, and its steps, belong to another owner by now
-- Crash: the message is on its queue, and its name in the steps note. A repetition finds nothing to do.
local private, queue = KEYS[1], KEYS[2]
local id, name, over, message, expires = ARGV[1], ARGV[2], ARGV[3] == '1', ARGV[4], tonumber(ARGV[5])
-- HEXISTS, since HGET would copy the job: with a group of 20,000 for its end it is large, and each of these
-- steps calls this.
if redis.call('HEXISTS', private, id) == 0 then return -1 end
local steps = redis.call('HGET', private, 's' .. id) or ''
if over and not string.find(steps, '!', 1, true) then over = '!' else over = '' end
-- A family's steps come in the order of their numbers, so that one part of the note has them all.
local family, number = string.match(name, '^(%w+):(%d+)$')
local from, to, first = #steps + 1, #steps, number
for at, low, high, past in string.gmatch(steps, '()' .. family .. ':(%d+)%-(%d+);()') do
  local here = tonumber(number)
  if here >= tonumber(low) and here <= tonumber(high) then
    if over ~= '' then redis.call('HSET', private, 's' .. id, steps .. over) end
    return 0
  end
  if here == tonumber(high) + 1 then from, to, first = at, past - 1, low end
end
local part = family .. ':' .. first .. '-' .. number .. ';'
-- The first write: it raises, and nothing was changed, if the key is no list, or the server is over its
-- memory limit (before 7.0, too: it refuses a script's first write alone).
redis.call('LPUSH', queue, message)
local note = string.sub(steps, 1, from - 1) .. part .. string.sub(steps, to + 1) .. over
redis.call('HSET', private, 's' .. id, note)
for i = 2, expires > 0 and #KEYS or 0 do redis.call('PEXPIRE', KEYS[i], expires) end
return 1
