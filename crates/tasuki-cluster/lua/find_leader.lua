-- find_leader: returns the leader that was last published ("worker epoch microseconds") and the current time. Both times
-- come from the clock of Redis, because the difference between two clocks would look like age.
-- keys: last_seen_ts.
local seen = redis.call('get', KEYS[1])
if not seen then
    return false
end
local now = redis.call('time')
return seen .. ' ' .. string.format('%s%06d', now[1], now[2])
