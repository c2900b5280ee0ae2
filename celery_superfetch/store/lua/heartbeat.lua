-- Says that an owner lives and returns whom it should keep an eye on; or registers it, which counts
-- as a heartbeat.
-- KEYS: owners, the owner's facts, its host's owners, lists with probation, lists with parked jobs,
--       then, to register it, tombstones
-- ARGV: owner, server ms of the caller's last heartbeat (0: none), most rows to return,
--       then field and value of each fact that changed, or to register it of each
-- Returns: {"ok", ms, {quiet owner, score, ...}, {owner of this host, ...}, {list with
--       probation, ...}, when the next parked job is due (server ms; or nil)}, where a quiet owner
--       has not written since the caller's last heartbeat; or {"reaped"}, and of who does not
--       register {"missing"} (its facts, its row or its host's has gone) or {"unknown"} (nothing is
--       known of it). Of more than a hundred lists with probation it names a hundred that the owner
--       has, other ones each time
-- Crash: nothing half done. Who has just registered claims nothing; it is judged like any owner.
local owners, facts, host, reaped = KEYS[1], KEYS[2], KEYS[3], KEYS[6]
local MOST_NAMED = 100  -- lists with probation
local owner, since, most = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])
local state = redis.call('HGET', facts, 'state')
if state == 'reaped' then return {'reaped'} end
if reaped then
  if redis.call('ZSCORE', reaped, owner) then return {'reaped'} end
else
  local listed = redis.call('ZSCORE', owners, owner)
  if not state and not listed then return {'unknown'} end
  -- A reaper removes the row. While that is there, the owner is still one, whatever else is gone.
  if not state or not listed or redis.call('SISMEMBER', host, owner) == 0 then return {'missing'} end
end
local probation = read_note('set', 'SMEMBERS', KEYS[4])
-- A key of another type says as little as none, and an owner has to be heard.
local parked = redis.pcall('ZRANGE', KEYS[5], 0, 0, 'WITHSCORES')
local now = now()
-- A removal first, on servers before 7.0 (shared.lua).
redis.call('ZREM', owners, owner)
redis.call('ZADD', owners, now, owner)
if #ARGV > 3 then redis.call('HSET', facts, unpack(ARGV, 4)) end
if reaped then
  redis.call('HSETNX', facts, 'registered_at', now)
  redis.call('SADD', host, owner)
end
-- Thousands of names would cost each owner, at each heartbeat, more than all else.
if #probation > MOST_NAMED then
  local lists = redis.call('HGET', facts, 'lists')
  local readable, served = pcall(cjson.decode, lists or '')
  local first, named = now % #probation, {}
  for at = 1, #probation do
    local name = probation[(first + at) % #probation + 1]
    if not (readable and type(served) == 'table') or served[name] then named[#named + 1] = name end
    if #named == MOST_NAMED then break end
  end
  probation = named
end
local quiet = {}
if since > 0 then
  quiet = redis.call('ZRANGEBYSCORE', owners, '-inf', since, 'WITHSCORES', 'LIMIT', 0, most)
  -- Scores from the future were written before the server's clock was set back.
  local future = redis.call('ZRANGEBYSCORE', owners, '(' .. now, '+inf', 'WITHSCORES', 'LIMIT', 0, most)
  for _, value in ipairs(future) do quiet[#quiet + 1] = value end
end
return {'ok', now, quiet, redis.call('SMEMBERS', host), probation, parked[2] or false}
