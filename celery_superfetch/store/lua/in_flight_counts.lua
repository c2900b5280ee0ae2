-- Counts the jobs that some owners have in flight.
-- KEYS: the record of each owner
-- ARGV: claims and queue lists that are enough for one script, then for each owner the name of its
--       private list, and the prefix of its landing lists. The queue lists come from its record: there may
--       be thousands for each of a thousand owners
-- Returns: for each of the first owners, one at least, how many jobs run, then for each queue list from
--       which it has jobs the name, and how many; the caller asks again for the other owners
-- Crash: nothing was changed.
local rows, room = {}, tonumber(ARGV[1])
for i = 1, #KEYS do
  local private, landing = ARGV[2 * i], ARGV[2 * i + 1]
  local runs, sizes, row = 0, {}, {}
  local fields = redis.pcall('HKEYS', private)
  for _, field in ipairs(fields.err and {} or fields) do
    if string.byte(field) == 119 then  -- w: a note that one waits
      runs = runs - 1
    elseif string.byte(field) ~= 115 then  -- s: a note of its steps
      if string.find(field, '^%d') then runs = runs + 1 end
      local name = string.sub(field, (string.find(field, ':') or 0) + 1)
      sizes[name] = (sizes[name] or 0) + 1
    end
  end
  local lists = redis.pcall('HGET', KEYS[i], 'lists')
  local readable, decoded = pcall(cjson.decode, type(lists) == 'string' and lists or '{}')
  local names, keys = {}, {}
  for name in pairs(readable and type(decoded) == 'table' and decoded or {}) do
    names[#names + 1], keys[#keys + 1] = name, landing .. name
  end
  -- Mostly none of a hundred is there, and one question tells.
  local there = call_in_parts('EXISTS', nil, keys) > 0
  for at, name in ipairs(there and names or {}) do
    local size = redis.pcall('LLEN', keys[at])
    if type(size) == 'number' and size > 0 then sizes[name] = (sizes[name] or 0) + size end
  end
  row[1] = runs
  for name, size in pairs(sizes) do row[#row + 1], row[#row + 2] = name, size end
  rows[i] = row
  room = room - #fields - #names
  if room <= 0 then break end
end
return rows
