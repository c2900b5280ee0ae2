-- Reads what is remembered of some jobs: a command for each would cost more than the answers.
-- KEYS: each job's counters
-- ARGV: the fields
-- Returns: for each job its fields, each of which may be missing
-- Crash: nothing was changed.
local rows = {}
for i, counters in ipairs(KEYS) do
  rows[i] = read_note('hash', 'HMGET', counters, unpack(ARGV))
  -- A row of another type is as long as any: Lua cannot have a list of missing values, but of these.
  for at = 1, #ARGV do rows[i][at] = rows[i][at] or false end
end
return rows
