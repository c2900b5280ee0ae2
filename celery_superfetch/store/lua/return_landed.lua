-- Puts the jobs of landing lists back to the front of their queues. Blocking reads have moved them there,
-- and no claim has named them: no consumer has seen them, so nothing is counted.
-- KEYS: for each queue list the landing list, and the queue
-- ARGV: for each of them ms of the queue's x-expires (0: none)
-- Returns: number of jobs that went
-- Crash: each job is in exactly one of the two.
local landings, total = {}, 0
for i = 1, #ARGV do landings[i] = KEYS[2 * i - 1] end
-- Mostly none of a hundred is there, and one question tells.
if call_in_parts('EXISTS', nil, landings) == 0 then return 0 end
for i = 1, #ARGV do
  local landing, queue = KEYS[2 * i - 1], KEYS[2 * i]
  -- A removal first (shared.lua). It raises if the server refuses all writes: before 7.0 LMOVE answers an error
  -- then, as it does for a landing list of another type.
  read_note('list', 'LPOP', landing, 0)
  local payload = takes(queue) and redis.pcall('LMOVE', landing, queue, 'LEFT', 'RIGHT')
  local expires = type(payload) == 'string' and ARGV[i] ~= '0'
  while type(payload) == 'string' do  -- the newest first; an error is none
    total = total + 1
    payload = redis.call('LMOVE', landing, queue, 'LEFT', 'RIGHT')
  end
  if expires then redis.call('PEXPIRE', queue, ARGV[i]) end
end
return total
