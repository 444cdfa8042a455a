"""Which partitions this member works on: leases shared out evenly over the live members of a group.

A partition is drained before its lease is given back, so two members never work on it at once. What cannot be renewed
for a ttl is let go at once, by the monotonic clock, counted from when the last renewal that succeeded was sent; the
server keeps the lease a little longer, so that no other takes it before. The broker's own guard lies beneath.
"""

import asyncio
import enum
import logging
from collections.abc import Coroutine
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from shared.clock import Clock
from shared.rebalance import Plan, rebalance
from shared.state.client import StateError
from shared.state.leases import LeaseStore

_log = logging.getLogger(__name__)

#: A member that the group has forgotten takes nothing for this many beats, while the others put back what they hold.
_SHY_BEATS: Final = 2


class PartitionHandlers(Protocol):
    """What is done with partitions. For one partition the calls never overlap, save that `lost` cuts others short."""

    async def acquired(self, p: int, epoch: int, /) -> None:
        """Starts taking work. If it raises, the lease is given back and tried again."""
        ...

    async def released(self, p: int, /) -> None:
        """Stops taking work; returns when the work in flight is settled. The lease is given back after that."""
        ...

    async def lost(self, p: int, /) -> None:
        """Stops at once, since another may own it. A call of the other two under way has been cancelled before."""
        ...


class _Stage(enum.Enum):
    HELD = enum.auto()
    DRAINING = enum.auto()
    RETURNING = enum.auto()
    LOST = enum.auto()


_RENEWED: Final = (_Stage.HELD, _Stage.DRAINING)


@dataclass
class _Seat:
    epoch: int
    renewed: float
    stage: _Stage = _Stage.HELD
    started: bool = False
    task: asyncio.Task[None] = field(init=False)


class PartitionOwner:
    """Keeps this member's share of the partitions of a group.

    Args:
        group: the group's name; partition p is the lease `{group}.{p}`.
        member: this member's name, unique while it lives.
        partitions: how many there are.
        leases: where leases are kept.
        clock: for all waits and deadlines.
        handlers: what is done with partitions.
        ttl: seconds without renewal after which a partition is lost.
        beat: seconds between renewals.
    """

    def __init__(
        self,
        group: str,
        member: str,
        partitions: int,
        leases: LeaseStore,
        clock: Clock,
        handlers: PartitionHandlers,
        ttl: float = 6.0,
        beat: float = 2.0,
    ) -> None:
        self._group = group
        self._member = member
        self._names = {p: f"{group}.{p}" for p in range(partitions)}
        self._leases = leases
        self._clock = clock
        self._handlers = handlers
        self._ttl = ttl
        self._beat = beat
        self._server_ttl = ttl + beat / 4
        self._seats: dict[int, _Seat] = {}
        self._joined = False
        self._shy = 0
        self._stopping = asyncio.Event()
        self._emptied = asyncio.Event()
        self._running: asyncio.Task[None] | None = None

    @property
    def owned(self) -> frozenset[int]:
        """The partitions this member works on, less those it is handing back."""
        return frozenset(p for p, seat in self._seats.items() if seat.stage is _Stage.HELD)

    async def run(self) -> None:
        """Works until `stop`. Cancelled, it drops everything as if killed, and its leases run out by themselves."""
        watch = asyncio.create_task(self._watch(), name=f"{self._group}-watch")
        self._running = asyncio.current_task()
        try:
            while not self._stopping.is_set():
                await self._pause(await self._tend(), self._stopping)
            await self._wind_down()
        finally:
            self._running = None
            watch.cancel()
            for p in list(self._seats):
                self._lose(p)
            await asyncio.gather(watch, *(s.task for s in self._seats.values()), return_exceptions=True)

    async def stop(self) -> None:
        """Leaves the group, drains every partition, gives back the leases, and ends `run`."""
        self._stopping.set()
        if self._running is not None:
            await asyncio.wait([self._running])

    async def _tend(self) -> float:
        """One beat; gives the seconds until the next."""
        try:
            known = await self._heartbeat()
            await self._renew()
            plan = await self._plan(known)
            await self._take(plan.take)
        except StateError as error:
            _log.warning("partitions of %s: no heartbeat: %s", self._group, error)
            return self._beat
        for p in plan.give:
            self._hand_back(p)
        return self._beat / 4 if plan.short else self._beat

    async def _heartbeat(self) -> list[str]:
        beat = await self._leases.beat(self._group, self._member, self._server_ttl)
        if self._joined and not beat.known:
            self._shy = _SHY_BEATS
        self._joined = True
        return beat.members

    async def _renew(self) -> None:
        sent = self._clock.monotonic()
        seats = {self._names[p]: (p, s) for p, s in self._seats.items() if s.stage in _RENEWED}
        epochs = {name: seat.epoch for name, (_, seat) in seats.items()}
        kept = await self._leases.renew_all(self._member, epochs, self._server_ttl)
        for name, (p, seat) in seats.items():
            if name in kept:
                seat.renewed = sent
            elif seat.stage in _RENEWED:
                self._lose(p)

    async def _plan(self, members: list[str]) -> Plan:
        held = await self._leases.holders(list(self._names.values()))
        # Not free: what others hold, and what is being let go here until its handler is done. A lease of ours without
        # a seat (lost while the state was away, or taken when the answer did not come) is free to us.
        holders = {p: held[name] for p, name in self._names.items() if held.get(name, self._member) != self._member}
        holders.update({p: self._member for p in self._seats if p not in holders})
        plan = rebalance(self._member, members, len(self._names), holders, self.owned)
        if not self._shy:
            return plan
        self._shy -= 1
        return Plan(take=(), give=plan.give, short=0)

    async def _take(self, wanted: tuple[int, ...]) -> None:
        if not wanted or self._stopping.is_set():
            return
        sent = self._clock.monotonic()
        epochs = await self._leases.acquire_all([self._names[p] for p in wanted], self._member, self._server_ttl)
        for p in wanted:
            epoch = epochs.get(self._names[p])
            if epoch is not None:
                seat = self._seats[p] = _Seat(epoch, sent)
                seat.task = self._spawn(p, self._start(p, seat))

    def _hand_back(self, p: int) -> None:
        seat = self._seats[p]
        if seat.stage is _Stage.HELD:
            seat.stage = _Stage.DRAINING
            seat.task = self._spawn(p, self._drain(p, seat, seat.task))

    def _lose(self, p: int) -> None:
        seat = self._seats[p]
        if seat.stage in _RENEWED:
            seat.stage = _Stage.LOST
            seat.task.cancel()
            seat.task = self._spawn(p, self._let_go(p, seat.task))

    async def _start(self, p: int, seat: _Seat) -> None:
        try:
            await self._handlers.acquired(p, seat.epoch)
            seat.started = True
        except Exception:  # noqa: BLE001 - whatever the handler raises
            _log.exception("partition %s.%d could not be taken up", self._group, p)
            self._hand_back(p)

    async def _drain(self, p: int, seat: _Seat, start: asyncio.Task[None]) -> None:
        await asyncio.gather(start, return_exceptions=True)
        try:
            if seat.started:
                await self._handlers.released(p)
        except Exception:  # noqa: BLE001 - whatever the handler raises
            _log.exception("partition %s.%d could not be drained", self._group, p)
            self._lose(p)  # its lease runs out by itself: what is in flight may not be settled
            return
        seat.stage = _Stage.RETURNING
        try:
            await self._leases.release(self._names[p], self._member, seat.epoch)
        except StateError as error:
            _log.warning("lease of %s.%d is left to run out: %s", self._group, p, error)
        self._unseat(p)

    async def _let_go(self, p: int, work: asyncio.Task[None]) -> None:
        await asyncio.gather(work, return_exceptions=True)
        try:
            await self._handlers.lost(p)
        except Exception:  # noqa: BLE001 - whatever the handler raises
            _log.exception("partition %s.%d could not be dropped", self._group, p)
        self._unseat(p)

    def _unseat(self, p: int) -> None:
        del self._seats[p]
        if not self._seats:
            self._emptied.set()

    async def _watch(self) -> None:
        while True:
            now = self._clock.monotonic()
            deadlines = {p: s.renewed + self._ttl for p, s in self._seats.items() if s.stage in _RENEWED}
            for p in [p for p, deadline in deadlines.items() if deadline <= now]:
                _log.warning("partition %s.%d is lost: not renewed for %.1f s", self._group, p, self._ttl)
                self._lose(p)
                del deadlines[p]
            # At least this often, for a seat that is new: no later than the server's own margin.
            await self._clock.sleep(min([*deadlines.values(), now + self._beat / 4]) - now)

    async def _wind_down(self) -> None:
        try:
            await self._leases.leave(self._group, self._member)
        except StateError as error:
            _log.warning("%s leaves %s unsaid: %s", self._member, self._group, error)
        self._emptied.clear()
        for p in list(self._seats):
            self._hand_back(p)
        while self._seats:
            try:
                await self._renew()
            except StateError as error:
                _log.warning("partitions of %s: no renewal while draining: %s", self._group, error)
            await self._pause(self._beat, self._emptied)

    async def _pause(self, seconds: float, unless: asyncio.Event) -> None:
        waits = [asyncio.ensure_future(self._clock.sleep(seconds)), asyncio.ensure_future(unless.wait())]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()

    def _spawn(self, p: int, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        return asyncio.create_task(work, name=f"{self._group}.{p}")
