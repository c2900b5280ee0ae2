-- Settles jobs: their claims end, and so do their counters and what is noted of their steps. Records
-- those that start in their place.
-- KEYS: the owner's private list, then the counters of the settled jobs that may have some
-- ARGV: number of settled jobs, then for each its claim id and which of the keys its counters are
--       (0: it has none), then the claim ids of those that start
-- Returns: the numbers of those settled jobs that were not there: they had been taken away
-- Crash: the jobs are settled, and some recorded as running that have not begun. A repetition finds
--       nothing more to do.
local private, settled = KEYS[1], tonumber(ARGV[1])
local missing, starts = {}, {}
-- A removal first, on servers before 7.0 (shared.lua).
if settled == 0 then redis.call('HDEL', private, '') end
for i = 1, settled do
  local id, counters = ARGV[2 * i], tonumber(ARGV[2 * i + 1])
  if redis.call('HDEL', private, id, 'r' .. id, 's' .. id) == 0 then
    missing[#missing + 1] = i
  elseif counters > 0 then
    redis.call('DEL', KEYS[counters])
  end
end
for i = 2 * settled + 2, #ARGV do
  -- No record outlives its claim: the ack would take the one for the other.
  if redis.call('HEXISTS', private, ARGV[i]) == 1 then
    starts[#starts + 1] = 'r' .. ARGV[i]
    starts[#starts + 1] = 1
  end
end
if #starts > 0 then redis.call('HSET', private, unpack(starts)) end
return missing
