-- Parks claimed jobs: they leave a private list, and wait in nobody's for their time.
-- KEYS: private list, the parked jobs of its queue list, lists with parked jobs, the owner's running
--       jobs, the owner's facts
-- ARGV: queue list, number of this call among its owner's, then for each job its payload, its claim
--       id, when it is due (ms) and what stands before the payload in its member
-- Returns: number of jobs parked
-- Crash: each job is in exactly one of the two.
local private, parked, index, running, facts = unpack(KEYS)
local queue_list, number = ARGV[1], tonumber(ARGV[2])
-- What has another type is found here, and not when a job has left its list.
redis.call('LLEN', private)
redis.call('ZCARD', parked)
redis.call('ZCARD', index)
-- It may come behind the next call, which gave the job back: it may run by now as another claim.
if tonumber(redis.call('HGET', facts, 'returned') or 0) >= number then return 0 end
-- A removal first: before 7.0 a server over its memory limit allows what follows one.
redis.call('HDEL', running, '')
if redis.call('HEXISTS', facts, 'state') == 1 then redis.call('HSET', facts, 'returned', number) end
local count = 0
for i = 3, #ARGV, 4 do
  local payload, id, due, head = unpack(ARGV, i, i + 3)
  -- From the left, where the newest claims are.
  if redis.call('LREM', private, 1, payload) > 0 then
    redis.call('ZADD', parked, due, head .. payload)
    redis.call('ZADD', index, 'LT', due, queue_list)
    redis.call('HDEL', running, id)
    count = count + 1
  end
end
return count
