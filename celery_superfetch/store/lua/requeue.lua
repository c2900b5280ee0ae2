-- Gives jobs back to their queue, or on probation, on purpose; never counted against them. What they
-- have handed on stays noted, for their next claim.
-- KEYS: private list, public queue list, flag, stats, probation list, lists with probation, then each
--       job's counters
-- ARGV: queue list, "front" (next to be claimed) or "back", seconds to remember that they were
--       delivered, ms of the queue's x-expires (0: none), then each job's claim id; for the front
--       the newest first
-- Returns: number of jobs that went; the others were not in flight
-- Crash: each job is in exactly one of the lists. All move at once, so that a consumer that waits
--       gets the oldest and not the first that was moved. A repetition finds nothing more to do.
local private, queue, flag, stats, probation, on_probation = unpack(KEYS, 1, 6)
local queue_list, push = ARGV[1], ARGV[2] == 'front' and 'RPUSH' or 'LPUSH'
local window, expires = tonumber(ARGV[3]), tonumber(ARGV[4])
local no = wrong(queue, probation)
if no then return no end
local jobs, payloads, steps, suspected, earlier = #KEYS - 6, {}, {}, {}, {}
for i = 1, jobs do
  payloads[i], steps[i] = unpack(redis.call('HMGET', private, ARGV[i + 4], 's' .. ARGV[i + 4]))
  suspected[i], earlier[i] = unpack(redis.call('HMGET', KEYS[i + 6], 'probation', 'token'))
end
redis.call('HDEL', private, 'w')  -- a removal first (shared.lua)
local total, to_queue, gone = 0, false, {}
for i = 1, jobs do
  local id, payload, counters = ARGV[i + 4], payloads[i], KEYS[i + 6]
  if payload and not gone[id] then
    total, gone[id] = total + 1, true
    if suspected[i] then
      redis.call('SADD', on_probation, queue_list)
      redis.call(push, probation, payload)
    else
      redis.call(push, queue, payload)
      to_queue = true
    end
    redis.call('HDEL', private, id, 'w' .. id, 's' .. id)
    redis.pcall('HINCRBY', counters, 'requeues', 1)
    redis.pcall('HSET', counters, 'token', token(id, counters, earlier[i]))
    if steps[i] then redis.pcall('HSET', counters, 'steps', steps[i]) end
    count_by_task(stats, 'requeued', queue_list, payload)
    if redis.call('TTL', counters) < 0 then redis.call('EXPIRE', counters, window) end
  end
end
if total > 0 then
  if expires > 0 and to_queue then redis.call('PEXPIRE', queue, expires) end
  flagged(flag, window)
  redis.pcall('HINCRBY', stats, 'requeued', total)
end
return total
