-- stand: a worker asks to try for the lead. Takes the lock where it is free or its own, and answers with the
-- highest epoch known here; answers nothing where another holds it.
-- keys: lock, epoch. arguments: worker, milliseconds.
local holder = redis.call('get', KEYS[1])
if holder and holder ~= ARGV[1] then
    return false
end
redis.call('set', KEYS[1], ARGV[1], 'px', ARGV[2])
return redis.call('get', KEYS[2]) or '0'
