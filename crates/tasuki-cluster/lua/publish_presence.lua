-- publish_presence: a worker writes its heartbeat. Returns whether the worker was detached, and the leader whose term was ended.
-- The hash is written anew, so that an absent field does not keep its old value. Workers whose entry has expired are removed
-- from the set here, so that the set does not grow if no process reads it.
-- keys: worker hash, set of workers, detach mark of the worker, ended term. arguments: worker id, ttl in milliseconds, fields and values.
local now = redis.call('time')
local micros = string.format('%s%06d', now[1], now[2])
redis.call('del', KEYS[1])
redis.call('hset', KEYS[1], 'last_heartbeat_ts', micros, unpack(ARGV, 3))
redis.call('pexpire', KEYS[1], ARGV[2])
redis.call('zremrangebyscore', KEYS[2], '-inf', micros)
redis.call('zadd', KEYS[2], tonumber(micros) + ARGV[2] * 1000, ARGV[1])
return { redis.call('exists', KEYS[3]), redis.call('get', KEYS[4]) }
