"""The scripts of `shared.state.budgets`, where their rules are told."""

from typing import Final

from shared.state.client import Script

# All numbers are microseconds. A number is written out in full: Lua's own way keeps 14 digits only.
_COMMON: Final = """
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local function text(number) return string.format('%.0f', number) end
local function keep(key, span)
  local ms = math.ceil(span / 1000)
  if redis.call('PTTL', key) < ms then redis.call('PEXPIRE', key, text(ms)) end
end
"""

# KEYS state, line, places, ... for every need of every request.
# ARGV turn, grace, cap, (kind, ticket or reserve, needs, (interval, slack) ...) ...  Replies the wait of each; 0: go.
#   state   tat: when the bucket is full again; deadline: nothing before it. After a deadline the bucket is empty.
#   line    the finals that wait for this scope, by arrival
#   places  the moment that each of them was promised
TAKE: Final = Script[list[int]](
    _COMMON
    + """
local turn, grace, cap = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
local tidied = {}
local function tidy(k)
  if tidied[KEYS[k]] then return end
  tidied[KEYS[k]] = true
  for _, ticket in ipairs(redis.call('ZRANGEBYSCORE', KEYS[k + 2], '-inf', text(now - grace))) do
    redis.call('ZREM', KEYS[k + 1], ticket)
    redis.call('ZREM', KEYS[k + 2], ticket)
  end
end
local function level(need)
  local state = redis.call('HMGET', KEYS[need.k], 'tat', 'deadline')
  -- No honest bucket is emptier than that: the server's clock was set back, or the rate was raised.
  local tat = math.min(tonumber(state[1] or '0'), now + need.slack + need.interval)
  return math.max(tat, tonumber(state[2] or '0') + need.slack)
end
local function arrival(needs, ticket, first)
  for _, need in ipairs(needs) do
    first = math.min(first, tonumber(redis.call('ZSCORE', KEYS[need.k + 1], ticket) or first))
  end
  return first
end
-- Of those ahead, the ones whose own moment came before mine, and a turn ago, had their chance: they may be dead.
local function passed_by(need, since, promised)
  local older = redis.call('ZRANGEBYSCORE', KEYS[need.k + 1], '-inf', '(' .. text(since), 'LIMIT', 0, 100)
  local over, count = math.min(promised, now - turn), 0
  for _, moment in ipairs(#older > 0 and redis.call('ZMSCORE', KEYS[need.k + 2], unpack(older)) or older) do
    if moment and tonumber(moment) < over then count = count + 1 end
  end
  return count
end
local function wait_of_final(need, ticket, since)
  local ahead = redis.call('ZCOUNT', KEYS[need.k + 1], '-inf', '(' .. text(since))
  local promised = ahead > 0 and tonumber(redis.call('ZSCORE', KEYS[need.k + 2], ticket) or now + 1)
  if promised and promised <= now then ahead = ahead - passed_by(need, since, promised) end
  if ahead == 0 then return need.level - need.slack - now end
  -- A bucket that rests holds no more than its burst, so those ahead are not overtaken because they are late.
  return math.max(need.level, now) - need.slack + ahead * need.interval - now
end
local function wait_of_cosmetic(need, reserve)
  local wait = need.level - need.slack + reserve * (need.slack + need.interval) - now
  local waiting = redis.call('ZCARD', KEYS[need.k + 1])
  return waiting == 0 and wait or math.max(wait, 0) + waiting * need.interval
end
local function consume(need)
  local tat = math.max(need.level, now) + need.interval
  redis.call('HSET', KEYS[need.k], 'tat', text(tat))
  keep(KEYS[need.k], tat - now + need.slack + need.interval)
end
local function leave(need, ticket)
  redis.call('ZREM', KEYS[need.k + 1], ticket)
  redis.call('ZREM', KEYS[need.k + 2], ticket)
end
local function stand(need, ticket, since, wait)
  local line, places = KEYS[need.k + 1], KEYS[need.k + 2]
  if redis.call('ZCARD', line) >= cap and not redis.call('ZSCORE', line, ticket) then return end
  redis.call('ZADD', line, text(since), ticket)
  redis.call('ZADD', places, text(now + wait), ticket)
  keep(line, wait + grace)
  keep(places, wait + grace)
end
local out = {}
local k, a = 1, 4
while a <= #ARGV do
  local is_final, given, needs = ARGV[a] == 'final', ARGV[a + 1], {}
  for i = 1, tonumber(ARGV[a + 2]) do
    needs[i] = {k = k, interval = tonumber(ARGV[a + 1 + 2 * i]), slack = tonumber(ARGV[a + 2 + 2 * i])}
    tidy(k)
    needs[i].level = level(needs[i])
    k = k + 3
  end
  a = a + 3 + 2 * #needs
  local since = is_final and arrival(needs, given, now + #out)
  local longest, limiting = 0, nil
  for _, need in ipairs(needs) do
    local wait = is_final and wait_of_final(need, given, since) or wait_of_cosmetic(need, tonumber(given))
    if wait > longest then longest, limiting = wait, need end
  end
  longest = math.ceil(longest)
  for _, need in ipairs(needs) do
    if not limiting then consume(need) end
    if is_final and need ~= limiting then leave(need, given) end
  end
  if is_final and limiting then stand(limiting, given, since, longest) end
  out[#out + 1] = longest
end
return out
"""
)

_HOLD: Final = (
    _COMMON
    + """
local function hold(key, moment)
  local deadline = math.max(moment, tonumber(redis.call('HGET', key, 'deadline') or '0'))
  redis.call('HSET', key, 'deadline', text(deadline))
  keep(key, math.max(deadline - now, 0) + 600000000)
  return deadline
end
"""
)

# KEYS state  ARGV span. Replies the time to the deadline. Repeated, it is later by as long as the first try took.
BLOCK: Final = Script[int](
    _HOLD + "return math.ceil(math.max(hold(KEYS[1], now + ARGV[1]) - now, 0))",
    repeatable=True,
)

# KEYS the part's state, the whole's state, parts refused  ARGV span, part, cap. Replies as above.
BLOCK_PART: Final = Script[int](
    _HOLD
    + """
local deadline = hold(KEYS[1], now + ARGV[1])
redis.call('ZREMRANGEBYSCORE', KEYS[3], '-inf', text(now))
redis.call('ZADD', KEYS[3], text(deadline), ARGV[2])
redis.call('ZREMRANGEBYRANK', KEYS[3], 0, -1 - ARGV[3])
keep(KEYS[3], math.max(deadline - now, 1000))
if redis.call('ZCARD', KEYS[3]) > 1 then
  deadline = hold(KEYS[2], tonumber(redis.call('ZRANGE', KEYS[3], -1, -1, 'WITHSCORES')[2]))
end
return math.ceil(math.max(deadline - now, 0))
""",
    repeatable=True,
)
