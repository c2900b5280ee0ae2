-- Counts what some owners have in flight.
-- KEYS: the facts of each owner
-- ARGV: for each owner what stands before its queue lists in the names of its private lists and of
--       its held jobs, then the name of its running jobs. Its lists are named by its facts: there
--       may be a hundred for each of a thousand owners
-- Returns: for each owner how many lie in its private lists, how many are held aside, and how many
--       run
-- Crash: nothing was changed.
local function number(...)
  local answer = redis.pcall(...)
  return type(answer) == 'number' and answer or 0
end
local found = {}
for i = 1, #KEYS do
  local private, held, running = ARGV[3 * i - 2], ARGV[3 * i - 1], ARGV[3 * i]
  local near, aside = 0, 0
  local lists = redis.pcall('HGET', KEYS[i], 'lists')
  local known, names = pcall(cjson.decode, type(lists) == 'string' and lists or '{}')
  for name in pairs(known and type(names) == 'table' and names or {}) do
    near = near + number('LLEN', private .. name)
    aside = aside + number('HLEN', held .. name)
  end
  -- Two fields are none of its jobs.
  local runs = number('HLEN', running) - number('HEXISTS', running, 'alone')
    - number('HEXISTS', running, 'ran')
  found[#found + 1], found[#found + 2], found[#found + 3] = near, aside, runs
end
return found
