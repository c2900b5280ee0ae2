-- Puts parked jobs whose time has come in front of those that wait in their queues, or on probation.
-- KEYS: lists with parked jobs, the flag that some job has counters, lists with probation
-- ARGV: ms before its time at which a job goes; most jobs, and bytes, of one list; most lists;
--       prefixes of the parked jobs, of the queue lists, of the probation lists and of counters; then
--       each queue list that has an x-expires, and that (ms). The lists are named here: there may be
--       thousands, and few have something due
-- Returns: number of jobs that went, 1 where more are due, server ms, when the next one is due (ms; or
--       nil)
-- Crash: each job is in exactly one of the two.
local index, flag, on_probation = KEYS[1], KEYS[2], KEYS[3]
local early, most, room = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
local lists = tonumber(ARGV[4])
local parked_of, queue_of, probation_of, counters_of = unpack(ARGV, 5, 8)
local expires = {}
for i = 9, #ARGV, 2 do expires[ARGV[i]] = ARGV[i + 1] end
local now = now()
local due = string.format('%.0f', now + early)
local counted = redis.call('EXISTS', flag) == 1
redis.call('SISMEMBER', on_probation, '')

local count, unfinished = 0, 0
local function release(name)
  local parked, queue, probation = parked_of .. name, queue_of .. name, probation_of .. name
  redis.call('ZREM', parked, '')  -- a removal first, and arrival before departure (shared.lua)
  -- The latest first: in front of each comes the one that is due before it.
  local members = redis.call('ZRANGE', parked, due, '-inf', 'BYSCORE', 'REV', 'LIMIT', 0, most)
  local left, to_queue = room, false
  for at, member in ipairs(members) do
    if left <= 0 then unfinished = 1; break end
    left = left - #member
    local payload = string.sub(member, (string.find(member, '\n') or 0) + 1)
    -- A key of another type says as little as none.
    local suspect = counted
      and redis.pcall('HEXISTS', counters_of .. redis.sha1hex(payload), 'probation') == 1
    if suspect then
      redis.call('SADD', on_probation, name)
      redis.call('LPUSH', probation, payload)
    else
      redis.call('RPUSH', queue, payload)
      to_queue = true
    end
    redis.call('ZREM', parked, member)
    count = count + 1
  end
  if #members == most then unfinished = 1 end
  if to_queue and expires[name] then redis.call('PEXPIRE', queue, expires[name]) end
end
-- Some lists in one script, since thousands would keep the server; first whose job is due longest.
for at, name in ipairs(redis.call('ZRANGEBYSCORE', index, '-inf', due, 'LIMIT', 0, lists)) do
  if at == lists then unfinished = 1 end
  local kind = redis.call('TYPE', parked_of .. name).ok
  if kind ~= 'zset' then
    redis.call('ZREM', index, name)  -- purged, or flushed
  elseif takes(queue_of .. name) and takes(probation_of .. name) then
    release(name)
    local first = redis.call('ZRANGE', parked_of .. name, 0, 0, 'WITHSCORES')
    if first[2] then
      redis.call('ZADD', index, first[2], name)
    else
      redis.call('ZREM', index, name)
    end
  end
end
local first = redis.call('ZRANGE', index, 0, 0, 'WITHSCORES')
return {count, unfinished, string.format('%.0f', now), first[2] or false}
