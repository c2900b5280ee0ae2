-- Reads the newest claims of a private list.
-- KEYS: private list
-- ARGV: most jobs, most bytes (but for the job that passes the mark), how many to leave out first
-- Returns: payloads, newest first
-- Crash: nothing was changed.
local private, most, room, first = KEYS[1], tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
local payloads = {}
for at = first, first + most - 1 do
  local payload = room > 0 and redis.call('LRANGE', private, at, at)[1]
  if not payload then break end
  payloads[#payloads + 1], room = payload, room - #payload
end
return payloads
