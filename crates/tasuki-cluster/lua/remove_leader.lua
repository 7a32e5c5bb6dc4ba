-- remove_leader: a worker no longer leads. Deletes the lock and the entry of the leader if they are still its own.
-- keys: lock, last_seen_ts. arguments: worker id.
if redis.call('get', KEYS[1]) == ARGV[1] then
    redis.call('del', KEYS[1])
end
local seen = redis.call('get', KEYS[2])
if seen and string.sub(seen, 1, #ARGV[1] + 1) == ARGV[1] .. ' ' then
    redis.call('del', KEYS[2])
end
