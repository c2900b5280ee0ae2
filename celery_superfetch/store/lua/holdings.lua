-- Counts what some owners have in flight.
-- KEYS: the facts of each owner
-- ARGV: for each owner what stands before its queue lists in the names of its private lists, then
--       the name of its running jobs. Its lists are named by its facts: there may be a hundred for
--       each of a thousand owners
-- Returns: for each owner how many run, then for each queue list that it has a job of its name, and
--       how many
-- Crash: nothing was changed.
local function number(...)
  local answer = redis.pcall(...)
  return type(answer) == 'number' and answer or 0
end
local found = {}
for i = 1, #KEYS do
  local private, running = ARGV[2 * i - 1], ARGV[2 * i]
  -- One field is none of its jobs.
  local row = {number('HLEN', running) - number('HEXISTS', running, 'ran')}
  local lists = redis.pcall('HGET', KEYS[i], 'lists')
  local known, names = pcall(cjson.decode, type(lists) == 'string' and lists or '{}')
  for name in pairs(known and type(names) == 'table' and names or {}) do
    local size = number('LLEN', private .. name)
    if size > 0 then row[#row + 1], row[#row + 2] = name, size end
  end
  found[i] = row
end
return found
