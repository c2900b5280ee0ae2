-- Counts in the charts how many jobs a reap pass saw waiting on some queue lists; `passed` does so for all.
-- KEYS: series of the charts, rows of the charts
-- ARGV: queue list and number of its jobs, for each
-- Returns: nothing
-- Crash: they are counted, or not.
for at = 1, #ARGV, 2 do
  count_in_chart(KEYS[1], KEYS[2], 'waiting\t' .. ARGV[at], tonumber(ARGV[at + 1]), true)
end
