-- Reads some claims of a private list, until it is enough for one reply.
-- KEYS: private list
-- ARGV: bytes that are enough, then claim ids
-- Returns: the payloads of the first of them, nil for each that is not there
-- Crash: nothing was changed.
local private, room = KEYS[1], tonumber(ARGV[1])
local payloads = {}
for i = 2, #ARGV do
  local payload = redis.call('HGET', private, ARGV[i])
  payloads[i - 1] = payload
  room = room - (payload and #payload or 0)
  if room <= 0 then break end
end
return payloads
