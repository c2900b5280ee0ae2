-- Reads what lies in some lists, hashes and sorted sets, one after the other, until it is enough for
-- one reply.
-- KEYS: those
-- ARGV: jobs, and bytes, that are enough, jobs of one read, where to begin in the first key (0: at
--       its begin)
-- Returns: pages, of each key in turn, a list's from the right: what comes meanwhile comes at the
--       left; of parked jobs the payloads, the least score first. Each has where the next one of its key begins (0: there is none), then payloads, a
--       hash's each after its field
-- Crash: nothing was changed.
local most, room, page, at = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3]), ARGV[4]
local pages = {}
for _, key in ipairs(KEYS) do
  local kind = redis.call('TYPE', key).ok
  repeat
    local rows = {}
    if kind == 'hash' then
      local step = redis.call('HSCAN', key, at, 'COUNT', page)
      at, rows = step[1], step[2]
    elseif kind == 'list' then
      local seen = tonumber(at)
      local found = redis.call('LRANGE', key, -seen - page, -seen - 1)
      at = #found < page and '0' or string.format('%d', seen + page)
      for i = #found, 1, -1 do rows[#rows + 1] = found[i] end
    elseif kind == 'zset' then
      local seen = tonumber(at)
      local members = redis.call('ZRANGE', key, seen, seen + page - 1)
      at = #members < page and '0' or string.format('%d', seen + page)
      for i, member in ipairs(members) do
        rows[i] = string.sub(member, (string.find(member, '\n', 1, true) or 0) + 1)
      end
    else
      at = '0'  -- it has gone since the last look began in it
    end
    pages[#pages + 1] = {at, rows}
    most = most - #rows
    for _, row in ipairs(rows) do room = room - #row end
    if most <= 0 or room <= 0 then return pages end
  until at == '0'
end
return pages
