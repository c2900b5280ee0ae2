-- Gives jobs back to their queue, or on probation, on purpose; never counted against them.
-- KEYS: private list, public queue list, flag, stats, running jobs, probation list, lists with
--       probation, the owner's facts, then each job's counters
-- ARGV: queue list, "front" (next to be claimed) or "back", seconds to remember that they were delivered,
--       ms of the queue's x-expires (0: none), number of this call among its owner's (0: not the
--       owner itself), then for each job its payload and its claim id; for the front newest first
-- Returns: for each job 1, or 0 when it was not in flight, or this call came late
-- Crash: each job is in exactly one of the lists. All move at once, so that a consumer that waits
--       gets the oldest and not the first that was moved.
local private, queue, flag, stats, running, probation, on_probation, facts =
  KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6], KEYS[7], KEYS[8]
local queue_list, push = ARGV[1], ARGV[2] == 'front' and 'RPUSH' or 'LPUSH'
local window, expires, number = tonumber(ARGV[3]), tonumber(ARGV[4]), tonumber(ARGV[5])
local jobs, moved, suspected = #KEYS - 8, {}, {}
-- All is read before anything moves: what has another type is found here, and not when a job has
-- left its list and cannot arrive.
for _, name in ipairs({queue, probation}) do
  local kind = redis.call('TYPE', name).ok
  if kind ~= 'list' and kind ~= 'none' then
    return redis.error_reply("WRONGTYPE '" .. name .. "' is no queue, it holds a " .. kind)
  end
end
redis.call('SISMEMBER', on_probation, queue_list)
redis.call('LLEN', private)
for i = 1, jobs do suspected[i] = redis.call('HEXISTS', KEYS[8 + i], 'probation') == 1 end
-- Whoever heard no answer repeats the call, and a network that stood still may bring it after its own
-- repetition: by then another thread of the owner may have claimed the job anew, and run it.
if number > 0 and tonumber(redis.call('HGET', facts, 'returned') or 0) >= number then
  for i = 1, jobs do moved[i] = 0 end
  return moved
end
-- A removal first: before 7.0 a server over its memory limit allows what follows one.
redis.call('HDEL', running, '')
if number > 0 and redis.call('HEXISTS', facts, 'state') == 1 then
  redis.call('HSET', facts, 'returned', number)
end
local function taken(payload, id)
  if id ~= '' then redis.call('HDEL', running, id) end
  -- From the left: what is given back is mostly what was claimed last.
  return redis.call('LREM', private, 1, payload) > 0
end
local total, to_queue = 0, 0
for i = 1, jobs do
  local payload, id, counters = ARGV[4 + 2 * i], ARGV[5 + 2 * i], KEYS[8 + i]
  moved[i] = 0
  if taken(payload, id) then
    moved[i], total = 1, total + 1
    if suspected[i] then
      redis.call(push, probation, payload)
      redis.call('SADD', on_probation, queue_list)
    else
      redis.call(push, queue, payload)
      to_queue = to_queue + 1
    end
    redis.pcall('HINCRBY', counters, 'requeues', 1)
    tally(stats, 'requeued', queue_list, payload)
    if redis.call('TTL', counters) < 0 then redis.call('EXPIRE', counters, window) end
  end
end
if total > 0 then
  if expires > 0 and to_queue > 0 then redis.call('PEXPIRE', queue, expires) end
  redis.call('SET', flag, 1, 'EX', window)
  redis.pcall('HINCRBY', stats, 'requeued', total)
end
return moved
