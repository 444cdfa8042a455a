"""The bus in one process, with the broker's contract."""

import asyncio
import itertools
from collections.abc import Callable

import msgspec

from shared.bus.port import Full, Handler, Message, QueueKind, Subscription, Unroutable
from shared.bus.settling import settle
from shared.clock import Clock

MOST_MESSAGES = 10_000


class _Queue:
    def __init__(self, name: str, kind: QueueKind) -> None:
        self.name = name
        self.kind = kind
        self.waiting: dict[int, Message] = {}
        self.subscribers: list[_MemorySubscription] = []
        self.changed = asyncio.Event()


class MemoryBus:
    """See `shared.bus.port.Bus`.

    Args:
        clock: for pauses between tries.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._queues: dict[str, _Queue] = {}
        self._order = itertools.count()

    async def declare(self, queue: str, kind: QueueKind) -> None:
        """See `Bus.declare`."""
        self._queues.setdefault(queue, _Queue(queue, kind))

    async def publish(self, queue: str, message: Message) -> None:
        """See `Bus.publish`."""
        found = self._queues.get(queue)
        if found is None:
            raise Unroutable(queue)
        if len(found.waiting) >= MOST_MESSAGES:
            raise Full(queue)
        found.waiting[next(self._order)] = message
        found.changed.set()

    async def subscribe(
        self, queue: str, handler: Handler, *, prefetch: int, on_lost: Callable[[], None] | None
    ) -> Subscription:
        """See `Bus.subscribe`."""
        del on_lost  # nothing is ever lost in process
        found = self._queues.get(queue)
        if found is None:
            raise Unroutable(queue)
        subscription = _MemorySubscription(self, found, handler, prefetch, self._clock)
        found.subscribers.append(subscription)
        found.changed.set()
        return subscription

    async def depth(self, queue: str) -> int:
        """See `Bus.depth`."""
        found = self._queues.get(queue)
        return len(found.waiting) if found is not None else 0

    def ready(self) -> bool:
        """See `Bus.ready`."""
        return True

    def drop(self, queue: str) -> None:
        """An inbox goes with its owner."""
        self._queues.pop(queue, None)


class _MemorySubscription:
    def __init__(self, bus: MemoryBus, queue: _Queue, handler: Handler, prefetch: int, clock: Clock) -> None:
        self._bus = bus
        self._queue = queue
        self._handler = handler
        self._prefetch = prefetch
        self._clock = clock
        self._running: dict[int, tuple[Message, asyncio.Task[None]]] = {}
        self._pump = asyncio.create_task(self._take(), name=f"consumer {queue.name}")

    async def stop(self) -> None:
        """See `Subscription.stop`."""
        self._leave()
        while self._running:
            await asyncio.wait([task for _, task in self._running.values()])
        self._gone()

    async def abandon(self) -> None:
        """See `Subscription.abandon`."""
        self._leave()
        running = dict(self._running)
        for _, task in running.values():
            task.cancel()
        if running:
            await asyncio.wait([task for _, task in running.values()])
        back = {
            number: msgspec.structs.replace(message, deliveries=message.deliveries + 1)
            for number, (message, task) in running.items()
            if task.cancelled()
        }
        self._queue.waiting = dict(sorted({**back, **self._queue.waiting}.items()))
        self._gone()

    def _leave(self) -> None:
        self._pump.cancel()

    def _gone(self) -> None:
        if self in self._queue.subscribers:
            self._queue.subscribers.remove(self)
        self._queue.changed.set()
        if self._queue.kind is QueueKind.INBOX and not self._queue.subscribers:
            self._bus.drop(self._queue.name)

    async def _take(self) -> None:
        while True:
            self._queue.changed.clear()
            while self._is_active() and self._queue.waiting and len(self._running) < self._prefetch:
                number = next(iter(self._queue.waiting))
                message = self._queue.waiting.pop(number)
                task = asyncio.create_task(
                    settle(self._queue.name, message, self._handler, self._bus.publish, self._clock)
                )
                self._running[number] = (message, task)
                task.add_done_callback(lambda _, number=number: self._settled(number))  # type: ignore[misc]
            await self._queue.changed.wait()

    def _is_active(self) -> bool:
        return bool(self._queue.subscribers) and self._queue.subscribers[0] is self

    def _settled(self, number: int) -> None:
        self._running.pop(number, None)
        self._queue.changed.set()
