"""Lanes: the work of one channel in order, of all channels side by side.

A lane lives as long as it has work, or work parked in the records. Everything that touches the order of a channel
runs in its one worker, so there is nothing to lock. What is left to write down of a message that has landed runs
beside the lane, as a tail: it changes no order.
"""

import asyncio
import logging
from collections import deque
from dataclasses import dataclass, field
from typing import Protocol

from msgspec import Struct

from shared.clock import Clock
from shared.records.model import Claimed, Receipt
from shared.wire.items import Item
from shared.wire.packets import ChatMessage, Packet

log = logging.getLogger(__name__)

Tail = asyncio.Future[None]


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


@dataclass(slots=True, eq=False)
class Job:
    """An item in a lane.

    Attributes:
        item: as it came.
        packet: what it holds; None for a note.
        batch: the bus message it came in; None for work that did not come from the bus.
        entered: when (monotonic).
        claimed: what the ledger said of a final, where it was asked ahead of its turn.
    """

    item: Item
    packet: Packet | None
    batch: Batch | None
    entered: float
    claimed: Claimed | None = None

    @property
    def final_id(self) -> str:
        """The message_id of a final; empty for all else."""
        return self.packet.payload.message_id if isinstance(self.packet, ChatMessage) else ""


class Shown(Struct, frozen=True):
    """A preview that this worker has put up: no final has come since, or the lane would have forgotten it.

    Attributes:
        sequence: the last delta in it.
        handle: what to edit.
        digest: of the text that is there.
    """

    sequence: int
    handle: Receipt
    digest: int


@dataclass(slots=True, eq=False)
class Lane:
    """The work of one channel.

    Attributes:
        parked: work of this channel waits in the records, so all that comes must queue behind it.
        resume: the parked work is due.
        spill: what waited here is being parked; nothing that came later may be handled before that is done.
        tails: finals that have landed and are being concluded, by message_id.
        shown: the previews of running streams, by message_id.
        preview_after: no preview before this (monotonic).
    """

    channel: str
    partition: int
    jobs: deque[Job] = field(default_factory=deque)
    parked: bool = False
    resume: bool = False
    spill: asyncio.Task[None] | None = None
    tails: dict[str, Tail] = field(default_factory=dict)
    shown: dict[str, Shown] = field(default_factory=dict)
    preview_after: float = 0.0
    worker: asyncio.Task[None] | None = None

    @property
    def running(self) -> list[asyncio.Future[None]]:
        """All that runs for the lane."""
        return [work for work in (self.worker, self.spill, *self.tails.values()) if work is not None]


class Worker(Protocol):
    """What is done in the lanes."""

    async def work(self, lane: Lane, job: Job) -> Tail | None:
        """Does one job to its end, or parks it; what it returns runs on beside the lane."""
        ...

    async def bury(self, job: Job, error: BaseException) -> None:
        """Files a job whose tail has failed."""
        ...

    async def resume(self, lane: Lane) -> None:
        """Works off what is parked of a lane, as far as it goes."""
        ...

    async def park(self, lane: Lane, jobs: list[Job]) -> None:
        """Puts jobs into the records, in order."""
        ...


class Lanes:
    """All lanes of a worker process.

    Args:
        worker: does the work.
        clock: when a job entered.
    """

    def __init__(self, worker: Worker, clock: Clock) -> None:
        self._worker = worker
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

    def submit(self, item: Item, packet: Packet | None, partition: int, batch: Batch | None) -> None:
        """Puts an item at the end of its lane."""
        lane = self.lane(item.channel, partition)
        lane.jobs.append(Job(item, packet, batch, self._clock.monotonic()))
        self._wake(lane)

    def due(self, channel: str, partition: int) -> None:
        """What is parked of a lane may be tried again."""
        lane = self.lane(channel, partition)
        lane.parked = lane.resume = True
        self._wake(lane)

    def spill_slow(self, seconds: float) -> None:
        """Has the lanes whose next job has waited longer than that behind a running one park what waits.

        So a lane that crawls holds back no bus message, and the messages of no other channel (field report 35).
        """
        before = self._clock.monotonic() - seconds
        for lane in self._lanes.values():
            waits = lane.spill is None and bool(lane.jobs) and lane.jobs[0].entered < before
            if waits and all(job.final_id for job in lane.jobs):
                self._spill(lane)

    def parked_count(self) -> int:
        """How many lanes have parked work."""
        return sum(lane.parked for lane in self._lanes.values())

    async def abandon(self, partition: int) -> None:
        """Stops the lanes of a partition at once; their bus messages go back to the broker.

        Tails run on: what has landed is better written down, and they make no call.
        """
        lanes = self._of(partition)
        tasks = [task for lane in lanes for task in (lane.worker, lane.spill) if task is not None]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        for lane in lanes:
            self._lanes.pop(lane.channel, None)

    async def drain(self, partition: int) -> None:
        """Waits until the lanes of a partition have no work left."""
        while running := [work for lane in self._of(partition) for work in lane.running]:
            await asyncio.wait(running)
        for lane in self._of(partition):
            self._lanes.pop(lane.channel, None)

    def _of(self, partition: int) -> list[Lane]:
        return [lane for lane in self._lanes.values() if lane.partition == partition]

    def _wake(self, lane: Lane) -> None:
        if lane.worker is None:
            lane.worker = asyncio.create_task(self._run(lane), name="lane")

    def _spill(self, lane: Lane) -> None:
        jobs = list(lane.jobs)
        lane.jobs.clear()
        if not lane.parked:  # nothing else is parked, so nothing else will wake it
            lane.parked = lane.resume = True

        async def park() -> None:
            try:
                await self._worker.park(lane, jobs)
                for job in jobs:
                    _settle(job)
            finally:
                lane.spill = None

        lane.spill = asyncio.create_task(park(), name="spill")
        lane.spill.add_done_callback(log_failure)

    def _tail(self, lane: Lane, job: Job, tail: Tail) -> None:
        def ended(tail: Tail) -> None:
            if not tail.cancelled() and (error := tail.exception()) is not None:
                lane.tails[job.final_id] = task = asyncio.ensure_future(self._worker.bury(job, error))
                task.add_done_callback(ended)
                return
            del lane.tails[job.final_id]
            _settle(job)
            self._leave(lane)

        lane.tails[job.final_id] = tail
        tail.add_done_callback(ended)

    async def _run(self, lane: Lane) -> None:
        try:
            while lane.jobs or lane.resume or lane.spill:
                if lane.spill is not None:
                    await asyncio.wait([lane.spill])
                    continue
                if lane.resume:
                    lane.resume = False
                    await self._worker.resume(lane)
                    continue
                job = lane.jobs.popleft()
                while running := lane.tails.get(job.final_id):  # a repeat of what is just being concluded, or buried
                    await asyncio.wait([running])
                tail = await self._worker.work(lane, job)
                if tail is None:
                    _settle(job)
                else:
                    self._tail(lane, job, tail)
        finally:
            lane.worker = None
            self._leave(lane)

    def _leave(self, lane: Lane) -> None:
        idle = not (lane.running or lane.parked or lane.shown or lane.jobs)
        if idle and self._lanes.get(lane.channel) is lane:
            del self._lanes[lane.channel]


def _settle(job: Job) -> None:
    if job.batch is not None:
        job.batch.settle()


def log_failure(task: asyncio.Task[None]) -> None:
    """Says what ended a task that nobody waits for."""
    if not task.cancelled() and task.exception() is not None:
        log.error("a background task failed: task=%s", task.get_name(), exc_info=task.exception())
