-- Settles jobs: their claims end, and so do their counters and what is noted of their steps. Those that
-- start in their place wait no more.
-- KEYS: the owner's private list, then the counters of the first of the settled jobs
-- ARGV: number of settled jobs, their claim ids, of those that may have counters first; then the claim
--       ids of those that start, which have waited if they are there
-- Returns: the numbers of those settled jobs that were not there: they had been taken away
-- Crash: the jobs are settled, and some count as running that have not begun. A repetition finds
--       nothing more to do.
local private, settled = KEYS[1], tonumber(ARGV[1])
local missing, notes = {}, {}
for i = settled + 2, #ARGV do notes[#notes + 1] = 'w' .. ARGV[i] end
for i = 1, settled do
  local id, counters = ARGV[i + 1], KEYS[i + 1]
  -- The last one takes the notes along: a call costs the server more than what it removes. Lua hands
  -- over no more than 8,000 values, and a pool of greenlets may start as many jobs at once.
  local along = i == settled and #notes <= 1000 and notes or {}
  local own = redis.call('HDEL', private, id, 'w' .. id, 's' .. id, unpack(along)) - #along
  if own < 1 then
    -- Some were not there. A note goes with its claim, so where the claim is gone it was the note.
    for at = settled + 2, #along > 0 and #ARGV or 0 do
      if redis.call('HEXISTS', private, ARGV[at]) == 0 then own = own + 1 end
    end
  end
  if own < 1 then
    missing[#missing + 1] = i
  elseif counters then
    redis.call('DEL', counters)
  end
end
for first = 1, (settled == 0 or #notes > 1000) and #notes or 0, 1000 do
  redis.call('HDEL', private, unpack(notes, first, math.min(first + 999, #notes)))
end
return missing
