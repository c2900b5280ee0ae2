-- Gives jobs back to their queue on purpose; never counted against them.
-- KEYS: private list, public queue list, flag, stats, running jobs, then each job's counters
-- ARGV: "front" (next to be claimed) or "back", seconds to remember that they were delivered,
--       ms of the queue's x-expires (0: none), then for each job its payload, its claim id, and
--       1 when it was handed to a pool that may start it at this moment; for the front newest
--       first
-- Returns: for each job 1; 0 when it was no longer in the private list, or this very claim was
--       given back before; 2 when the pool had started it, and it was left where it is
-- Crash: each job is in exactly one of the two lists. All move at once, so that a consumer
--       that waits gets the oldest and not the first that was moved. One that a pool has is
--       either recorded as running or called off, never both: `start` looks at the same field.
local private, queue, flag, stats, running = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local push = ARGV[1] == 'front' and 'RPUSH' or 'LPUSH'
local window, expires = tonumber(ARGV[2]), tonumber(ARGV[3])
local kind = redis.call('TYPE', queue).ok
if kind ~= 'list' and kind ~= 'none' then
  return redis.error_reply("WRONGTYPE '" .. queue .. "' is no queue, it holds a " .. kind)
end
-- Whether a claim can be given back: nil; else what to answer. A network that stood still may
-- bring the same call a second time, when its owner has claimed the job anew and runs it.
local function refused(id, handed_over)
  if id == '' then return nil end
  local known = redis.call('HGET', running, id)
  if known == '-' then return 0 end
  if known and handed_over then return 2 end
  redis.call('HSET', running, id, '-')
  return nil
end
local moved, total = {}, 0
for i = 1, #KEYS - 5 do
  local payload, id, counters = ARGV[1 + 3 * i], ARGV[2 + 3 * i], KEYS[5 + i]
  moved[i] = refused(id, ARGV[3 + 3 * i] == '1')
  if not moved[i] then
    -- From the left: what is given back is mostly what was claimed last.
    moved[i] = redis.call('LREM', private, 1, payload)
    if moved[i] > 0 then
      redis.call(push, queue, payload)
      redis.call('HINCRBY', counters, 'requeues', 1)
      if redis.call('TTL', counters) < 0 then redis.call('EXPIRE', counters, window) end
      total = total + 1
    end
  end
end
if total > 0 then
  if expires > 0 then redis.call('PEXPIRE', queue, expires) end
  redis.call('SET', flag, 1, 'EX', window)
  redis.call('HINCRBY', stats, 'requeued', total)
end
return moved
