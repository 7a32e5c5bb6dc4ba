-- watch: a worker asks to watch the leader for its node, or to go on with it.
-- keys: lock. arguments: worker, milliseconds.
local holder = redis.call('get', KEYS[1])
if holder and holder ~= ARGV[1] then
    return 0
end
redis.call('set', KEYS[1], ARGV[1], 'px', ARGV[2])
return 1
