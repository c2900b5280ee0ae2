-- Reads some claims, until it is enough for one reply.
-- KEYS: the private list of each
-- ARGV: bytes that are enough, then claim ids
-- Returns: the payloads of the first of them, nil for each that is not there
-- Crash: nothing was changed.
local room = tonumber(ARGV[1])
local payloads = {}
for i, private in ipairs(KEYS) do
  local payload = redis.call('HGET', private, ARGV[i + 1])
  payloads[i] = payload
  room = room - (payload and #payload or 0)
  if room <= 0 then break end
end
return payloads
