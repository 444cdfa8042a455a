"""The batched way onto the bus: items for one queue travel many to a message, and the batch grows with the load.

The hottest path of the fabric: an `offer` is a look-up, an append and a few counters. Idle, an item leaves at once;
under load the window before the next message is as long as the last batch was large (design.md, The flow, 1).
"""

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable, Mapping, Sequence

from shared.bus.backoff import jittered
from shared.bus.port import Bus, BusError, Message, Unavailable, Unroutable
from shared.clock import Clock
from shared.telemetry.traces import NO_SPAN, NO_TRACES, Facts, Span, SpanName, Traces
from shared.wire.items import Item, pack

log = logging.getLogger(__name__)

MAX_BATCH = 512
MAX_BODY = 1024 * 1024
MAX_WINDOW = 0.010
WINDOW_PER_ITEM = 0.000_5
SMALL_BATCH = 8
ITEM_OVERHEAD = 192
FIRST_WAIT = 0.1
LONGEST_WAIT = 5.0
CLOSES_WITHIN = 10.0


def next_window(last_batch: int) -> float:
    """Seconds to gather before the next message, after one of that many items."""
    return 0.0 if last_batch < SMALL_BATCH else min(MAX_WINDOW, last_batch * WINDOW_PER_ITEM)


class _Lane:
    """What waits for one queue; `held` and `size` count the batch in flight too."""

    __slots__ = ("held", "queue", "room", "size", "waiting", "worker")

    def __init__(self, queue: str) -> None:
        self.queue = queue
        self.waiting: list[Item] = []
        self.held = 0
        self.size = 0
        self.room: asyncio.Event | None = None
        self.worker: asyncio.Task[None] | None = None

    def take(self) -> list[Item]:
        """The next batch, in order."""
        count = size = 0
        for item in self.waiting[:MAX_BATCH]:
            size += len(item.raw) + ITEM_OVERHEAD
            if size > MAX_BODY and count:
                break
            count += 1
        batch, self.waiting = self.waiting[:count], self.waiting[count:]
        return batch

    def release(self, batch: Sequence[Item]) -> None:
        """The batch is gone: its room is free."""
        self.held -= len(batch)
        self.size -= sum(len(item.raw) for item in batch) + ITEM_OVERHEAD * len(batch)
        if self.room is not None:
            self.room.set()
            self.room = None


async def _log_unroutable(queue: str, items: Sequence[Item]) -> None:
    log.warning("nobody has the queue: queue=%s items=%d", queue, len(items))


class Outgoing:
    """Gathers items per queue and publishes them, at most one message in flight a queue.

    Args:
        bus: where they go.
        clock: for windows and waits.
        headers: put on every message.
        traces: spans of what is published.
        max_items: the most items held for one queue.
        max_bytes: the most bytes held for one queue.

    Attributes:
        on_unroutable: gets the items of a queue that does not exist, those still waiting for it included. It must
            not wait for room in that same queue.
        published: messages that the bus has taken.
        items: items in them.
        lost: items given up, at closing or by a fault of ours; their senders were never told that they arrived.
    """

    def __init__(
        self,
        bus: Bus,
        clock: Clock,
        headers: Mapping[str, str] | None = None,
        traces: Traces = NO_TRACES,
        *,
        max_items: int = 65_536,
        max_bytes: int = 64 * 1024 * 1024,
    ) -> None:
        self.on_unroutable: Callable[[str, Sequence[Item]], Awaitable[None]] = _log_unroutable
        self.published = 0
        self.items = 0
        self.lost = 0
        self._bus = bus
        self._clock = clock
        self._headers = dict(headers or {})
        self._traces = traces
        self._max_items = max_items
        self._max_bytes = max_bytes
        self._lanes: dict[str, _Lane] = {}
        self._give_up_at: float | None = None

    def offer(self, queue: str, item: Item) -> bool:
        """Takes the item, or returns False where the queue's buffer is full."""
        lane = self._lanes.get(queue)
        if lane is None:
            lane = self._open(queue)
        if lane.held >= self._max_items or lane.size >= self._max_bytes or self._give_up_at is not None:
            return False
        lane.waiting.append(item)
        lane.held += 1
        lane.size += len(item.raw) + ITEM_OVERHEAD
        return True

    async def drain(self, queue: str) -> None:
        """Returns when the queue's buffer has room.

        Raises:
            Unavailable: closed, there will be none.
        """
        while True:
            if self._give_up_at is not None:
                raise Unavailable("closed")
            lane = self._lanes.get(queue)
            if lane is None or (lane.held < self._max_items and lane.size < self._max_bytes):
                return
            if lane.room is None:
                lane.room = asyncio.Event()
            await lane.room.wait()

    async def close(self) -> None:
        """Publishes what is held and takes no more; what the bus does not take within ten seconds is given up."""
        self._give_up_at = self._clock.monotonic() + CLOSES_WITHIN
        for lane in self._lanes.values():
            if lane.room is not None:
                lane.room.set()
        workers = [lane.worker for lane in self._lanes.values() if lane.worker is not None]
        if workers:
            await asyncio.wait(workers)

    def _open(self, queue: str) -> _Lane:
        """A lane lives as long as its worker, so that queues which are gone leave nothing behind."""
        lane = self._lanes[queue] = _Lane(queue)
        lane.worker = asyncio.create_task(self._run(lane), name=f"outgoing:{queue}")
        return lane

    async def _run(self, lane: _Lane) -> None:
        try:
            while lane.waiting:
                batch = lane.take()
                await self._publish(lane, batch)
                window = next_window(len(batch))
                if window and len(lane.waiting) < MAX_BATCH and self._give_up_at is None:
                    await self._clock.sleep(window)
        finally:
            del self._lanes[lane.queue]
            self._count_lost(lane, lane.held)
            lane.release(lane.waiting)

    async def _publish(self, lane: _Lane, batch: list[Item]) -> None:
        try:
            await self._confirmed(lane.queue, batch)
        except Unroutable:
            batch, lane.waiting = [*batch, *lane.waiting], []
            lane.release(batch)
            await self._hand_over(lane.queue, batch)
            return
        except Unavailable:
            self._count_lost(lane, len(batch))
        lane.release(batch)

    async def _confirmed(self, queue: str, batch: list[Item]) -> None:
        """Publishes until the bus has it: Unavailable comes out only once we are closing."""
        span = self._batch_span(queue, batch)
        message = Message(pack(batch), self._headers | {"traceparent": span.trace} if span.trace else self._headers)
        attempt = 0
        while True:
            try:
                await self._bus.publish(queue, message)
            except Unroutable:
                raise
            except BusError as error:
                attempt += 1
                if self._give_up_at is not None and self._clock.monotonic() >= self._give_up_at:
                    raise Unavailable(queue) from error
                log.info("the bus does not take it: queue=%s try=%d: %r", queue, attempt, error)
                await self._clock.sleep(jittered(attempt, FIRST_WAIT, LONGEST_WAIT, random.random()))  # noqa: S311 - jitter
            else:
                self.published += 1
                self.items += len(batch)
                span.end("confirmed")
                return

    def _batch_span(self, queue: str, batch: list[Item]) -> Span:
        """One span for the message, in the trace of its first traced packet, linked to all the others."""
        traced = [item.trace for item in batch if item.trace]
        if not traced:
            return NO_SPAN
        return self._traces.child(traced[0], SpanName.BATCH, Facts(queue=queue, items=len(batch)), traced[1:])

    async def _hand_over(self, queue: str, items: Sequence[Item]) -> None:
        try:
            await self.on_unroutable(queue, items)
        except Exception:
            log.exception("what could not be routed is lost: queue=%s items=%d", queue, len(items))
            self.lost += len(items)

    def _count_lost(self, lane: _Lane, count: int) -> None:
        if count:
            self.lost += count
            log.error("given up: queue=%s items=%d", lane.queue, count)
