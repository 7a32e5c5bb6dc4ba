-- publish_leader: a worker states that it leads, as the database has decided.
-- The stored epoch only rises, whoever holds the lock. A worker with a newer epoch than the stored one takes the lock from
-- another worker: that one got the lock while Redis did not know the decision of the database.
-- Numbers are exact up to 2^53. A higher stored value was never an epoch and is replaced.
-- keys: lock, epoch, last_seen_ts. arguments: worker id, epoch, lock ttl in milliseconds.
local known = tonumber(redis.call('get', KEYS[2])) or 0
if not (known < 2 ^ 53) then
    known = 0
end
local newer = tonumber(ARGV[2]) > known
if newer then
    redis.call('set', KEYS[2], ARGV[2])
end
local holder = redis.call('get', KEYS[1])
if holder and holder ~= ARGV[1] and not newer then
    return false
end
local now = redis.call('time')
local micros = string.format('%s%06d', now[1], now[2])
redis.call('set', KEYS[1], ARGV[1], 'px', ARGV[3])
redis.call('set', KEYS[3], ARGV[1] .. ' ' .. ARGV[2] .. ' ' .. micros)
return true
