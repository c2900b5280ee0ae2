-- Tells since when the oldest job of some queue lists has been the oldest there.
-- KEYS: what is known of them, then the queue lists
-- ARGV: 1 to note what is new, else 0; then the queue lists' names, in the same order
-- Returns: the server's time, then for each list since when (both ms), 0 where none waits, or where
--       nobody has noted it
-- Crash: what has been noted stays.
local heads, notes = KEYS[1], ARGV[1] == '1'
local clock = redis.call('TIME')
local now = clock[1] * 1000 + math.floor(clock[2] / 1000)
local since = {now}
for i = 2, #KEYS do
  local name, at = ARGV[i], 0
  local payload = redis.pcall('LINDEX', KEYS[i], -1)
  local known = redis.call('HGET', heads, name)
  if type(payload) ~= 'string' then
    if known and notes then redis.call('HDEL', heads, name) end
  else
    -- A message ends with its ids, and may begin with megabytes.
    local head = redis.sha1hex(string.sub(payload, -1024))
    if known and string.sub(known, 1, 40) == head then
      at = tonumber(string.sub(known, 42)) or now
    elseif notes then
      at = now
      -- Over the memory limit of a server before 7.0 it stays unknown: it is a note, no job.
      redis.pcall('HSET', heads, name, head .. ' ' .. string.format('%.0f', now))
    end
  end
  since[#since + 1] = at
end
if notes then redis.call('EXPIRE', heads, 86400) end
return since
