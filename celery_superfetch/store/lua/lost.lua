-- Counts jobs whose ownership was lost while their owner lives, or jobs that the server lost.
-- KEYS: stats, rows of stats
-- ARGV: event ("ownership_lost", or "lost": the latest losses are counted by themselves, too, with the times
--       of the first and the last of them), ms without a loss after which that count begins anew, then for
--       each job its queue list and the name of its task (empty: it is not registered)
-- Returns: nothing
-- Crash: they are counted, or not.
local stats, rows, event, pause_ms = KEYS[1], KEYS[2], ARGV[1], tonumber(ARGV[2])
local jobs = (#ARGV - 2) / 2
read_note('hash', 'HLEN', stats)
delete_foreign()
redis.pcall('HINCRBY', stats, event, jobs)
if event == 'lost' then
  local now = now()
  local last = counter(redis.call('HGET', stats, 'lost\tat'))
  -- A last loss in the future is from before the server's clock was set back.
  if now - last > pause_ms or last > now then
    redis.call('HSET', stats, 'lost\tsince', now, 'lost\tlately', 0)
  end
  redis.call('HSETNX', stats, 'lost\tsince', now)
  redis.pcall('HINCRBY', stats, 'lost\tlately', jobs)
  redis.call('HSET', stats, 'lost\tat', now)
end
for i = 3, #ARGV, 2 do count_by_task(stats, rows, event, ARGV[i], ARGV[i + 1]) end
