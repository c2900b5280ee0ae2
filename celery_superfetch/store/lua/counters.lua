-- Reads the histories of some jobs: a command for each would cost more than the answers.
-- KEYS: each job's history
-- ARGV: the fields of a history
-- Returns: for each job its fields, each of which may be missing
-- Crash: nothing was changed.
local rows = {}
for i, counters in ipairs(KEYS) do
  local row = read_note('hash', 'HMGET', counters, unpack(ARGV))
  -- That of a key of another type is empty, and a row has as many values as there are fields.
  for at = #row + 1, #ARGV do row[at] = false end
  rows[i] = row
end
return rows
