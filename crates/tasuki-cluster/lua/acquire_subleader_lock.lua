-- acquire_subleader_lock: a worker wants to be, or to stay, the subleader of its node. Returns 1 if it holds the lock now.
-- keys: lock. arguments: worker id, ttl in milliseconds.
local holder = redis.call('get', KEYS[1])
if holder and holder ~= ARGV[1] then
    return 0
end
redis.call('set', KEYS[1], ARGV[1], 'px', ARGV[2])
return 1
