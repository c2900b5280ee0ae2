-- Registers the owner of a private list that no registry knows, so that it can be judged.
-- KEYS: owners, the owner's facts, tombstones, the private list, its held jobs
-- ARGV: owner, queue list, ms to list a tombstone
-- Returns: "adopted", "listed" (its owner was known, the list was not), or "known"
-- Crash: nothing half done. Never moves a job: the normal verdict applies first.
local owners, facts, reaped, private = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local owner, queue_list = ARGV[1], ARGV[2]
if redis.call('LLEN', private) == 0 and redis.call('HLEN', KEYS[5]) == 0 then return 'known' end
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local lists = redis.call('HGET', facts, 'lists')
local known = lists and cjson.decode(lists) or {}
local listed = known[queue_list] ~= nil
local state = redis.call('HGET', facts, 'state')
local registered = redis.call('ZSCORE', owners, owner)
if state == 'reaped' and not redis.call('ZSCORE', reaped, owner) then
  redis.call('ZADD', reaped, now + tonumber(ARGV[3]), owner)
  registered = false
elseif listed and (registered or state == 'reaped') then
  return 'known'
end
if not listed then
  known[queue_list] = 0
  redis.call('HSET', facts, 'lists', cjson.encode(known))
end
-- Who reads them knows host and pid by the owner's name, and has limits of its own.
if not state then redis.call('HSET', facts, 'state', 'running', 'registered_at', now) end
if state ~= 'reaped' and not registered then
  redis.call('ZADD', owners, 'NX', now, owner)
  return 'adopted'
end
return 'listed'
