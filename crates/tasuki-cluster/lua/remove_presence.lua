-- remove_presence: a worker leaves. Deletes its hash, its entry in the set of workers, and the subleader lock of its node
-- if this worker still holds it.
-- keys: worker hash, set of workers, subleader lock (optional). arguments: worker id.
redis.call('del', KEYS[1])
redis.call('zrem', KEYS[2], ARGV[1])
if KEYS[3] and redis.call('get', KEYS[3]) == ARGV[1] then
    redis.call('del', KEYS[3])
end
