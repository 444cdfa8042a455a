"""What the workers share of the recording target: its script, and every call that was made.

It is an instrument, so that a fleet's deliveries can be scripted and counted in one place. Everything lies under
`recording:` and is gone a day after the last write.
"""

from collections.abc import Sequence
from typing import Final

from shared.state.client import Script, State, Value

CALLS_CAP: Final = 200_000
TTL_MS: Final = 86_400_000

_SCRIPT: Final = "recording:script"
_CALLS: Final = "recording:calls"
_TOTAL: Final = "recording:total"
_SEEN: Final = "recording:seen"
_COUNTERS: Final = "recording:counters"

_SET = Script[bytes](
    "redis.call('DEL', KEYS[2]) return redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])", repeatable=True
)
_GET = Script[bytes | None]("return redis.call('GET', KEYS[1])", repeatable=True)

# KEYS calls, total, seen  ARGV cap, ttl ms, (has key, key, call) ...  Replies ordinal, stored now, ...
_RECORD = Script[list[int]]("""
local cap, ttl = tonumber(ARGV[1]), ARGV[2]
local out = {}
for i = 3, #ARGV, 3 do
  local keyed = ARGV[i] == '1'
  local seen = keyed and redis.call('ZSCORE', KEYS[3], ARGV[i + 1])
  if seen then
    out[#out + 1] = tonumber(seen)
    out[#out + 1] = 0
  else
    local ordinal = redis.call('INCR', KEYS[2])
    redis.call('RPUSH', KEYS[1], ARGV[i + 2])
    if keyed then redis.call('ZADD', KEYS[3], ordinal, ARGV[i + 1]) end
    out[#out + 1] = ordinal
    out[#out + 1] = 1
  end
end
redis.call('LTRIM', KEYS[1], -cap, -1)
redis.call('ZREMRANGEBYSCORE', KEYS[3], '-inf', (redis.call('GET', KEYS[2]) or 0) - cap)
for i = 1, 3 do redis.call('PEXPIRE', KEYS[i], ttl) end
return out
""")

# KEYS counters  ARGV ttl ms, counter, ...
_NEXT = Script[list[int]]("""
local out = {}
for i = 2, #ARGV do out[#out + 1] = redis.call('HINCRBY', KEYS[1], ARGV[i], 1) end
redis.call('PEXPIRE', KEYS[1], ARGV[1])
return out
""")

# KEYS calls, total  ARGV start, count. Positions count from the first call ever, of which the oldest may be trimmed.
_PAGE = Script[list[bytes]](
    """
local trimmed = (redis.call('GET', KEYS[2]) or 0) - redis.call('LLEN', KEYS[1])
local from, to = ARGV[1] - trimmed, ARGV[1] + ARGV[2] - trimmed - 1
if to < 0 then return {} end
return redis.call('LRANGE', KEYS[1], math.max(from, 0), to)
""",
    repeatable=True,
)

_CLEAR = Script[int]("return redis.call('DEL', unpack(KEYS))", repeatable=True)


class Board:
    """The recording target's script and calls. All methods raise `StateUnavailable` when there is no answer."""

    def __init__(self, state: State, cap: int = CALLS_CAP) -> None:
        self._state = state
        self._cap = cap

    async def set_script(self, data: bytes) -> None:
        """Sets the script that every worker obeys from now on; counting starts anew."""
        await self._state.call(_SET, [_SCRIPT, _COUNTERS], [data, TTL_MS])

    async def get_script(self) -> bytes | None:
        """The script, or None if none was set."""
        return await self._state.call(_GET, [_SCRIPT], [])

    async def record(self, calls: Sequence[bytes], keys: Sequence[str | None]) -> list[tuple[int, bool]]:
        """Stores calls, less those whose idempotency key is known. Beyond the cap the oldest are dropped.

        Args:
            calls: the calls as they are to be read again.
            keys: the idempotency key of each, or None.

        Returns:
            For each its ordinal, from 1, and whether it was stored just now.
        """
        if not calls:
            return []
        args: list[Value] = [self._cap, TTL_MS]
        for call, key in zip(calls, keys, strict=True):
            args += (0, b"", call) if key is None else (1, key.encode("utf-8", "surrogatepass"), call)
        flat = await self._state.call(_RECORD, [_CALLS, _TOTAL, _SEEN], args)
        return [(ordinal, bool(now)) for ordinal, now in zip(flat[::2], flat[1::2], strict=True)]

    async def next_ordinals(self, counters: Sequence[str]) -> list[int]:
        """Counts each counter up by one; the first value is 1."""
        if not counters:
            return []
        return await self._state.call(_NEXT, [_COUNTERS], [TTL_MS, *counters])

    async def calls(self, start: int, count: int) -> list[bytes]:
        """Reads calls in order: `count` of them after the first `start`, so ordinal n is at start n - 1."""
        return await self._state.call(_PAGE, [_CALLS, _TOTAL], [start, count])

    async def clear(self) -> None:
        """Forgets the script, the calls and the counters."""
        await self._state.call(_CLEAR, [_SCRIPT, _CALLS, _TOTAL, _SEEN, _COUNTERS], [])
