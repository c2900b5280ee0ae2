-- Finds the jobs of one id, or of a part of an id or of a task's name, and returns no others: to return all
-- would cost far more.
-- KEYS: the hash, or the list or sorted set, of each
-- ARGV: the id as JSON writes it, or the part in lower case, the digest (empty: no job is sought by it), 1
--       to search for a part (0: for an id), jobs to return at most,
--       bytes of jobs that are enough for one script, jobs of a list to examine at most, jobs of one read
--       of a list, then for each key the field of a hash: a claim id, or the id of a dead job; empty: the
--       key is a list, whose next jobs are examined, or a sorted set
-- Returns: how many keys were examined, how many jobs, 1 if one of these keys has jobs that were not examined,
--       then for each job that was found the position of its key, from 1, and its payload. A job with the id
--       in another part of its message is not found: its parent's id, say
-- Crash: nothing was changed.
local id, digest, is_part = ARGV[1], ARGV[2], ARGV[3] == '1'
local wanted, room = tonumber(ARGV[4]), tonumber(ARGV[5])
local most, page, OF_ALL = tonumber(ARGV[6]), tonumber(ARGV[7]), 7
local ID_FIELDS = {id = true, correlation_id = true, task_id = true}
local NAME_FIELDS = {'"task":', '"id":', '"correlation_id":', '"task_id":'}
-- Bytes of a name that are compared (a blank, a quote, and 300, or as many as the part has), and fields of one
-- name that are read: a message may have any number.
local NAME_MAX, FIELDS_MAX = math.max(302, #id + 2), 20
local found, examined, is_cut = {}, 0, 0
local function has_part(payload)
  for _, field in ipairs(NAME_FIELDS) do
    local first, last = string.find(payload, field, 1, true)
    for _ = 1, FIELDS_MAX do
      if not first then break end
      local name = string.match(string.sub(payload, last + 1, last + NAME_MAX), '^%s?"([^"]*)')
      if name and string.find(string.lower(name), id, 1, true) then return true end
      first, last = string.find(payload, field, last, true)
    end
  end
  return false
end
local function is_meant(payload)
  if is_part then return has_part(payload) end
  local first, last = string.find(payload, id, 1, true)
  while first do
    local name = string.match(string.sub(payload, math.max(1, first - 24), first - 1), '"([%a_]+)":%s?$')
    if name and ID_FIELDS[name] then return true end
    first, last = string.find(payload, id, last, true)
  end
  return digest ~= '' and redis.sha1hex(payload) == digest
end
local function examine(at, payload)
  examined, room = examined + 1, room - #payload
  if is_meant(payload) then found[#found + 1], found[#found + 2] = at, payload end
end
local function is_enough() return room <= 0 or #found >= 2 * wanted end
local function length_of(key, kind)
  if kind == 'list' then return redis.call('LLEN', key) end
  return kind == 'zset' and redis.call('ZCARD', key) or 0
end
local function examine_all(at, key, kind)
  local first = 0
  while first < most and not is_enough() do
    local items = {}
    if kind == 'list' then
      items = redis.call('LRANGE', key, -first - page, -first - 1)
    elseif kind == 'zset' then
      items = redis.call('ZRANGE', key, first, first + page - 1)
    end
    -- The next job to be claimed is the last one of a list.
    local from, to, step = 1, #items, 1
    if kind == 'list' then from, to, step = #items, 1, -1 end
    for n = from, to, step do
      local item = items[n]
      -- A parked job follows a line with its id.
      examine(at, kind == 'zset' and string.sub(item, (string.find(item, '\n') or 0) + 1) or item)
      -- Some large jobs of one read may be more than enough.
      if is_enough() then return end
    end
    if #items < page then return end
    first = first + page
  end
end
for at, key in ipairs(KEYS) do
  local field = ARGV[OF_ALL + at]
  if field == '' then
    local before, kind = examined, redis.call('TYPE', key).ok
    examine_all(at, key, kind)
    if examined - before < length_of(key, kind) then is_cut = 1 end
  else
    local payload = redis.pcall('HGET', key, field)
    if type(payload) == 'string' then examine(at, payload) end
  end
  if is_enough() then return {at, examined, is_cut, unpack(found)} end
end
return {#KEYS, examined, is_cut, unpack(found)}
