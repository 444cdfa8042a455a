"""Leases with an epoch, and who is alive: how the fleet agrees on who does what.

All expiry is the server's: no clock of this process is compared with another's (field report 40).
"""

from collections.abc import Mapping, Sequence
from typing import Final, Protocol

import msgspec

from shared.state.client import Script, State, Value

#: A counter begins at the server's time in milliseconds, so that epochs keep growing after the server has forgotten
#: everything; hence it may expire too.
COUNTER_TTL_MS: Final = 86_400_000

# KEYS lease, counter, ...  ARGV owner, ttl ms, counter ttl ms. Replies an epoch, or 0, a lease.
_ACQUIRE = Script[list[int]](
    """
local owner, ttl, keep = ARGV[1], ARGV[2], ARGV[3]
local out = {}
for i = 1, #KEYS, 2 do
  local held = redis.call('GET', KEYS[i])
  local epoch = 0
  if not held then
    if redis.call('EXISTS', KEYS[i + 1]) == 0 then
      local time = redis.call('TIME')
      redis.call('SET', KEYS[i + 1], string.format('%.0f', time[1] * 1000 + math.floor(time[2] / 1000)))
    end
    epoch = redis.call('INCR', KEYS[i + 1])
    redis.call('PEXPIRE', KEYS[i + 1], keep)
    redis.call('SET', KEYS[i], epoch .. ' ' .. owner, 'PX', ttl)
  else
    local space = string.find(held, ' ', 1, true)
    if string.sub(held, space + 1) == owner then
      epoch = tonumber(string.sub(held, 1, space - 1))
      redis.call('PEXPIRE', KEYS[i], ttl)
    end
  end
  out[#out + 1] = epoch
end
return out
""",
    repeatable=True,
)

# KEYS lease, counter, ...  ARGV owner, ttl ms, counter ttl ms, epoch, ...
# A lease that is gone is put back if nobody has had it since: its counter still stands at our epoch, or is lost too.
_RENEW = Script[list[int]](
    """
local owner, ttl, keep = ARGV[1], ARGV[2], ARGV[3]
local out = {}
for i = 1, #KEYS, 2 do
  local epoch = ARGV[3 + (i + 1) / 2]
  local held = redis.call('GET', KEYS[i])
  local kept = 0
  if held then
    if held == epoch .. ' ' .. owner then kept = redis.call('PEXPIRE', KEYS[i], ttl) end
  else
    local counter = redis.call('GET', KEYS[i + 1])
    if not counter or counter == epoch then
      redis.call('SET', KEYS[i], epoch .. ' ' .. owner, 'PX', ttl)
      kept = 1
    end
  end
  if kept == 1 then redis.call('SET', KEYS[i + 1], epoch, 'PX', keep) end
  out[#out + 1] = kept
end
return out
""",
    repeatable=True,
)

# KEYS lease, counter  ARGV owner, epoch, counter ttl ms. The counter moves on, so that a renewal under way does not
# put the lease back.
_RELEASE = Script[int]("""
if redis.call('GET', KEYS[1]) ~= ARGV[2] .. ' ' .. ARGV[1] then return 0 end
redis.call('SET', KEYS[2], string.format('%.0f', ARGV[2] + 1), 'PX', ARGV[3])
return redis.call('DEL', KEYS[1])
""")

# KEYS group  ARGV member, ttl ms. Replies whether the member was known, then the live members.
_BEAT = Script[tuple[int, list[bytes]]]("""
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', now)
local known = redis.call('ZSCORE', KEYS[1], ARGV[1])
redis.call('ZADD', KEYS[1], now + ARGV[2], ARGV[1])
redis.call('PEXPIRE', KEYS[1], ARGV[2])
return {known and 1 or 0, redis.call('ZRANGE', KEYS[1], 0, -1)}
""")

_LEAVE = Script[int]("return redis.call('ZREM', KEYS[1], ARGV[1])", repeatable=True)

_MEMBERS = Script[list[bytes]](
    """
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
return redis.call('ZRANGEBYSCORE', KEYS[1], '(' .. now, '+inf')
""",
    repeatable=True,
)

_HOLDERS = Script[list[bytes | None]](
    """
local out = {}
for i = 1, #KEYS do out[i] = redis.call('GET', KEYS[i]) end
return out
""",
    repeatable=True,
)


class Beat(msgspec.Struct, frozen=True):
    """What a heartbeat learns.

    Args:
        members: all that live, sorted, the caller among them.
        known: the group remembered the caller. False at its first beat, and when the state has forgotten the group.
    """

    members: list[str]
    known: bool


class LeaseStore(Protocol):
    """Where leases are kept: `Leases`, or `MemoryLeases` for tests by a manual clock. A ttl is in seconds."""

    async def acquire_all(self, names: Sequence[str], owner: str, ttl: float) -> dict[str, int]:
        """Takes the leases that are free or the owner's already, in one round trip; gives their epochs."""
        ...

    async def renew_all(self, owner: str, epochs: Mapping[str, int], ttl: float) -> set[str]:
        """Prolongs leases in one round trip, putting back those that were forgotten; gives the names still held."""
        ...

    async def release(self, name: str, owner: str, epoch: int) -> bool:
        """Gives a lease back; False if it was no longer held."""
        ...

    async def beat(self, group: str, member: str, ttl: float) -> Beat:
        """Says that a member of a group lives, and learns who else does."""
        ...

    async def leave(self, group: str, member: str) -> None:
        """Takes a member out of a group."""
        ...

    async def holders(self, names: Sequence[str]) -> dict[str, str]:
        """Who holds what; free leases are left out."""
        ...


class Leases:
    """Leases in the shared state. See `LeaseStore`.

    All its methods raise `StateUnavailable` when there is no answer.
    """

    def __init__(self, state: State) -> None:
        self._state = state

    async def acquire(self, name: str, owner: str, ttl: float) -> int | None:
        """Takes one lease.

        Returns:
            Its epoch, greater than that of every holder before; the same again for the same owner; None if another
            holds it.
        """
        return (await self.acquire_all([name], owner, ttl)).get(name)

    async def acquire_all(self, names: Sequence[str], owner: str, ttl: float) -> dict[str, int]:
        """See `LeaseStore.acquire_all`."""
        epochs = await self._state.call(_ACQUIRE, _keys(names), [owner, _ms(ttl), COUNTER_TTL_MS]) if names else []
        return {name: epoch for name, epoch in zip(names, epochs, strict=True) if epoch}

    async def renew_all(self, owner: str, epochs: Mapping[str, int], ttl: float) -> set[str]:
        """See `LeaseStore.renew_all`."""
        if not epochs:
            return set()
        args: list[Value] = [owner, _ms(ttl), COUNTER_TTL_MS, *epochs.values()]
        kept = await self._state.call(_RENEW, _keys(list(epochs)), args)
        return {name for name, held in zip(epochs, kept, strict=True) if held}

    async def release(self, name: str, owner: str, epoch: int) -> bool:
        """See `LeaseStore.release`."""
        return bool(await self._state.call(_RELEASE, _keys([name]), [owner, epoch, COUNTER_TTL_MS]))

    async def join(self, group: str, member: str, ttl: float) -> list[str]:
        """Says that a member lives; gives the live members, sorted."""
        return (await self.beat(group, member, ttl)).members

    async def beat(self, group: str, member: str, ttl: float) -> Beat:
        """See `LeaseStore.beat`."""
        known, members = await self._state.call(_BEAT, [f"members:{group}"], [member, _ms(ttl)])
        return Beat(members=sorted(name.decode() for name in members), known=bool(known))

    async def members(self, group: str) -> list[str]:
        """The live members of a group, sorted, without joining it."""
        found = await self._state.call(_MEMBERS, [f"members:{group}"], [])
        return sorted(name.decode() for name in found)

    async def leave(self, group: str, member: str) -> None:
        """See `LeaseStore.leave`."""
        await self._state.call(_LEAVE, [f"members:{group}"], [member])

    async def holders(self, names: Sequence[str]) -> dict[str, str]:
        """See `LeaseStore.holders`."""
        held = await self._state.call(_HOLDERS, [_lease(name) for name in names], []) if names else []
        pairs = zip(names, held, strict=True)
        return {name: value.partition(b" ")[2].decode() for name, value in pairs if value is not None}


def _lease(name: str) -> str:
    return f"lease:{name}"


def _keys(names: Sequence[str]) -> list[str]:
    return [key for name in names for key in (_lease(name), f"epoch:{name}")]


def _ms(seconds: float) -> int:
    return max(1, round(seconds * 1000))
