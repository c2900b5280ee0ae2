-- Moves one job from a private list to the dead set, with its steps note, and pushes its notice (the job
-- that tells its caller) to the front of its queue.
-- KEYS: dead set, dead jobs, the caps of each, unannounced, bytes under each cap, stats, how many jobs kills
--       have dropped, the cap it is under, the owner record, private list, the job's history, its queue list,
--       rows of stats, series of the charts, rows of the charts
-- ARGV: claim id, 1 when the owner must be marked reaped, recoveries the decision saw, job id,
--       record (JSON), most jobs under that cap (0: the passes of another app enforce it), most bytes of
--       their records (0: any number), most jobs to drop for this one, 1 if its caller is to be told, queue
--       list, the notice (empty: there is none), the placeholder in it for the id in the dead set, ms of the
--       queue's x-expires (0: none), name of its task (empty: it is not registered)
-- Returns: {"ok", id in the dead set, 1 if its notice was pushed, else 0}; {"unmarked"}, {"moved"} or
--       {"recounted"} when the decision no longer holds
-- Crash: the job is in the dead set, and its notice is on the queue.
local dead, jobs, caps, unannounced, bytes, stats, dropped, cap, owner_record, private, counters, queue, rows,
  minutes, minute_rows = unpack(KEYS)
local claim, marked, expected, id, record = ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5]
local most_jobs, most_bytes, batch = tonumber(ARGV[6]), tonumber(ARGV[7]), tonumber(ARGV[8])
local is_told, queue_list = ARGV[9] == '1', ARGV[10]
local notice, placeholder, expires, task = ARGV[11], ARGV[12], tonumber(ARGV[13]), ARGV[14]
if marked == '1' and redis.call('HGET', owner_record, 'state') ~= 'reaped' then return {'unmarked'} end
local history = read_note('hash', 'HMGET', counters, 'recoveries')
if counter(history[1]) ~= tonumber(expected) then return {'recounted'} end
-- One comes, so one has to go, or as many as have its bytes; a lowered limit is reached by `trim`.
local size = redis.call('ZCARD', cap)
local full = most_jobs > 0 and size >= most_jobs
local going = surplus(cap, full and size - 1 or size, most_bytes, #record, batch)
capped(going)
read_note('hash', 'HLEN', bytes)
read_note('hash', 'HLEN', dropped)
-- Without a queue there is no notice, but the job is dead-lettered all the same.
if not takes(queue) then notice = '' end
local now = now()
local payload, steps = unpack(redis.call('HMGET', private, claim, 's' .. claim))
if not payload then return {'moved'} end
redis.call('HDEL', private, 'w')  -- a removal first, and arrival before departure (shared.lua)
delete_foreign(stats)
if steps then record = string.sub(record, 1, -2) .. ', "steps": "' .. steps .. '"}' end
-- Another item of the same bytes is there: both are kept, or killing one would lose the other.
-- By the time, a free name is found soon however many there are.
local name, number = id, now * 1000
while redis.call('HEXISTS', jobs, name) == 1 do
  name, number = string.format('%s-%.0f', id, number), number + 1
end
redis.call('ZADD', dead, now, name)
redis.call('ZADD', cap, now, name)
redis.call('HSET', caps, name, cap)
if is_told then redis.call('SADD', unannounced, name) end
redis.call('HSET', jobs, name, record)
redis.call('HDEL', private, claim, 'w' .. claim, 's' .. claim)
redis.call('DEL', counters)
redis.pcall('HINCRBY', bytes, cap, #record)
redis.pcall('HINCRBY', stats, 'killed', 1)
count_by_task(stats, rows, 'killed', queue_list, task)
chart(minutes, minute_rows, 'killed', queue_list, 1)
if notice ~= '' then
  local from, to = string.find(notice, placeholder)
  redis.call('RPUSH', queue, string.sub(notice, 1, from - 1) .. name .. string.sub(notice, to + 1))
  if expires > 0 then redis.call('PEXPIRE', queue, expires) end
end
if #going > 0 then
  drop(going, cap)
  redis.pcall('HINCRBY', stats, 'dead_dropped', #going)
  redis.pcall('HINCRBY', dropped, cap, #going)
end
return {'ok', name, notice ~= '' and 1 or 0}
