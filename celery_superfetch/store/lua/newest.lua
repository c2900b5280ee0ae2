-- Reads the newest claims of a private list.
-- KEYS: private list
-- ARGV: most jobs, most bytes (but for the job that passes the mark)
-- Returns: payloads, newest first
-- Crash: nothing was changed.
local private, most, room = KEYS[1], tonumber(ARGV[1]), tonumber(ARGV[2])
local payloads = {}
for at = 0, most - 1 do
  local payload = room > 0 and redis.call('LRANGE', private, at, at)[1]
  if not payload then break end
  payloads[#payloads + 1], room = payload, room - #payload
end
return payloads
