-- Parks claimed jobs: they leave a private list, and no worker holds them until their time. If a job could
-- not run now and is to be tried later, that counts as a requeue in its history, which also keeps its steps
-- note for the next claim.
-- KEYS: private list, the parked jobs of its queue list, lists with parked jobs, flag that some job has a
--       history, stats, rows of stats, then, of jobs that are tried later, each one's history
-- ARGV: queue list, 1 if the jobs are tried later (0: they are for later, and none was tried), seconds to
--       keep a history, then for each job its claim id, when it is due (server ms; one that is tried later:
--       in how many ms), what stands before the payload in its member, and name of its task (empty: it is
--       not registered)
-- Returns: the numbers (from 1) of the jobs that were not in the private list; the others were parked
-- Crash: each job is in exactly one of the two. A repetition finds nothing more to do.
local private, parked, index, flag, stats, rows = unpack(KEYS, 1, 6)
local queue_list, is_retry, window = ARGV[1], ARGV[2] == '1', tonumber(ARGV[3])
local OF_ALL, OF_EACH, FIRST_KEY = 3, 4, 6  -- arguments, and the keys before the histories
local jobs, payloads, steps, earlier = (#ARGV - OF_ALL) / OF_EACH, {}, {}, {}
local function args_of(i) return unpack(ARGV, OF_ALL + OF_EACH * (i - 1) + 1, OF_ALL + OF_EACH * i) end
redis.call('ZCARD', parked)
for i = 1, jobs do
  local id = args_of(i)
  payloads[i], steps[i] = unpack(redis.call('HMGET', private, id, 's' .. id))
  earlier[i] = is_retry and read_note('hash', 'HMGET', KEYS[FIRST_KEY + i], 'token') or {}
end
redis.call('HDEL', private, 'w')  -- a removal first, and arrival before departure (shared.lua)
delete_foreign(stats)
local started_at, total, gone, missing = is_retry and now() or 0, 0, {}, {}
for i = 1, jobs do
  local id, due, head, task = args_of(i)
  local payload = payloads[i]
  if payload and not gone[id] then
    total, gone[id] = total + 1, true
    -- By the thousandth of a ms, jobs that are tried later return in the order in which they came.
    if is_retry then due = string.format('%.3f', started_at + due + i / 1000) end
    redis.call('ZADD', index, 'LT', due, queue_list)
    redis.call('ZADD', parked, due, head .. payload)
    redis.call('HDEL', private, id, 'w' .. id, 's' .. id)
    if is_retry then
      count_requeue(KEYS[FIRST_KEY + i], id, earlier[i][1], steps[i], window)
      count_by_task(stats, rows, 'requeued', queue_list, task)
    end
  else
    missing[#missing + 1] = i
  end
end
if is_retry and total > 0 then
  flagged(flag, window)
  redis.pcall('HINCRBY', stats, 'requeued', total)
end
return missing
