-- leads: a worker leads, or still does, as the database has decided.
-- The mirror is only ever raised, whoever holds the lock. Whoever tells of a newer epoch than was known takes the
-- lock from another: that one got it while nothing was known here of the database's decision.
-- Numbers are exact here up to 2^53; what is higher was never an epoch and is put right.
-- keys: lock, epoch, last seen. arguments: worker, epoch, milliseconds.
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
