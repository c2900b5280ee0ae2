-- Moves jobs from stock kombu's hash of unacked messages to the front of their queues. `superfetch migrate`
-- calls it.
-- KEYS: the hash, its index by time of delivery, then each queue list
-- ARGV: for each job, the newest first: its tag, its time of delivery (empty: it is not in the index), the
--       digest of its entry, its message, how many queue lists it goes to, then for each of these its number
--       (from 1) among the queue lists, and ms of the queue's x-expires (0: none)
-- Returns: for each job 1 if it moved; 0 if it was acked, or delivered again, since it was read; 2 if one of
--       its queue lists is a key of another type
-- Crash: each job is in exactly one of the two places. A repetition finds nothing more to do.
local unacked, index = KEYS[1], KEYS[2]
-- Removals of nothing come first (shared.lua): if one of them is forbidden, no job is pushed and then stays in
-- the hash as well.
redis.call('HDEL', unacked, '\0')
redis.call('ZREM', index, '\0')
local function same(tag, since, digest)
  local entry = redis.call('HGET', unacked, tag)
  if not entry or redis.sha1hex(entry) ~= digest then return false end
  local score = redis.call('ZSCORE', index, tag)
  return tonumber(score or '') == tonumber(since)
end
local outcomes, expires, at = {}, {}, 1
while at <= #ARGV do
  local tag, since, digest, message, lists = unpack(ARGV, at, at + 4)
  local queues, first, fits = {}, at + 5, true
  at = first + 2 * lists
  for i = first, at - 1, 2 do
    local queue = KEYS[2 + ARGV[i]]
    queues[queue] = tonumber(ARGV[i + 1])
    fits = fits and takes(queue)
  end
  local outcome = 0
  if same(tag, since, digest) then
    outcome = fits and 1 or 2
  end
  if outcome == 1 then
    for queue, ms in pairs(queues) do
      redis.call('RPUSH', queue, message)
      if ms > 0 then expires[queue] = ms end
    end
    redis.call('HDEL', unacked, tag)
    redis.call('ZREM', index, tag)
  end
  outcomes[#outcomes + 1] = outcome
end
for queue, ms in pairs(expires) do redis.call('PEXPIRE', queue, ms) end
return outcomes
