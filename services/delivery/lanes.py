"""Lanes: the work of one channel in order, of all channels side by side.

A lane lives as long as it has work, or work parked in the records. Everything that touches the order of a channel
runs in its one worker, so there is nothing to lock.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from shared.clock import Clock
from shared.wire.items import Item


class Batch:
    """A bus message under way: done when each of its items is."""

    def __init__(self, size: int) -> None:
        self._left = size
        self.done = asyncio.Event()
        if size == 0:
            self.done.set()

    def settle(self, count: int = 1) -> None:
        """So many of its items are completed or safely parked."""
        self._left -= count
        if self._left <= 0:
            self.done.set()


@dataclass(slots=True)
class Job:
    """An item in a lane; `batch` is None for work that did not come from the bus."""

    item: Item
    batch: Batch | None
    entered: float


@dataclass(slots=True)
class Lane:
    """The work of one channel.

    Attributes:
        parked: work of this channel waits in the records, so all that comes must queue behind it.
        resume: the parked work is due.
        shown: the previews of running streams: message_id to the sequence shown.
        preview_after: no preview before this (monotonic).
    """

    channel: str
    partition: int
    jobs: deque[Job] = field(default_factory=deque)
    parked: bool = False
    resume: bool = False
    shown: dict[str, int] = field(default_factory=dict)
    preview_after: float = 0.0
    worker: asyncio.Task[None] | None = None


class Lanes:
    """All lanes of a worker.

    Args:
        work: does one job, or parks it when `lane.parked`.
        resume: works off what is parked of a lane.
        clock: when a job entered.
    """

    def __init__(
        self,
        work: Callable[[Lane, Job], Awaitable[None]],
        resume: Callable[[Lane], Awaitable[None]],
        clock: Clock,
    ) -> None:
        self._work = work
        self._resume = resume
        self._clock = clock
        self._lanes: dict[str, Lane] = {}

    def __len__(self) -> int:
        """How many lanes have work, or parked work."""
        return len(self._lanes)

    def lane(self, channel: str, partition: int) -> Lane:
        """The lane of a channel."""
        lane = self._lanes.get(channel)
        if lane is None:
            lane = self._lanes[channel] = Lane(channel, partition)
        return lane

    def submit(self, item: Item, partition: int, batch: Batch | None) -> None:
        """Puts an item at the end of its lane."""
        lane = self.lane(item.channel, partition)
        lane.jobs.append(Job(item, batch, self._clock.monotonic()))
        self._wake(lane)

    def due(self, channel: str, partition: int) -> None:
        """What is parked of a lane may be tried again."""
        lane = self.lane(channel, partition)
        lane.parked = lane.resume = True
        self._wake(lane)

    def slow(self, seconds: float) -> list[Lane]:
        """The lanes whose next job has waited longer than that behind a running one."""
        before = self._clock.monotonic() - seconds
        return [lane for lane in self._lanes.values() if lane.jobs and lane.jobs[0].entered < before]

    def parked_count(self) -> int:
        """How many lanes have parked work."""
        return sum(lane.parked for lane in self._lanes.values())

    async def abandon(self, partition: int) -> None:
        """Stops the lanes of a partition at once; their bus messages go back to the broker."""
        lanes = [lane for lane in self._lanes.values() if lane.partition == partition]
        workers = [lane.worker for lane in lanes if lane.worker is not None]
        for worker in workers:
            worker.cancel()
        if workers:
            await asyncio.wait(workers)
        for lane in lanes:
            self._lanes.pop(lane.channel, None)

    async def drain(self, partition: int) -> None:
        """Waits until the lanes of a partition have no work left."""
        while workers := [
            lane.worker for lane in self._lanes.values() if lane.partition == partition and lane.worker is not None
        ]:
            await asyncio.wait(workers)
        for lane in [lane for lane in self._lanes.values() if lane.partition == partition]:
            self._lanes.pop(lane.channel, None)

    def _wake(self, lane: Lane) -> None:
        if lane.worker is None:
            lane.worker = asyncio.create_task(self._run(lane), name="lane")

    async def _run(self, lane: Lane) -> None:
        try:
            while lane.jobs or lane.resume:
                if lane.resume:
                    lane.resume = False
                    await self._resume(lane)
                    continue
                job = lane.jobs.popleft()
                await self._work(lane, job)
                if job.batch is not None:
                    job.batch.settle()
        finally:
            lane.worker = None
            if not lane.parked and not lane.shown and not lane.jobs:
                self._lanes.pop(lane.channel, None)
