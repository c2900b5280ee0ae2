-- Reads what is remembered of some jobs: a command for each would cost more than the answers.
-- KEYS: each job's counters
-- ARGV: the fields
-- Returns: for each job its fields, each of which may be missing
-- Crash: nothing was changed.
local rows = {}
for i, counters in ipairs(KEYS) do rows[i] = redis.call('HMGET', counters, unpack(ARGV)) end
return rows
