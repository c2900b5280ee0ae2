-- Lets one owner of a database at a time come to rest for jobs on probation, for a bounded time.
-- KEYS: the latest rest, lists with probation, then the probation lists the owner would serve
-- ARGV: owner, ms of the first rest, how many times as long nobody rests afterwards, then the
--       queue list of each probation list; none: its rest lasted until now, and served its end
-- Returns: 1 when the owner rests, 0 when it may not (any more), -1 when nothing is on probation
-- Crash: the rest ends when it would have ended; what follows counts from there.
local latest, on_probation = KEYS[1], KEYS[2]
local owner, first, work = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])
local now = now()
local noted = redis.call('HMGET', latest, 'owner', 'since', 'until', 'next')
-- The server's clock was set back: that keeps nobody at rest, nor from it.
if now < tonumber(noted[2] or 0) then noted = {} end
local since, ends = tonumber(noted[2] or 0), tonumber(noted[3] or 0)
-- It counts as a second at least: its owner says only once in a while that it lasts.
local function cost(from, to) return work * math.max(to - from, 1000) end
local function note(from, to, length)
  redis.call('DEL', latest)
  redis.call('HSET', latest, 'owner', owner, 'since', from, 'until', to, 'next', length)
  -- Whoever waits for the next asks every second: by then it was asked for, or is not needed.
  redis.call('PEXPIRE', latest, to - now + 2 * cost(from, to))
end

local waits = false
for i = 3, #KEYS do
  if redis.call('EXISTS', KEYS[i]) == 1 then
    waits = true
  else
    redis.call('SREM', on_probation, ARGV[i + 1])
  end
end
local mine, rests = noted[1] == owner, now < ends
if not waits then
  -- A suspect had its turn, here or elsewhere.
  if mine and (rests or #KEYS == 2) then note(since, now, first) end
  return -1
end
if mine and rests then return 1 end
if now < ends + cost(since, ends) then return 0 end
local length = tonumber(noted[4] or first)
note(now, now + length, 2 * length)
return 1
