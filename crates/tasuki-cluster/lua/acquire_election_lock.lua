-- acquire_election_lock: a worker wants to become leader. Takes the lock if it is free or its own, and returns the highest
-- epoch that Redis knows. Returns nothing if another worker holds the lock.
-- keys: lock, epoch. arguments: worker id, ttl in milliseconds.
local holder = redis.call('get', KEYS[1])
if holder and holder ~= ARGV[1] then
    return false
end
redis.call('set', KEYS[1], ARGV[1], 'px', ARGV[2])
return redis.call('get', KEYS[2]) or '0'
