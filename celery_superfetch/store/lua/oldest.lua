-- Returns since when the oldest job of some queue lists has been the oldest there; a pass notes it.
-- KEYS: what is known of the lists
-- ARGV: prefix of queue lists, mode (0: only read, 1: note, 2: note and return the lists that have a note),
--       bytes of messages that are enough for one script, then the names of the queue lists: there may be
--       thousands, and few have a job
-- Returns: {the server's time, then for each of the first lists, one at least, since when (both ms), 0
--       where none waits or no pass has noted it; the caller asks again for the others}, {in mode 2 the
--       names of the queue lists that had a note before this call}
-- Crash: what has been noted stays.
local oldest, prefix, mode, room = KEYS[1], ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])
local notes, names_noted = mode > 0, mode == 2
local now = now()

local function since(name)
  local payload = redis.pcall('LINDEX', prefix .. name, -1)
  local noted = redis.pcall('HGET', oldest, name)
  if type(noted) ~= 'string' then noted = false end  -- a key of another type says as little as none
  if type(payload) ~= 'string' then
    if noted and notes then redis.call('HDEL', oldest, name) end
    return 0
  end
  room = room - #payload
  -- A message ends with its ids, and may begin with megabytes.
  local head = redis.sha1hex(string.sub(payload, -1024))
  if noted and string.sub(noted, 1, 40) == head then return tonumber(string.sub(noted, 42)) or now end
  if not notes then return 0 end
  -- Over the memory limit of a server before 7.0 it stays unknown: it is a note, no job.
  redis.pcall('HSET', oldest, name, head .. ' ' .. string.format('%.0f', now))
  return now
end

local noted = {}
if notes then
  local reply = read_note('hash', names_noted and 'HKEYS' or 'HLEN', oldest)
  if names_noted then noted = reply end
  delete_foreign()
end
local times = {now}
for i = 4, #ARGV do
  times[#times + 1] = since(ARGV[i])
  if room <= 0 then break end
end
if notes then redis.call('EXPIRE', oldest, 86400) end
return {times, noted}
