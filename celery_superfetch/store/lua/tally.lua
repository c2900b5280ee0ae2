-- Counts jobs by queue list and task, for metrics: stands before the scripts that call `tally`.
-- KEYS: none of its own, nor ARGV
-- Returns: nothing. What fails is not counted: it is worth no job's way
-- Crash: it is a part of its script. Rows are bounded: beyond 2,000 fields a new one has no task,
--       beyond 2,500 no queue either; nor has one whose task is not in its headers, or very long.
local function tally(stats, what, queue_list, payload)
  -- Celery's header, in JSON. A body is in base64, or the quotes in it have backslashes.
  local at = string.find(payload, '"task":', 1, true)
  local task = at and string.match(payload, '^%s*"([^"\\%c]*)"', at + 7) or ''
  if #task > 200 then task = '' end
  local size = redis.pcall('HLEN', stats)
  if type(size) ~= 'number' then return end
  local row = what .. '\t' .. queue_list .. '\t'
  local known = redis.pcall('HEXISTS', stats, row .. task) == 1
  if size < 2000 or known then
    row = row .. task
  elseif size >= 2500 and redis.pcall('HEXISTS', stats, row) ~= 1 then
    row = what .. '\t\t'
  end
  redis.pcall('HINCRBY', stats, row, 1)
end

