-- Reads what lies in some lists and sorted sets, one after the other, until it is enough for one reply.
-- KEYS: those
-- ARGV: jobs, and bytes, that are enough, jobs of one read, where to begin in the first key (0: at
--       its begin)
-- Returns: pages, of each key in turn: where the next one of its key begins (0: there is none), then
--       its jobs. A list is read from the right, since what comes meanwhile comes at the left; of
--       parked jobs come those with the least score
-- Crash: nothing was changed.
local most, room, page, at = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3]), ARGV[4]
local pages = {}
for _, key in ipairs(KEYS) do
  local kind = redis.call('TYPE', key).ok
  repeat
    local rows, seen, items = {}, tonumber(at), {}
    if kind == 'list' then
      items = redis.call('LRANGE', key, -seen - page, -seen - 1)
      for i = #items, 1, -1 do rows[#rows + 1] = items[i] end
    elseif kind == 'zset' then
      items = redis.call('ZRANGE', key, seen, seen + page - 1)
      for i, member in ipairs(items) do
        rows[i] = string.sub(member, (string.find(member, '\n') or 0) + 1)
      end
    end
    -- Another kind: it has gone since the last look began in it.
    at = #items < page and '0' or string.format('%d', seen + page)
    pages[#pages + 1] = {at, rows}
    most = most - #items
    for _, payload in ipairs(rows) do room = room - #payload end
    if most <= 0 or room <= 0 then return pages end
  until at == '0'
end
return pages
