"""Time as an argument: the system's clock, and one that tests move by hand."""

import asyncio
import heapq
import itertools
import time
from typing import Protocol


class Clock(Protocol):
    """Where time comes from. All values are seconds."""

    def now(self) -> float:
        """Wall time since the epoch: for what is stored, shown or sent."""
        ...

    def monotonic(self) -> float:
        """Time that never jumps: for leases, backoff and deadlines within a process (field report 40)."""
        ...

    async def sleep(self, seconds: float) -> None:
        """Waits; zero or less yields once."""
        ...


class SystemClock:
    """The machine's own clocks."""

    def now(self) -> float:
        """See `Clock.now`."""
        return time.time()

    def monotonic(self) -> float:
        """See `Clock.monotonic`."""
        return time.monotonic()

    async def sleep(self, seconds: float) -> None:
        """See `Clock.sleep`."""
        await asyncio.sleep(max(seconds, 0.0))


class ManualClock:
    """A clock that stands still until `advance` is called: an instrument for tests.

    Args:
        start: wall time at the beginning, in seconds since the epoch.
    """

    def __init__(self, start: float = 1_790_000_000.0) -> None:
        self._wall = start
        self._mono = 0.0
        self._sleepers: list[tuple[float, int, asyncio.Future[None]]] = []
        self._order = itertools.count()

    def now(self) -> float:
        """See `Clock.now`."""
        return self._wall

    def monotonic(self) -> float:
        """See `Clock.monotonic`."""
        return self._mono

    async def sleep(self, seconds: float) -> None:
        """Waits until the clock has been advanced by that much."""
        if seconds <= 0:
            await asyncio.sleep(0)
            return
        waker: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        heapq.heappush(self._sleepers, (self._mono + seconds, next(self._order), waker))
        await waker

    def jump(self, seconds: float) -> None:
        """Moves the wall clock alone, as an operator or NTP would."""
        self._wall += seconds

    async def advance(self, seconds: float) -> None:
        """Moves both clocks on, waking each sleeper at its own moment and letting it run."""
        end = self._mono + seconds
        await self.settle()
        while self._sleepers and self._sleepers[0][0] <= end:
            due, _, waker = heapq.heappop(self._sleepers)
            self._step(due - self._mono)
            if not waker.done():
                waker.set_result(None)
            await self.settle()
        self._step(end - self._mono)
        await self.settle()

    @staticmethod
    async def settle() -> None:
        """Lets everything that is ready to run do so."""
        for _ in range(20):
            await asyncio.sleep(0)

    def _step(self, seconds: float) -> None:
        self._mono += max(seconds, 0.0)
        self._wall += max(seconds, 0.0)
