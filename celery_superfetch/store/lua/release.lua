-- Moves parked jobs whose time has come to the front of their queues, or to probation. Each worker's
-- release thread calls it.
-- KEYS: index of queue lists with parked jobs, the flag that some job has a history, index of queue lists
--       with probation
-- ARGV: ms before its time at which a job moves; most jobs, and bytes, of the whole script; most lists;
--       prefixes of the parked jobs, of the queue lists, of the probation lists (empty: suspects go to their
--       queues, too) and of histories; then each queue list that has an x-expires, and that (ms). The index
--       names the lists, and not KEYS: there may be thousands, and few have something due
-- Returns: number of jobs that moved, 1 where more are due, server ms, when the next one is due (ms; or
--       nil), number of lists that were examined
-- Crash: each job is in exactly one of the two places. A repetition moves what is due by then.
local index, flag, on_probation = KEYS[1], KEYS[2], KEYS[3]
local early, most, room = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
local lists = tonumber(ARGV[4])
local parked_of, queue_of, probation_of, counters_of = unpack(ARGV, 5, 8)
local expires = {}
for i = 9, #ARGV, 2 do expires[ARGV[i]] = ARGV[i + 1] end
local now = now()
local due = string.format('%.0f', now + early)
local has_probation = probation_of ~= ''
local counted = has_probation and redis.call('EXISTS', flag) == 1
read_note('set', 'SISMEMBER', on_probation, '')

local count = 0
delete_foreign()
local function move(name, member)
  local payload = string.sub(member, (string.find(member, '\n') or 0) + 1)
  -- A history key of another type counts as none: if it raised, no job would be released.
  local suspect = counted
    and redis.pcall('HEXISTS', counters_of .. redis.sha1hex(payload), 'solo_runs') == 1
  if suspect then
    redis.call('SADD', on_probation, name)
    redis.call('LPUSH', probation_of .. name, payload)
  else
    redis.call('RPUSH', queue_of .. name, payload)
  end
  redis.call('ZREM', parked_of .. name, member)
  count, room = count + 1, room - #member
  return not suspect
end
-- Moves what is due in one list, as far as the script has room: the latest first, since in front of
-- each comes the one that is due before it.
local function release(name)
  local parked, to_queue, pages, largest = parked_of .. name, false, 1, 1
  redis.call('ZREM', parked, '')  -- a removal first, and arrival before departure (shared.lua)
  while count < most and room > 0 do
    -- As many as have room if all are as large as the largest yet: what is read and does not go
    -- would cost as much as what goes.
    local page = math.min(pages, most - count, math.ceil(room / largest))
    local members = redis.call('ZRANGE', parked, due, '-inf', 'BYSCORE', 'REV', 'LIMIT', 0, page)
    for at, member in ipairs(members) do
      if at > 1 and room <= 0 then break end
      to_queue = move(name, member) or to_queue
      largest = math.max(largest, #member)
    end
    if #members < page then break end
    pages = 8
  end
  if to_queue and expires[name] then redis.call('PEXPIRE', queue_of .. name, expires[name]) end
end
local looked = 0
-- First the list whose earliest job has been due for longest.
for _, name in ipairs(redis.call('ZRANGEBYSCORE', index, '-inf', due, 'LIMIT', 0, lists)) do
  if count >= most or room <= 0 then break end
  looked = looked + 1
  local kind = redis.call('TYPE', parked_of .. name).ok
  if kind ~= 'zset' then
    redis.call('ZREM', index, name)  -- its parked jobs were purged, or flushed
  elseif not (takes(queue_of .. name) and (not has_probation or takes(probation_of .. name))) then
    -- If many such lists came first each time, no job of another list would be released.
    redis.call('ZADD', index, string.format('%.0f', now + 1000), name)
  else
    release(name)
    local first = redis.call('ZRANGE', parked_of .. name, 0, 0, 'WITHSCORES')
    if first[2] then
      -- Behind the others that have something due: if one with 100,000 came first until it is
      -- empty, a job of another one would wait as long.
      local behind = tonumber(first[2]) < now and string.format('%.0f', now) or first[2]
      redis.call('ZADD', index, behind, name)
    else
      redis.call('ZREM', index, name)
    end
  end
end
local first = redis.call('ZRANGE', index, 0, 0, 'WITHSCORES')
local unfinished = first[2] and tonumber(first[2]) <= now + early and 1 or 0
return {count, unfinished, string.format('%.0f', now), first[2] or false, looked}
