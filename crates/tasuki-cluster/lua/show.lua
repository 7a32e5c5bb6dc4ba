-- show: a worker is there. Answers with what others want of it: whether it was detached, and what was left for
-- the leader that was degraded. The hash is written anew, so that a field that is gone does not stay. Those that
-- vanished without a word are taken off the list here, so that it does not grow where nobody reads it.
-- keys: the worker, workers, its detach, degrade. arguments: worker, milliseconds, fields and values.
local now = redis.call('time')
local micros = string.format('%s%06d', now[1], now[2])
redis.call('del', KEYS[1])
redis.call('hset', KEYS[1], 'heartbeat', micros, unpack(ARGV, 3))
redis.call('pexpire', KEYS[1], ARGV[2])
redis.call('zremrangebyscore', KEYS[2], '-inf', micros)
redis.call('zadd', KEYS[2], tonumber(micros) + ARGV[2] * 1000, ARGV[1])
return { redis.call('exists', KEYS[3]), redis.call('get', KEYS[4]) }
