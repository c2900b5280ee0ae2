-- Moves held jobs back to the private list, where they are settled, given back or recovered.
-- KEYS: held jobs, private list
-- ARGV: claim ids, the oldest first
-- Returns: number of jobs that were held
-- Crash: each job is in exactly one of the two. Asking again is harmless.
local held, private = KEYS[1], KEYS[2]
local moved = 0
-- What has another type is found here, and not when a job has left its hash.
redis.call('LLEN', private)
for _, id in ipairs(ARGV) do
  local payload = redis.call('HGET', held, id)
  if payload then
    redis.call('HDEL', held, id)
    redis.call('LPUSH', private, payload)
    moved = moved + 1
  end
end
return moved
