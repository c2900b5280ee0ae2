-- Moves claimed jobs that are going to wait in their worker's memory out of a private list.
-- KEYS: private list, held jobs, the owner's running jobs
-- ARGV: for each job its payload and its claim id
-- Returns: for each job 1, or 0 when it is not in the private list
-- Crash: each job is in exactly one of the two; whoever empties the one looks into the other.
local private, held, running = KEYS[1], KEYS[2], KEYS[3]
local moved = {}
-- What has another type is found here, and not when a job has left its list.
redis.call('HLEN', held)
redis.call('HLEN', running)
for i = 1, #ARGV / 2 do
  local payload, id = ARGV[2 * i - 1], ARGV[2 * i]
  -- From the left, where the newest claims are.
  moved[i] = redis.call('LREM', private, 1, payload)
  if moved[i] > 0 then
    redis.call('HSET', held, id, payload)
    redis.call('HDEL', running, id)
  end
end
return moved
