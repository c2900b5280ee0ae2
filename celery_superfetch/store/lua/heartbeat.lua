-- Stores a heartbeat of an owner, and returns what it has to know of other owners, of suspects, of
-- parked jobs and of paused queues; or registers the owner, which counts as a heartbeat.
-- KEYS: owners, the owner record, the owners of its host, index of queue lists with probation, index of
--       queue lists with parked jobs, ranks, the paused queues, then, to register it, tombstones
-- ARGV: owner, server ms of the caller's last heartbeat (0: none), most rows to return, the group of
--       owners that serve the same lists (empty: the rank is not asked for), 1 if it waits for jobs,
--       then field and value of each part of the record that has changed; to register it, of each part
-- Returns: {"ok", ms, {quiet owner, score, ...}, {owner of this host, ...}, {list with
--       probation, ...}, when the next parked job is due (server ms; or nil), {rank in its group,
--       owners in it, those of them that wait}, {paused queue, ...}}, where a quiet owner has not written since the
--       caller's last heartbeat; or {"reaped"}; or, unless it registers, {"missing"} (its record, its row
--       or its name among the owners of its host is gone) or {"unknown"} (both record and row are gone).
--       Of more than a hundred lists with probation it names a hundred that the owner serves, other ones
--       each time
-- Crash: all was written, or nothing. An owner that has registered and then dies has claimed nothing; it
--       is declared dead like any other.
local owners, owner_record, host, ranks, reaped = KEYS[1], KEYS[2], KEYS[3], KEYS[6], KEYS[8]
local MOST_NAMED = 100  -- lists with probation
local owner, since, most, group = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3]), ARGV[4]
local state = redis.call('HGET', owner_record, 'state')
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
local paused = redis.pcall('HKEYS', KEYS[7])
local now = now()
-- A removal first, on servers before 7.0 (shared.lua).
redis.call('ZREM', owners, owner)
redis.call('ZADD', owners, now, owner)
-- All scores are 0, so that the rows of a group lie together in the order of their names. Of each
-- owner there is one that it is there, and one while it waits.
local function rank()
  local former = redis.call('HGET', owner_record, 'group')
  if former and former ~= group then drop_ranks(ranks, former, owner) end
  local here, waiting = rank_rows(group, owner)
  redis.call('ZADD', ranks, 0, here)
  redis.call(ARGV[5] == '1' and 'ZADD' or 'ZREM', ranks, unpack(ARGV[5] == '1' and {0, waiting} or {waiting}))
  -- An owner whose other keys were evicted has left its rows here: the next one removes them.
  for _, row in ipairs({here, waiting}) do
    local before = redis.call('ZREVRANGEBYLEX', ranks, '(' .. row, '-', 'LIMIT', 0, 1)[1]
    local name = before and string.match(before, '^[^:]*:.:(.*)')
    if before and not (name and redis.call('ZSCORE', owners, name)) then
      redis.call('ZREM', ranks, before)
    end
  end
  local function count(kind, last)
    return redis.call('ZLEXCOUNT', ranks, '[' .. group .. kind .. ':', '(' .. (last or group .. kind .. ';'))
  end
  return {count(':a', here), count(':a'), count(':w')}
end
-- A key of another type says as little as none.
local known, where = true, {}
if group ~= '' then known, where = pcall(rank) end
if #ARGV > 5 then redis.call('HSET', owner_record, unpack(ARGV, 6)) end
if reaped then
  redis.call('HSETNX', owner_record, 'registered_at', now)
  redis.call('SADD', host, owner)
end
-- Thousands of names would cost each owner, at each heartbeat, more than all else.
if #probation > MOST_NAMED then
  local lists = redis.call('HGET', owner_record, 'lists')
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
return {'ok', now, quiet, redis.call('SMEMBERS', host), probation, parked[2] or false, known and where or {},
  paused.err and {} or paused}
