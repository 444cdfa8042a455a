"""Leases in memory, their expiry told by an injected clock: an instrument for tests."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from shared.clock import Clock
from shared.state.client import StateUnavailable
from shared.state.leases import Beat


@dataclass(frozen=True)
class _Lease:
    owner: str
    epoch: int
    expires: float


class MemoryLeases:
    """Keeps the contract of `shared.state.leases.LeaseStore`; set `away` and every call is refused."""

    def __init__(self, clock: Clock) -> None:
        self.away = False
        self._clock = clock
        self._leases: dict[str, _Lease] = {}
        self._counters: dict[str, int] = {}
        self._groups: dict[str, dict[str, float]] = {}

    def forget(self) -> None:
        """Loses everything, as FLUSHALL does."""
        self._leases.clear()
        self._counters.clear()
        self._groups.clear()

    async def acquire(self, name: str, owner: str, ttl: float) -> int | None:
        """See `Leases.acquire`."""
        return (await self.acquire_all([name], owner, ttl)).get(name)

    async def acquire_all(self, names: Sequence[str], owner: str, ttl: float) -> dict[str, int]:
        """See `LeaseStore.acquire_all`."""
        now = self._now()
        taken = {name: self._take(name, owner, now, ttl) for name in names}
        return {name: epoch for name, epoch in taken.items() if epoch is not None}

    async def renew_all(self, owner: str, epochs: Mapping[str, int], ttl: float) -> set[str]:
        """See `LeaseStore.renew_all`."""
        now = self._now()
        kept = {name for name, epoch in epochs.items() if self._mine(name, owner, epoch)}
        for name in kept:
            self._leases[name] = _Lease(owner, epochs[name], now + ttl)
            self._counters[name] = epochs[name]
        return kept

    async def release(self, name: str, owner: str, epoch: int) -> bool:
        """See `LeaseStore.release`."""
        self._now()
        lease = self._leases.get(name)
        if lease is None or (lease.owner, lease.epoch) != (owner, epoch):
            return False
        del self._leases[name]
        self._counters[name] = epoch + 1
        return True

    async def join(self, group: str, member: str, ttl: float) -> list[str]:
        """See `Leases.join`."""
        return (await self.beat(group, member, ttl)).members

    async def beat(self, group: str, member: str, ttl: float) -> Beat:
        """See `LeaseStore.beat`."""
        now = self._now()
        members = {name: expires for name, expires in self._groups.get(group, {}).items() if expires > now}
        known = member in members
        self._groups[group] = {**members, member: now + ttl}
        return Beat(members=sorted(self._groups[group]), known=known)

    async def leave(self, group: str, member: str) -> None:
        """See `LeaseStore.leave`."""
        self._now()
        self._groups.get(group, {}).pop(member, None)

    async def holders(self, names: Sequence[str]) -> dict[str, str]:
        """See `LeaseStore.holders`."""
        self._now()
        return {name: self._leases[name].owner for name in names if name in self._leases}

    def _take(self, name: str, owner: str, now: float, ttl: float) -> int | None:
        lease = self._leases.get(name)
        if lease is not None and lease.owner != owner:
            return None
        epoch = lease.epoch if lease else self._counters.get(name, int(self._clock.now() * 1000)) + 1
        self._leases[name] = _Lease(owner, epoch, now + ttl)
        self._counters[name] = epoch
        return epoch

    def _mine(self, name: str, owner: str, epoch: int) -> bool:
        lease = self._leases.get(name)
        if lease is None:
            return self._counters.get(name, epoch) == epoch
        return (lease.owner, lease.epoch) == (owner, epoch)

    def _now(self) -> float:
        if self.away:
            raise StateUnavailable("switched off")
        now = self._clock.monotonic()
        self._leases = {name: lease for name, lease in self._leases.items() if lease.expires > now}
        return now
