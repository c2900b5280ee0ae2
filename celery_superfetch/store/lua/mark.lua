-- Marks an owner reaped, if it has sent no heartbeat since the verdict on it.
-- KEYS: owners, the owner record, the owners of its host, tombstones, stats, its private list, ranks
-- ARGV: owner, its last heartbeat that the verdict saw, ms the tombstone stays listed, reason
-- Returns: how many of its jobs ran, if this call marked it; else nil
-- Crash: the owner is marked and listed as a tombstone; the next pass drains its lists.
local owners, owner_record, host, reaped, stats, private, ranks = unpack(KEYS)
local owner, seen, listed, reason = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3]), ARGV[4]
local text = redis.call('ZSCORE', owners, owner)
if not text then return false end
local score = tonumber(text)
-- The verdict saw whole milliseconds, and 0 for an infinite score. If they were compared as they
-- stand, an owner with an odd score would be heard for ever, and its jobs never recovered.
if score == nil or score == math.huge or score == -math.huge then score = 0 end
if math.modf(score) ~= seen then return false end
-- What has another type is found before the owner is in neither registry.
redis.call('ZCARD', reaped)
redis.call('SISMEMBER', host, owner)
local ran = 0
for _, field in ipairs(redis.call('HKEYS', private)) do
  if string.byte(field) == 119 then ran = ran - 1  -- w: a note that one waits
  elseif string.find(field, '^%d') then ran = ran + 1 end
end
local now = now()
-- The state as it was (running, stopping) decides whether its jobs get strikes.
local state = redis.call('HGET', owner_record, 'state') or 'running'
redis.call('ZREM', owners, owner)
drop_ranks(ranks, redis.call('HGET', owner_record, 'group'), owner)
-- Who is blamed depends on how many ran now: a frozen process that settles one of two later must
-- not leave the other alone with it.
redis.call('HSET', owner_record, 'state', 'reaped', 'state_before_reap', state, 'ran_at_reap', ran,
  'reaped_at', now, 'reason', reason)
redis.call('ZADD', reaped, now + listed, owner)
redis.call('SREM', host, owner)
redis.pcall('HINCRBY', stats, 'owners_reaped', 1)
return ran
