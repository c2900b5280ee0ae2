-- Stores a new record of a dead job, with how far its announcement has come.
-- KEYS: dead jobs, the cap of each, the bytes under each cap
-- ARGV: id, digest of the record that was read, the new record
-- Returns: 1; 0 if the job left the dead set, or has another record by now
-- Crash: the record is the old one or the new one, and the bytes fit it.
local jobs, caps, bytes = unpack(KEYS, 1, 3)
local id, seen, record = unpack(ARGV, 1, 3)
local before, cap = redis.call('HGET', jobs, id), redis.call('HGET', caps, id)
if not before or redis.sha1hex(before) ~= seen then return 0 end
redis.call('HSET', jobs, id, record)
if cap then redis.pcall('HINCRBY', bytes, cap, #record - #before) end
return 1
