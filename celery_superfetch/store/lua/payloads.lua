-- Reads some claims, or dead jobs, until it is enough for one reply.
-- KEYS: the hash of each
-- ARGV: bytes that are enough, then claim ids, or those of dead jobs
-- Returns: the payloads of the first of them, nil for each that is not there
-- Crash: nothing was changed.
local room = tonumber(ARGV[1])
local payloads = {}
for i, hash in ipairs(KEYS) do
  local payload = redis.call('HGET', hash, ARGV[i + 1])
  payloads[i] = payload
  room = room - (payload and #payload or 0)
  if room <= 0 then break end
end
return payloads
