-- Parks claimed jobs: they leave a private list, and wait in nobody's for their time.
-- KEYS: private list, the parked jobs of its queue list, lists with parked jobs
-- ARGV: queue list, then for each job its claim id, when it is due (ms) and what stands before the
--       payload in its member
-- Returns: nothing
-- Crash: each job is in exactly one of the two. A repetition finds nothing more to do.
local private, parked, index, queue_list = KEYS[1], KEYS[2], KEYS[3], ARGV[1]
redis.call('ZCARD', parked)
redis.call('HDEL', private, 'w')  -- a removal first, and arrival before departure (shared.lua)
for i = 2, #ARGV, 3 do
  local id, due, head = ARGV[i], ARGV[i + 1], ARGV[i + 2]
  local payload = redis.call('HGET', private, id)
  if payload then
    redis.call('ZADD', index, 'LT', due, queue_list)
    redis.call('ZADD', parked, due, head .. payload)
    redis.call('HDEL', private, id, 'w' .. id, 's' .. id)
  end
end
