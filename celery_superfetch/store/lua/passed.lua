-- Records a pass as the last one, and counts it.
-- KEYS: the last pass, stats
-- ARGV: field and value of each thing that is known of it
-- Returns: nothing
-- Crash: the pass is recorded, and counted or not.
local pass, stats = KEYS[1], KEYS[2]
redis.pcall('HSET', pass, 'at', string.format('%.0f', now()), unpack(ARGV))
redis.call('EXPIRE', pass, 604800)
local numbers = {}
for i = 1, #ARGV, 2 do numbers[ARGV[i]] = tonumber(ARGV[i + 1]) end
if not numbers.seconds then return end
local sums = {number = 1, ms = numbers.seconds * 1000, owners = numbers.owners, errors = numbers.errors}
for name, growth in pairs(sums) do
  redis.pcall('HINCRBY', stats, 'pass\t' .. name, string.format('%.0f', growth))
end
