"""The bus in process: the same contract as the broker's, for one process and for tests."""

import asyncio
from collections import deque
from collections.abc import Callable

from msgspec.structs import replace

from shared.bus.port import (
    INBOX_MAX_BYTES,
    INBOX_MAX_MESSAGES,
    Full,
    Handler,
    Message,
    QueueKind,
    Reject,
    Subscription,
    Unavailable,
    Unroutable,
    require_size,
)
from shared.bus.settling import AtWork, bury, conclude
from shared.clock import Clock
from shared.wire.ids import DEAD_QUEUE

MAX_MESSAGES = 100_000
MAX_BYTES = 256 * 1024 * 1024


class _Entry:
    """A message in its place in the queue."""

    __slots__ = ("message", "place")

    def __init__(self, place: int, message: Message) -> None:
        self.place = place
        self.message = message


class _Queue:
    """Messages that wait, and who takes them."""

    def __init__(self, kind: QueueKind, owner: "MemoryBus | None") -> None:
        self.kind = kind
        self.owner = owner
        self.consumers: list[_MemorySubscription] = []
        self._waiting: deque[_Entry] = deque()
        self._bytes = 0
        self._places = 0
        inbox = kind is QueueKind.INBOX
        self._max_messages = INBOX_MAX_MESSAGES if inbox else MAX_MESSAGES
        self._max_bytes = INBOX_MAX_BYTES if inbox else MAX_BYTES

    def __len__(self) -> int:
        return len(self._waiting)

    def put(self, message: Message) -> None:
        if len(self._waiting) >= self._max_messages or self._bytes >= self._max_bytes:
            raise Full(f"{len(self._waiting)} messages of {self._bytes} bytes wait")
        self._places += 1
        self._waiting.append(_Entry(self._places, message))
        self._bytes += len(message.body)
        self.feed()

    def give_back(self, entries: list[_Entry]) -> None:
        """Puts messages where they were."""
        for entry in entries:
            entry.message = replace(entry.message, deliveries=entry.message.deliveries + 1)
            self._bytes += len(entry.message.body)
        self._waiting = deque(sorted([*entries, *self._waiting], key=lambda entry: entry.place))
        self.feed()

    def feed(self) -> None:
        """Hands out what waits to whoever has room: the first consumer alone in a partition, else in turn."""
        active = self.consumers[:1] if self.kind is QueueKind.PARTITION else self.consumers
        while self._waiting:
            taker = min(active, key=lambda consumer: len(consumer.taken) - consumer.prefetch, default=None)
            if taker is None or len(taker.taken) >= taker.prefetch:
                return
            entry = self._waiting.popleft()
            self._bytes -= len(entry.message.body)
            taker.take(entry)


class MemoryBroker:
    """What several in-process buses share, as several clients share a server."""

    def __init__(self) -> None:
        self.queues: dict[str, _Queue] = {}

    def queue(self, name: str) -> _Queue:
        """The queue of that name, or Unroutable."""
        try:
            return self.queues[name]
        except KeyError:
            raise Unroutable(name) from None


class _MemorySubscription:
    """See `Subscription`."""

    def __init__(self, bus: "MemoryBus", name: str, handler: Handler, prefetch: int) -> None:
        self.prefetch = prefetch
        self.taken: dict[int, _Entry] = {}
        self._bus = bus
        self._name = name
        self._handler = handler
        self._at_work = AtWork()

    def take(self, entry: _Entry) -> None:
        self.taken[entry.place] = entry
        self._at_work.start(lambda: self._settle(entry), f"bus:{self._name}")

    async def stop(self) -> None:
        """See `Subscription.stop`."""
        self._bus.withdraw(self._name, self)
        await self._at_work.idle()
        self._bus.end(self._name, self)

    async def abandon(self) -> None:
        """See `Subscription.abandon`."""
        self._bus.withdraw(self._name, self)
        self._at_work.cancel()
        await self._at_work.idle()
        self._bus.end(self._name, self)

    async def _settle(self, entry: _Entry) -> None:
        outcome = await conclude(self._handler, entry.message, self._bus.clock)
        if isinstance(outcome, Reject):
            await bury(self._bus, self._name, entry.message, outcome, self._bus.clock)
        del self.taken[entry.place]
        self._bus.fed(self._name)


class MemoryBus:
    """A client of the in-process broker; see `Bus`.

    Args:
        clock: for waits between tries.
        broker: what is shared with other buses of the process; its own without one.
    """

    def __init__(self, clock: Clock, broker: MemoryBroker | None = None) -> None:
        self.clock = clock
        self._broker = broker or MemoryBroker()
        self._subscriptions: list[_MemorySubscription] = []
        self._closed = False

    async def publish(self, queue: str, message: Message) -> None:
        """See `Bus.publish`."""
        self._require_open()
        require_size(message)
        self._broker.queue(queue).put(replace(message, headers=dict(message.headers), deliveries=0))
        await asyncio.sleep(0)

    async def subscribe(
        self, queue: str, handler: Handler, *, prefetch: int, on_lost: Callable[[], None] | None = None
    ) -> Subscription:
        """See `Bus.subscribe`; nothing is ever lost here."""
        del on_lost
        self._require_open()
        found = self._broker.queue(queue)
        self._require_access(found, queue)
        subscription = _MemorySubscription(self, queue, handler, prefetch)
        self._subscriptions.append(subscription)
        found.consumers.append(subscription)
        found.feed()
        return subscription

    async def declare(self, queue: str, kind: QueueKind) -> None:
        """See `Bus.declare`."""
        self._require_open()
        queues = self._broker.queues
        if kind is QueueKind.PARTITION:
            queues.setdefault(DEAD_QUEUE, _Queue(QueueKind.DEAD, None))
        owner = self if kind is QueueKind.INBOX else None
        self._require_access(queues.setdefault(queue, _Queue(kind, owner)), queue)

    async def depth(self, queue: str) -> int:
        """See `Bus.depth`."""
        self._require_open()
        return len(self._broker.queue(queue))

    def ready(self) -> bool:
        """See `Bus.ready`."""
        return not self._closed

    async def close(self) -> None:
        """See `Bus.close`."""
        for subscription in tuple(self._subscriptions):
            await subscription.abandon()
        self._closed = True
        for name in [name for name, queue in self._broker.queues.items() if queue.owner is self]:
            del self._broker.queues[name]

    def withdraw(self, name: str, subscription: _MemorySubscription) -> None:
        """The subscription takes no more; the next in line does."""
        queue = self._broker.queues.get(name)
        if queue is not None and subscription in queue.consumers:
            queue.consumers.remove(subscription)
            queue.feed()

    def end(self, name: str, subscription: _MemorySubscription) -> None:
        """Gives back what was not settled; an inbox goes with its last consumer."""
        queue = self._broker.queues.get(name)
        unsettled, subscription.taken = list(subscription.taken.values()), {}
        if subscription in self._subscriptions:
            self._subscriptions.remove(subscription)
        if queue is None:
            return
        queue.give_back(unsettled)
        if queue.kind is QueueKind.INBOX and not queue.consumers:
            del self._broker.queues[name]

    def fed(self, name: str) -> None:
        """A place has become free at a consumer of the queue."""
        queue = self._broker.queues.get(name)
        if queue is not None:
            queue.feed()

    def _require_open(self) -> None:
        if self._closed:
            raise Unavailable("closed")

    def _require_access(self, queue: _Queue, name: str) -> None:
        if queue.owner not in (None, self):
            raise Unavailable(f"{name} belongs to another")
