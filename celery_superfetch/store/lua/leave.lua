-- Unregisters an owner that ends in order, if it has no job.
-- KEYS: owners, the owner record, the owners of its host, tombstones, its private list, ranks, then its
--       landing lists
-- ARGV: owner, ms to keep a tombstone (0: none; no call of the owner can bring it a job any more)
-- Returns: 0: it was unregistered; the number of jobs that it still has, or -1 if it was reaped: nothing
--       was changed
-- Crash: the owner is unregistered, or it stays registered and is reaped later.
local owners, owner_record, host, reaped, private, ranks = unpack(KEYS, 1, 6)
local owner, keep = ARGV[1], tonumber(ARGV[2])
local state, by_others = unpack(redis.call('HMGET', owner_record, 'state', 'reaped_at'))
-- Its own tombstone is there where it asks again, as it heard no answer.
if state == 'reaped' then return by_others and -1 or 0 end
local left = 0
for _, field in ipairs(redis.call('HKEYS', private)) do
  if string.find(field, '^[^ws]') then left = left + 1 end  -- but for notes
end
local landings = {}
for i = 7, #KEYS do landings[#landings + 1] = KEYS[i] end
-- Mostly none of thousands is there, and few questions tell.
local landed = call_in_parts('EXISTS', nil, landings) > 0
for i = 1, landed and #landings or 0 do left = left + redis.call('LLEN', landings[i]) end
if left > 0 then return left end
redis.call('ZREM', owners, owner)
drop_ranks(ranks, redis.call('HGET', owner_record, 'group'), owner)
redis.call('SREM', host, owner)
redis.call('DEL', private)
if keep == 0 then
  redis.call('DEL', owner_record)
  return 0
end
redis.call('HSET', owner_record, 'state', 'reaped')
redis.call('ZADD', reaped, now() + keep, owner)
return 0
