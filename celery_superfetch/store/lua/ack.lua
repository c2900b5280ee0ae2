-- Acks jobs that have a history: deletes their claims with both notes, and their histories. (A job without
-- a history is acked by a plain HDEL.)
-- KEYS: the owner's private list, then the history of each job
-- ARGV: the claim id of each job
-- Returns: how many of the jobs were there; of the others nothing changes, they have another owner
-- Crash: each job is acked with its history, or not at all. A repetition finds nothing more to do.
local private, settled = KEYS[1], 0
for i, id in ipairs(ARGV) do
  local counters = KEYS[i + 1]
  if redis.call('HDEL', private, id, 'w' .. id, 's' .. id) > 0 then
    redis.call('DEL', counters)
    settled = settled + 1
  end
end
return settled
