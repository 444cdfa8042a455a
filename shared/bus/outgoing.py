"""The batched way onto the bus: at most one publish in flight a queue, and batches that grow with the load."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence

from shared.bus.port import Bus, Full, Message, Unavailable, Unroutable
from shared.clock import Clock
from shared.wire.items import Item, pack

log = logging.getLogger(__name__)

MOST_ITEMS = 512
MOST_BATCH_BYTES = 1024 * 1024
MOST_WAITING = 20_000
MOST_WAITING_BYTES = 32 * 1024 * 1024
LONGEST_WINDOW = 0.01
SECONDS_AN_ITEM = 0.0001
SMALL_BATCH = 4
FIRST_PAUSE = 0.1
LONGEST_PAUSE = 2.0


class _Lane:
    __slots__ = ("room", "size", "task", "waiting")

    def __init__(self) -> None:
        self.waiting: list[Item] = []
        self.size = 0
        self.task: asyncio.Task[None] | None = None
        self.room = asyncio.Event()


class Outgoing:
    """Publishes items.

    Args:
        bus: where to.
        clock: for windows and pauses.

    Attributes:
        on_unroutable: gets the items of a queue that is gone.
        published: messages that were confirmed.
        items: items in them.
    """

    def __init__(self, bus: Bus, clock: Clock) -> None:
        self.on_unroutable: Callable[[str, Sequence[Item]], Awaitable[None]] | None = None
        self.published = 0
        self.items = 0
        self._bus = bus
        self._clock = clock
        self._lanes: dict[str, _Lane] = {}

    def offer(self, queue: str, item: Item) -> bool:
        """Takes an item, or says that the queue's buffer is full."""
        lane = self._lanes.get(queue)
        if lane is None:
            lane = self._lanes[queue] = _Lane()
        if len(lane.waiting) >= MOST_WAITING or lane.size >= MOST_WAITING_BYTES:
            lane.room.clear()
            return False
        lane.waiting.append(item)
        lane.size += len(item.raw)
        if lane.task is None:
            lane.task = asyncio.create_task(self._run(queue, lane), name=f"publish {queue}")
        return True

    async def drain(self, queue: str) -> None:
        """Waits until there is room again."""
        lane = self._lanes.get(queue)
        if lane is not None and lane.task is not None:
            await lane.room.wait()

    async def close(self) -> None:
        """Waits until all is published, a few seconds where the bus is away."""
        tasks = [lane.task for lane in self._lanes.values() if lane.task is not None]
        if tasks:
            _, late = await asyncio.wait(tasks, timeout=5.0)
            for task in late:
                task.cancel()

    async def _run(self, queue: str, lane: _Lane) -> None:
        try:
            while lane.waiting:
                batch = self._next(lane)
                await self._publish(queue, batch)
                lane.room.set()
                if len(batch) > SMALL_BATCH and len(lane.waiting) < MOST_ITEMS:
                    await self._clock.sleep(min(LONGEST_WINDOW, len(batch) * SECONDS_AN_ITEM))
        finally:
            lane.task = None
            lane.room.set()
            if not lane.waiting and queue.startswith("sluice.edge."):
                self._lanes.pop(queue, None)

    @staticmethod
    def _next(lane: _Lane) -> list[Item]:
        size = count = 0
        for item in lane.waiting[:MOST_ITEMS]:
            size += len(item.raw)
            if count and size > MOST_BATCH_BYTES:
                break
            count += 1
        batch = lane.waiting[:count]
        del lane.waiting[:count]
        lane.size -= sum(len(item.raw) for item in batch)
        return batch

    async def _publish(self, queue: str, batch: list[Item]) -> None:
        pause = FIRST_PAUSE
        message = Message(pack(batch))
        while True:
            try:
                await self._bus.publish(queue, message)
            except Unroutable:
                await self._return(queue, batch)
                return
            except (Unavailable, Full) as error:
                log.info("publish again: queue=%s items=%d error=%s", queue, len(batch), type(error).__name__)
                await self._clock.sleep(pause)
                pause = min(pause * 2, LONGEST_PAUSE)
            else:
                self.published += 1
                self.items += len(batch)
                return

    async def _return(self, queue: str, batch: list[Item]) -> None:
        if self.on_unroutable is not None:
            await self.on_unroutable(queue, batch)
        else:
            log.warning("nobody takes: queue=%s items=%d", queue, len(batch))
