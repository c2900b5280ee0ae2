-- Counts what some owners have in flight.
-- KEYS: the facts of each owner
-- ARGV: for each owner what stands before its queue lists in the names of its private lists and of
--       its held jobs, then the name of its running jobs. Its lists are named by its facts: there
--       may be a hundred for each of a thousand owners
-- Returns: for each owner how many run, then for each queue list that it has a job of its name, how
--       many lie in its private list, and how many are held aside
-- Crash: nothing was changed.
local function number(...)
  local answer = redis.pcall(...)
  return type(answer) == 'number' and answer or 0
end
local found = {}
for i = 1, #KEYS do
  local private, held, running = ARGV[3 * i - 2], ARGV[3 * i - 1], ARGV[3 * i]
  -- One field is none of its jobs.
  local row = {number('HLEN', running) - number('HEXISTS', running, 'ran')}
  local lists = redis.pcall('HGET', KEYS[i], 'lists')
  local known, names = pcall(cjson.decode, type(lists) == 'string' and lists or '{}')
  for name in pairs(known and type(names) == 'table' and names or {}) do
    local near, aside = number('LLEN', private .. name), number('HLEN', held .. name)
    if near + aside > 0 then
      row[#row + 1], row[#row + 2], row[#row + 3] = name, near, aside
    end
  end
  found[i] = row
end
return found
