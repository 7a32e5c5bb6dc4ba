-- hide: a worker leaves, and no longer watches for its node. Another that watches there by now goes on.
-- keys: the worker, workers, its node's lock. arguments: worker.
redis.call('del', KEYS[1])
redis.call('zrem', KEYS[2], ARGV[1])
if KEYS[3] and redis.call('get', KEYS[3]) == ARGV[1] then
    redis.call('del', KEYS[3])
end
