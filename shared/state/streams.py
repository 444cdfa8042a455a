"""The text of streams while they run, so that another aggregator can take over and delivery reads the newest.

A stream is two strings that only grow: its text, headed by the last sequence, and the end offset of each delta. They
expire together; losing either (DEL, eviction) loses the stream as a whole, so nobody reads a shortened text as a full
one (field report 37).
"""

import struct
from collections.abc import Sequence
from typing import Final, Literal, cast

import msgspec

from shared.state.client import Script, State, Value

Status = Literal["ok", "closed", "behind", "too_many"]

_STATUSES: Final[tuple[Status, ...]] = ("ok", "closed", "behind", "too_many")
_HEAD: Final = 16

# KEYS text, ends, tombstone, open streams, ...  ARGV ttl ms, cap, head's length, (member, prior head, text, ends, head)
# Repeated, it finds its own text and says "behind".
_APPEND = Script[list[int]](
    """
local ttl, cap, width = ARGV[1], tonumber(ARGV[2]), ARGV[3]
local fresh = string.rep('0', width)
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local function admit(open, member)
  redis.call('ZREMRANGEBYSCORE', open, '-inf', now)
  return redis.call('ZSCORE', open, member) or redis.call('ZCARD', open) < cap
end
local function append(k, a)
  local text, ends, open = KEYS[k], KEYS[k + 1], KEYS[k + 3]
  local member, prior, head = ARGV[a], ARGV[a + 1], ARGV[a + 4]
  if redis.call('EXISTS', KEYS[k + 2]) == 1 then return 1 end
  local stored = redis.call('GETRANGE', text, 0, width - 1)
  local whole = stored ~= '' and redis.call('EXISTS', ends) == 1
  if whole then
    if stored ~= prior then return 2 end
    redis.call('SETRANGE', text, 0, head)
    redis.call('APPEND', text, ARGV[a + 2])
    redis.call('APPEND', ends, ARGV[a + 3])
    redis.call('PEXPIRE', text, ttl)
    redis.call('PEXPIRE', ends, ttl)
  else
    if prior ~= fresh then return 2 end
    if not admit(open, member) then return 3 end
    redis.call('SET', text, head .. ARGV[a + 2], 'PX', ttl)
    redis.call('SET', ends, ARGV[a + 3], 'PX', ttl)
  end
  redis.call('ZADD', open, now + ttl, member)
  redis.call('PEXPIRE', open, ttl)
  return 0
end
local out = {}
for i = 0, #KEYS / 4 - 1 do out[i + 1] = append(4 * i + 1, 5 * i + 4) end
return out
""",
    repeatable=True,
)

_GET = Script[list[bytes | None]](
    """
local out = {}
for i = 1, #KEYS do out[i] = redis.call('GET', KEYS[i]) end
return out
""",
    repeatable=True,
)

# KEYS text, ends, ...  A text whose ends are lost is lost.
_TEXTS = Script[list[bytes | None]](
    """
local out = {}
for i = 1, #KEYS, 2 do
  out[#out + 1] = redis.call('EXISTS', KEYS[i + 1]) == 1 and redis.call('GET', KEYS[i])
end
return out
""",
    repeatable=True,
)

# KEYS text, ends, tombstone, open streams, ...  ARGV ttl ms, member, ...
_CLOSE = Script[list[int]]("""
local out = {}
for i = 0, #KEYS / 4 - 1 do
  local k = 4 * i + 1
  out[i + 1] = redis.call('DEL', KEYS[k])
  redis.call('DEL', KEYS[k + 1])
  redis.call('SET', KEYS[k + 2], '1', 'PX', ARGV[1])
  redis.call('ZREM', KEYS[k + 3], ARGV[i + 2])
end
return out
""")


class Append(msgspec.Struct, frozen=True):
    """What one window adds to one stream.

    Args:
        channel: the channel's id.
        message_id: the stream's message.
        prior_seq: the last sequence that the state is believed to have; 0 begins a stream.
        text: the new part only, UTF-8.
        ends: the absolute end offset, in bytes of the whole text, of each new delta, as packed u32 little endian.
        last_seq: the last sequence of this window.
    """

    channel: str
    message_id: str
    prior_seq: int
    text: bytes
    ends: bytes
    last_seq: int


class StoredStream(msgspec.Struct, frozen=True):
    """A whole stream. The fields are as in `Append`, of all its deltas."""

    text: bytes
    ends: bytes
    last_seq: int


Key = tuple[str, str]


class Streams:
    """Streams in the shared state; a key is (channel, message id). Each method is one round trip, whatever it carries.

    All its methods raise `StateUnavailable` when there is no answer; an append may have happened then, and shows as
    "behind" when it is tried again.

    Args:
        state: the shared state.
        ttl_seconds: how long a stream outlives its last append, and how long a closed one is remembered.
        per_channel: the most streams that a channel may have open.
    """

    def __init__(self, state: State, ttl_seconds: float = 600, per_channel: int = 16) -> None:
        self._state = state
        self._ttl = max(1, round(ttl_seconds * 1000))
        self._cap = per_channel

    async def append(self, windows: Sequence[Append]) -> list[Status]:
        """Adds windows to their streams, in order.

        Returns:
            For each: "ok"; "closed", its final has come; "behind", what is stored ends at another sequence, or is
            gone: load it; "too_many", the channel has all the streams open that it may.
        """
        if not windows:
            return []
        keys: list[str | bytes] = []
        args: list[Value] = [self._ttl, self._cap, _HEAD]
        for window in windows:
            keys += _keys(window.channel, window.message_id)
            args += (
                _bytes(window.message_id),
                _head(window.prior_seq),
                window.text,
                window.ends,
                _head(window.last_seq),
            )
        return [_STATUSES[status] for status in await self._state.call(_APPEND, keys, args)]

    async def load(self, keys: Sequence[Key]) -> list[StoredStream | None]:
        """Reads whole streams; None for one that is not there, or no longer whole."""
        wanted = [part for key in keys for part in _keys(*key)[:2]]
        found = await self._state.call(_GET, wanted, []) if keys else []
        return [_stored(text, ends) for text, ends in zip(found[::2], found[1::2], strict=True)]

    async def texts(self, keys: Sequence[Key]) -> list[tuple[bytes, int] | None]:
        """Reads the newest text of streams, each with its last sequence."""
        wanted = [part for key in keys for part in _keys(*key)[:2]]
        found = await self._state.call(_TEXTS, wanted, []) if keys else []
        return [None if value is None else (value[_HEAD:], int(value[:_HEAD])) for value in found]

    async def close(self, keys: Sequence[Key]) -> list[bool]:
        """Ends streams: frees their place and leaves a tombstone. Says which were there."""
        if not keys:
            return []
        args: list[Value] = [self._ttl, *(_bytes(message_id) for _, message_id in keys)]
        found = await self._state.call(_CLOSE, [part for key in keys for part in _keys(*key)], args)
        return [bool(was) for was in found]

    async def closed(self, keys: Sequence[Key]) -> list[bool]:
        """Says which streams have a tombstone."""
        wanted = [_keys(*key)[2] for key in keys]
        found = await self._state.call(_GET, wanted, []) if keys else []
        return [value is not None for value in found]


def _stored(text: bytes | None, ends: bytes | None) -> StoredStream | None:
    if text is None or ends is None or not ends:
        return None
    body = text[_HEAD:]
    if cast("int", struct.unpack_from("<I", ends, len(ends) - 4)[0]) != len(body):
        return None
    return StoredStream(text=body, ends=ends, last_seq=int(text[:_HEAD]))


def _keys(channel: str, message_id: str) -> list[str | bytes]:
    # The length keeps apart (a:b, c) and (a, b:c).
    name = _bytes(f"{len(channel)}:{channel}:{message_id}")
    return [b"stream:text:" + name, b"stream:ends:" + name, b"stream:closed:" + name, b"streams:" + _bytes(channel)]


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


def _head(sequence: int) -> bytes:
    return b"%0*d" % (_HEAD, sequence)
