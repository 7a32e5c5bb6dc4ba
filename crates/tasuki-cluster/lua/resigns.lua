-- resigns: a worker no longer leads. What is another's by now stays.
-- keys: lock, last seen. arguments: worker.
if redis.call('get', KEYS[1]) == ARGV[1] then
    redis.call('del', KEYS[1])
end
local seen = redis.call('get', KEYS[2])
if seen and string.sub(seen, 1, #ARGV[1] + 1) == ARGV[1] .. ' ' then
    redis.call('del', KEYS[2])
end
