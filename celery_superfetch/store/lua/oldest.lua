-- Tells since when the oldest job of some queue lists has been the oldest there; a pass notes it, of
-- these and of all that are noted already, and itself; with its `seconds` it is counted.
-- KEYS: what is known of the lists, the last pass, stats, then the queue lists
-- ARGV: prefix of queue lists, number of fields that tell of a pass (0: nobody's, nothing is noted),
--       those, then the names of the queue lists, in the order of their keys
-- Returns: the server's time, then for each list since when (both ms), 0 where none waits, or where
--       nobody has noted it
-- Crash: what has been noted stays.
local oldest, pass, stats, prefix, fields = KEYS[1], KEYS[2], KEYS[3], ARGV[1], tonumber(ARGV[2])
local notes = fields > 0
local now = now()

local function since(name)
  local payload = redis.pcall('LINDEX', prefix .. name, -1)
  local noted = redis.call('HGET', oldest, name)
  if type(payload) ~= 'string' then
    if noted and notes then redis.call('HDEL', oldest, name) end
    return 0
  end
  -- A message ends with its ids, and may begin with megabytes.
  local head = redis.sha1hex(string.sub(payload, -1024))
  if noted and string.sub(noted, 1, 40) == head then return tonumber(string.sub(noted, 42)) or now end
  if not notes then return 0 end
  -- Over the memory limit of a server before 7.0 it stays unknown: it is a note, no job.
  redis.pcall('HSET', oldest, name, head .. ' ' .. string.format('%.0f', now))
  return now
end

local times, given = {now}, {}
for i = fields + 3, #ARGV do
  times[#times + 1] = since(ARGV[i])
  given[ARGV[i]] = true
end
if notes then
  for _, name in ipairs(redis.call('HKEYS', oldest)) do
    if not given[name] then since(name) end
  end
  redis.pcall('HSET', pass, 'at', string.format('%.0f', now), unpack(ARGV, 3, fields + 2))
  redis.call('EXPIRE', pass, 604800)
  local numbers = {}
  for i = 3, fields + 2, 2 do numbers[ARGV[i]] = tonumber(ARGV[i + 1]) end
  if numbers.seconds then
    local sums = {number = 1, ms = numbers.seconds * 1000, owners = numbers.owners, errors = numbers.errors}
    for name, growth in pairs(sums) do
      redis.pcall('HINCRBY', stats, 'pass\t' .. name, string.format('%.0f', growth))
    end
  end
  redis.call('EXPIRE', oldest, 86400)
end
return times
