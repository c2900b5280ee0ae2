-- Takes jobs over from stock kombu: out of its hash of unacked messages, to their queues' front.
-- KEYS: unacked, its index, flag, stats, then the queue lists, then each job's counters
-- ARGV: seconds to remember that they were delivered, number of queue lists, for each of those
--       ms of its x-expires (0: none), then for each job, newest delivery first: tag, score the
--       caller saw (0: none), SHA-1 of the value it saw, first and last byte of the payload in
--       it, number of queue lists it goes to, their numbers
-- Returns: for each job "ok"; "gone" when it was acked or delivered anew since; "wrongtype"
--       when the key of one of its queues holds something else, and the job stays
-- Crash: each job is in the hash, or in all its queues. The payload is cut out of the value:
--       its bytes are those that kombu wrote.
local unacked, index, flag, stats = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local window, count = tonumber(ARGV[1]), tonumber(ARGV[2])
local is_queue = {}
for at = 1, count do
  local kind = redis.call('TYPE', KEYS[4 + at]).ok
  is_queue[at] = kind == 'list' or kind == 'none'
end

local function take(tag, payload, lists, counters)
  -- The removal first: a server over its memory limit allows what follows a write.
  redis.call('HDEL', unacked, tag)
  for _, at in ipairs(lists) do
    redis.call('RPUSH', KEYS[4 + at], payload)
    local expires = tonumber(ARGV[2 + at])
    if expires > 0 then redis.call('PEXPIRE', KEYS[4 + at], expires) end
  end
  redis.call('ZREM', index, tag)
  redis.pcall('HINCRBY', counters, 'requeues', 1)
  if redis.call('TTL', counters) < 0 then redis.call('EXPIRE', counters, window) end
end

local outcomes, total, arg = {}, 0, 3 + count
for i = 1, #KEYS - 4 - count do
  local tag, score, seen = ARGV[arg], tonumber(ARGV[arg + 1]), ARGV[arg + 2]
  local first, last, targets = tonumber(ARGV[arg + 3]), tonumber(ARGV[arg + 4]), tonumber(ARGV[arg + 5])
  local lists, fits = {}, true
  for n = 1, targets do
    lists[n] = tonumber(ARGV[arg + 5 + n])
    fits = fits and is_queue[lists[n]]
  end
  arg = arg + 6 + targets
  local value = redis.call('HGET', unacked, tag)
  if not value or redis.sha1hex(value) ~= seen
    or tonumber(redis.call('ZSCORE', index, tag) or 0) ~= score then
    outcomes[i] = 'gone'
  elseif not fits then
    outcomes[i] = 'wrongtype'
  else
    take(tag, string.sub(value, first, last), lists, KEYS[4 + count + i])
    outcomes[i], total = 'ok', total + 1
  end
end
if total > 0 then
  redis.call('SET', flag, 1, 'EX', window)
  redis.pcall('HINCRBY', stats, 'migrated', total)
end
return outcomes
