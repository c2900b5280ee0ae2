-- Gives jobs back to their queue, or on probation, on purpose; never counted against them.
-- KEYS: private list, public queue list, flag, stats, running jobs, probation list, lists with
--       probation, then each job's counters
-- ARGV: queue list, "front" (next to be claimed) or "back", seconds to remember that they were delivered,
--       ms of the queue's x-expires (0: none), then for each job its payload, its claim id, and
--       1 when it was handed to a pool that may start it at this moment; for the front newest
--       first
-- Returns: for each job 1; 0 when it was no longer in the private list, or this very claim was
--       given back before; 2 when the pool had started it, and it was left where it is
-- Crash: each job is in exactly one of the two lists. All move at once, so that a consumer
--       that waits gets the oldest and not the first that was moved. One that a pool has is
--       either recorded as running or called off, never both: `start` looks at the same field.
local private, queue, flag, stats, running, probation, on_probation =
  KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6], KEYS[7]
local queue_list, push = ARGV[1], ARGV[2] == 'front' and 'RPUSH' or 'LPUSH'
local window, expires = tonumber(ARGV[3]), tonumber(ARGV[4])
local kind = redis.call('TYPE', queue).ok
if kind ~= 'list' and kind ~= 'none' then
  return redis.error_reply("WRONGTYPE '" .. queue .. "' is no queue, it holds a " .. kind)
end
-- Whether a claim can be given back: nil; else what to answer. A network that stood still may
-- bring the same call a second time, when its owner has claimed the job anew and runs it.
local function refused(id, handed_over)
  if id == '' then return nil end
  local known = redis.call('HMGET', running, id, 'alone')
  if known[1] == '-' then return 0 end
  -- One on probation is recorded before it starts.
  if known[1] and handed_over and string.sub(known[1], 1, 1) ~= '?' then return 2 end
  redis.call('HSET', running, id, '-')
  if known[2] == id then redis.call('HDEL', running, 'alone') end
  return nil
end
-- A removal first: before 7.0 a server over its memory limit allows what follows one.
redis.call('HDEL', running, '')
local moved, total, to_queue = {}, 0, 0
for i = 1, #KEYS - 7 do
  local payload, id, counters = ARGV[2 + 3 * i], ARGV[3 + 3 * i], KEYS[7 + i]
  moved[i] = refused(id, ARGV[4 + 3 * i] == '1')
  if not moved[i] then
    -- From the left: what is given back is mostly what was claimed last.
    moved[i] = redis.call('LREM', private, 1, payload)
    if moved[i] > 0 then
      if redis.call('HEXISTS', counters, 'probation') == 1 then
        redis.call(push, probation, payload)
        redis.call('SADD', on_probation, queue_list)
      else
        redis.call(push, queue, payload)
        to_queue = to_queue + 1
      end
      redis.call('HINCRBY', counters, 'requeues', 1)
      if redis.call('TTL', counters) < 0 then redis.call('EXPIRE', counters, window) end
      total = total + 1
    end
  end
end
if total > 0 then
  if expires > 0 and to_queue > 0 then redis.call('PEXPIRE', queue, expires) end
  redis.call('SET', flag, 1, 'EX', window)
  redis.call('HINCRBY', stats, 'requeued', total)
end
return moved
