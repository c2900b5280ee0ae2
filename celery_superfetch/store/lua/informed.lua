-- Says whether the caller of a dead job awaits a notice still, and records if it was informed. A job that is
-- retried and dies again has the same id, another record and another notice.
-- KEYS: unannounced, dead jobs, the lock of the job's retry
-- ARGV: job id, id of the notice in the record that the caller of this script has read (empty: it has none),
--       1 when the job's caller has been informed
-- Returns: 1; 0 if the caller awaits none any more, or another: then nothing is recorded; -1 if it awaits this
--       notice, but a retry has deleted the job's old result and is about to put the job on its queue: if it
--       was informed now, it would get the failure of a job that runs
-- Crash: the caller is recorded as informed, or is not.
local unannounced, jobs, retry = KEYS[1], KEYS[2], KEYS[3]
local id, notice, is_informed = ARGV[1], ARGV[2], ARGV[3] == '1'
local record = redis.call('HGET', jobs, id)
if not record or redis.call('SISMEMBER', unannounced, id) == 0 then return 0 end
-- In the JSON of a record a quote within a text has a backslash: this finds no payload that looks like it.
local is_same
if notice == '' then
  is_same = not string.find(record, '"notice": "[^"]')
else
  is_same = string.find(record, '"notice": "' .. notice .. '"', 1, true)
end
if not is_same then return 0 end
if is_informed then
  redis.call('SREM', unannounced, id)
  return 1
end
if is_locked(retry) then return -1 end
return 1
