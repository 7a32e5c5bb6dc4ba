-- present: the workers that are there, by this clock.
-- keys: workers.
local now = redis.call('time')
redis.call('zremrangebyscore', KEYS[1], '-inf', string.format('%s%06d', now[1], now[2]))
return redis.call('zrange', KEYS[1], 0, -1)
