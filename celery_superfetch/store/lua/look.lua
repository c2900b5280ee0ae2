-- Reads what lies in some lists, private lists and sorted sets, one after the other, until it is
-- enough for one reply.
-- KEYS: those
-- ARGV: jobs, and bytes, that are enough, jobs of one read, where to begin in the first key (0: at
--       its begin)
-- Returns: pages, of each key in turn: where the next one of its key begins (0: there is none), then
--       name and payload of each job. A list is read from the right, since what comes meanwhile comes
--       at the left; of a private list what runs comes first, then the oldest claims, by the names of
--       their fields; of parked jobs those with the least score. Others have no name
-- Crash: nothing was changed.
local most, room, page, at = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3]), ARGV[4]

local function sorted(fields)
  local claims, runs = {}, {}
  for _, field in ipairs(fields) do
    if string.byte(field) == 114 then  -- r
      runs[string.sub(field, 2)] = true
    else
      claims[#claims + 1] = {field, tonumber(string.match(field, '^%d+') or '0')}
    end
  end
  table.sort(claims, function(one, other)
    local runs_one, runs_other = runs[one[1]] or false, runs[other[1]] or false
    if runs_one ~= runs_other then return runs_one end
    return one[2] < other[2]
  end)
  return claims, runs
end

local pages = {}
for _, key in ipairs(KEYS) do
  local kind, claims, runs = redis.call('TYPE', key).ok, nil, nil
  if kind == 'hash' then claims, runs = sorted(redis.call('HKEYS', key)) end
  repeat
    local rows, seen, count = {}, tonumber(at), 0
    local function add(name, payload)
      rows[#rows + 1], rows[#rows + 2] = name, payload
      room = room - #payload
    end
    if claims then
      for i = seen + 1, math.min(seen + page, #claims) do
        local field = claims[i][1]
        add((runs[field] and 'r' or '') .. field, redis.call('HGET', key, field))
        count = count + 1
      end
    elseif kind == 'list' then
      local found = redis.call('LRANGE', key, -seen - page, -seen - 1)
      count = #found
      for i = count, 1, -1 do add('', found[i]) end
    elseif kind == 'zset' then
      local members = redis.call('ZRANGE', key, seen, seen + page - 1)
      count = #members
      for _, member in ipairs(members) do
        add('', string.sub(member, (string.find(member, '\n', 1, true) or 0) + 1))
      end
    end
    -- Another kind: it has gone since the last look began in it.
    at = count < page and '0' or string.format('%d', seen + page)
    pages[#pages + 1] = {at, rows}
    most = most - count
    if most <= 0 or room <= 0 then return pages end
  until at == '0'
end
return pages
