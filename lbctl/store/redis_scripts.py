"""The scripts that a Redis or Valkey server runs atomically.

Keys: the leader, its last epoch, the sorted index of the entries' keys, their values, their versions, the revision, the
members by expiry of their announcements, and the announcements. No script reads any other key of the database. The
leader's value is `EPOCH INSTANCE MEMBER`. An epoch is at least the server's time in milliseconds, so that it grows even
if the server was emptied. A version begins with the epoch that wrote it, and never repeats.
"""

from __future__ import annotations

ACQUIRE = """
local held = redis.call('GET', KEYS[1])
if held then
  if string.find(held, ' ' .. ARGV[1] .. ' ', 1, true) then
    redis.call('PEXPIRE', KEYS[1], ARGV[3])
    return held
  end
  return held
end
local time = redis.call('TIME')
local epoch = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
local last = tonumber(redis.call('GET', KEYS[2]) or '0')
if not last then return redis.error_reply('ERR ' .. KEYS[2] .. ' holds no epoch of lbctl') end
if last >= epoch then epoch = last + 1 end
epoch = string.format('%.0f', epoch)
held = epoch .. ' ' .. ARGV[1] .. ' ' .. ARGV[2]
redis.call('SET', KEYS[2], epoch)
redis.call('SET', KEYS[1], held, 'PX', ARGV[3])
return held
"""
"""Arguments: instance, member, milliseconds. Returns the current leader's value, which may belong to another member."""

RENEW = """
if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 0 end
redis.call('PEXPIRE', KEYS[1], ARGV[2])
return 1
"""
"""Arguments: the leader's value, milliseconds. Returns 1 if the lease was extended, 0 if it was lost."""

RELEASE = """
if redis.call('GET', KEYS[1]) == ARGV[1] then redis.call('DEL', KEYS[1]) end
return 1
"""
"""Argument: the leader's value."""

_GUARD = """
local held = redis.call('GET', KEYS[1])
local epoch = held and string.match(held, '^%d+') or ''
if epoch ~= ARGV[1] then return {'FENCED', epoch} end
local version = redis.call('ZSCORE', KEYS[3], ARGV[2]) and redis.call('HGET', KEYS[5], ARGV[2]) or ''
if version ~= ARGV[3] then return {'CONFLICT', version} end
"""

PUT = (
    _GUARD
    + """
version = epoch .. '-' .. redis.call('INCR', KEYS[6])
redis.call('ZADD', KEYS[3], 0, ARGV[2])
redis.call('HSET', KEYS[4], ARGV[2], ARGV[5])
redis.call('HSET', KEYS[5], ARGV[2], version)
redis.call('PUBLISH', ARGV[4], ARGV[2])
return {'OK', version}
"""
)
"""Arguments: epoch, key, expected version, channel, value. Returns OK, FENCED or CONFLICT with the current number."""

DELETE = (
    _GUARD
    + """
redis.call('ZREM', KEYS[3], ARGV[2])
redis.call('HDEL', KEYS[4], ARGV[2])
redis.call('HDEL', KEYS[5], ARGV[2])
redis.call('PUBLISH', ARGV[4], ARGV[2])
return {'OK', ''}
"""
)
"""Arguments: epoch, key, expected version, channel."""

READ = """
local result = {}
for _, prefix in ipairs(ARGV) do
  local first, last = '-', '+'
  if prefix ~= '' then
    first, last = '[' .. prefix, '(' .. prefix .. '\\255'
  end
  for _, key in ipairs(redis.call('ZRANGEBYLEX', KEYS[3], first, last)) do
    result[#result + 1] = key
    result[#result + 1] = redis.call('HGET', KEYS[4], key) or ''
    result[#result + 1] = redis.call('HGET', KEYS[5], key) or ''
  end
end
return result
"""
"""Arguments: prefixes. Returns key, value and version of each entry."""

_NOW = """
local time = redis.call('TIME')
local now = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
"""

ANNOUNCE = (
    _NOW
    + """
for _, member in ipairs(redis.call('ZRANGEBYSCORE', KEYS[7], '-inf', now)) do
  redis.call('ZREM', KEYS[7], member)
  redis.call('HDEL', KEYS[8], member)
end
redis.call('ZADD', KEYS[7], now + ARGV[3], ARGV[1])
redis.call('HSET', KEYS[8], ARGV[1], ARGV[2])
local last = redis.call('ZREVRANGE', KEYS[7], 0, 0, 'WITHSCORES')[2]
redis.call('PEXPIREAT', KEYS[7], last)
redis.call('PEXPIREAT', KEYS[8], last)
return 1
"""
)
"""Arguments: member, announcement, milliseconds.

Removes expired announcements. Both keys of the member expire with the last announcement.
"""

MEMBERS = (
    _NOW
    + """
local result = {}
for _, member in ipairs(redis.call('ZRANGEBYSCORE', KEYS[7], '(' .. now, '+inf')) do
  result[#result + 1] = member
  result[#result + 1] = redis.call('HGET', KEYS[8], member) or ''
end
return result
"""
)
"""Returns the name and the announcement of each member."""
