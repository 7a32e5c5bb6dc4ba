-- leader_seen: the leader as it was last seen, and what the time is now. Both by this clock, because the
-- difference between two clocks would be taken for age.
-- keys: last seen.
local seen = redis.call('get', KEYS[1])
if not seen then
    return false
end
local now = redis.call('time')
return seen .. ' ' .. string.format('%s%06d', now[1], now[2])
