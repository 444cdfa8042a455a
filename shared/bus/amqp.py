"""The bus on RabbitMQ: the only place that speaks AMQP."""

import asyncio
import contextlib
import logging
import random
from collections.abc import AsyncGenerator, Callable
from typing import Any

import aio_pika
from aio_pika.abc import AbstractChannel, AbstractConnection, AbstractIncomingMessage, AbstractQueue
from aio_pika.exceptions import AMQPError, DeliveryError
from aiormq.exceptions import PublishError

from shared.bus.port import Full, Handler, Message, QueueKind, Subscription, Unavailable, Unroutable
from shared.bus.settling import settle
from shared.clock import Clock
from shared.wire.ids import DEAD_QUEUE

log = logging.getLogger(__name__)

DEAD_EXCHANGE = "sluice.dead"
CONFIRM_SECONDS = 30.0
WATCH_SECONDS = 1.0
LONGEST_PAUSE = 5.0
INBOX_MESSAGES = 10_000
INBOX_BYTES = 256 * 1024 * 1024
AWAY = (AMQPError, OSError, asyncio.TimeoutError, RuntimeError)

_ARGUMENTS: dict[QueueKind, dict[str, Any]] = {
    QueueKind.PARTITION: {
        "x-queue-type": "quorum",
        "x-single-active-consumer": True,
        "x-delivery-limit": 1_000_000,
        "x-dead-letter-exchange": DEAD_EXCHANGE,
    },
    QueueKind.DEAD: {"x-queue-type": "quorum"},
    QueueKind.INBOX: {
        "x-max-length": INBOX_MESSAGES,
        "x-max-length-bytes": INBOX_BYTES,
        "x-overflow": "reject-publish",
    },
}


class AmqpBus:
    """See `shared.bus.port.Bus`.

    Args:
        url: `amqp://…`.
        clock: for pauses between tries.
    """

    def __init__(self, url: str, clock: Clock) -> None:
        self._url = url
        self.clock = clock
        self._kinds: dict[str, QueueKind] = {}
        self._subscriptions: set[_AmqpSubscription] = set()
        self._connection: AbstractConnection | None = None
        self._publisher: AbstractChannel | None = None
        self._up = asyncio.Event()
        self._closing = False
        self._keeper: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Connects; afterwards the connection mends itself.

        Raises:
            OSError: the broker cannot be reached at start.
        """
        await self._connect()
        self._keeper = asyncio.create_task(self._keep(), name="amqp connection")

    async def close(self) -> None:
        """Leaves; what is under way goes back."""
        self._closing = True
        if self._keeper is not None:
            self._keeper.cancel()
        for subscription in list(self._subscriptions):
            await subscription.abandon()
        if self._connection is not None:
            with contextlib.suppress(*AWAY):
                await self._connection.close()

    async def declare(self, queue: str, kind: QueueKind) -> None:
        """See `Bus.declare`."""
        self._kinds[queue] = kind
        while True:
            await self._up.wait()
            try:
                await self._declare(self.publisher, queue, kind)
            except AWAY as error:
                log.warning("declare failed: queue=%s error=%s", queue, type(error).__name__)
                await self.clock.sleep(WATCH_SECONDS)
            else:
                return

    async def publish(self, queue: str, message: Message) -> None:
        """See `Bus.publish`."""
        if not self._up.is_set():
            raise Unavailable("not connected")
        mode = (
            aio_pika.DeliveryMode.NOT_PERSISTENT
            if queue.startswith("sluice.edge.")
            else aio_pika.DeliveryMode.PERSISTENT
        )
        out = aio_pika.Message(
            message.body,
            headers=dict(message.headers),
            message_id=message.message_id or None,
            delivery_mode=mode,
        )
        try:
            await self.publisher.default_exchange.publish(
                out, routing_key=queue, mandatory=True, timeout=CONFIRM_SECONDS
            )
        except PublishError as error:
            raise Unroutable(queue) from error
        except DeliveryError as error:
            raise Full(queue) from error
        except AWAY as error:
            raise Unavailable(type(error).__name__) from error

    async def subscribe(
        self, queue: str, handler: Handler, *, prefetch: int, on_lost: Callable[[], None] | None
    ) -> Subscription:
        """See `Bus.subscribe`."""
        subscription = _AmqpSubscription(self, queue, handler, prefetch, on_lost)
        self._subscriptions.add(subscription)
        subscription.start()
        return subscription

    async def depth(self, queue: str) -> int:
        """See `Bus.depth`."""
        try:
            async with self.connection.channel() as channel:
                found = await channel.declare_queue(queue, passive=True)
                return int(found.declaration_result.message_count or 0)
        except AWAY as error:
            raise Unavailable(type(error).__name__) from error

    def ready(self) -> bool:
        """See `Bus.ready`."""
        return self._up.is_set() and all(subscription.is_served for subscription in self._subscriptions)

    @property
    def publisher(self) -> AbstractChannel:
        """The channel with confirms."""
        if self._publisher is None:
            raise Unavailable("not connected")
        return self._publisher

    @property
    def connection(self) -> AbstractConnection:
        """The connection, while it is up."""
        if self._connection is None:
            raise Unavailable("not connected")
        return self._connection

    @property
    def up(self) -> asyncio.Event:
        """Set while connected."""
        return self._up

    def forget(self, subscription: "_AmqpSubscription") -> None:
        """It has ended."""
        self._subscriptions.discard(subscription)

    async def open_queue(self, channel: AbstractChannel, queue: str) -> AbstractQueue:
        """Declares a known queue again: it may be the one that was deleted."""
        return await self._declare(channel, queue, self._kinds[queue])

    async def _connect(self) -> None:
        connection = await aio_pika.connect(self._url, timeout=10)
        publisher = await connection.channel(publisher_confirms=True, on_return_raises=True)
        dead = await publisher.declare_exchange(DEAD_EXCHANGE, aio_pika.ExchangeType.FANOUT, durable=True)
        queue = await publisher.declare_queue(DEAD_QUEUE, durable=True, arguments=_ARGUMENTS[QueueKind.DEAD])
        await queue.bind(dead)
        for name, kind in self._kinds.items():
            await self._declare(publisher, name, kind)
        self._connection, self._publisher = connection, publisher
        self._up.set()

    async def _declare(self, channel: AbstractChannel, queue: str, kind: QueueKind) -> AbstractQueue:
        inbox = kind is QueueKind.INBOX
        return await channel.declare_queue(
            queue, durable=not inbox, exclusive=inbox, auto_delete=inbox, arguments=_ARGUMENTS[kind]
        )

    async def _keep(self) -> None:
        """Notices a lost connection or publishing channel, and makes new ones."""
        pause = 0.1
        while True:
            if self._up.is_set() and not self.connection.is_closed and not self.publisher.is_closed:
                pause = 0.1
                await asyncio.sleep(0.1)
                continue
            self._up.clear()
            if self._connection is not None:
                with contextlib.suppress(*AWAY):
                    await asyncio.wait_for(self._connection.close(), 2)
            try:
                await self._connect()
                log.warning("connected to the broker again")
            except AWAY as error:
                log.warning("the broker is away: %s", type(error).__name__)
                await self.clock.sleep(pause * (0.5 + random.random() / 2))  # noqa: S311 - jitter
                pause = min(pause * 2, LONGEST_PAUSE)


class _AmqpSubscription:
    def __init__(
        self, bus: AmqpBus, queue: str, handler: Handler, prefetch: int, on_lost: Callable[[], None] | None
    ) -> None:
        self._bus = bus
        self._queue = queue
        self._handler = handler
        self._prefetch = prefetch
        self._on_lost = on_lost
        self._channel: AbstractChannel | None = None
        self._consumer: tuple[AbstractQueue, str] | None = None
        self._running: set[asyncio.Task[None]] = set()
        self._keeper: asyncio.Task[None] | None = None
        self._stopping = False

    def start(self) -> None:
        """Begins to consume, for as long as it is not stopped."""
        self._keeper = asyncio.create_task(self._keep(), name=f"consumer {self._queue}")

    @property
    def is_served(self) -> bool:
        """Whether the broker has this consumer."""
        if self._channel is None or self._consumer is None or self._channel.is_closed:
            return False
        underlay = getattr(self._channel, "_channel", None)
        consumers = getattr(underlay.channel, "consumers", {}) if underlay is not None else {}
        return self._consumer[1] in consumers

    async def stop(self) -> None:
        """See `Subscription.stop`."""
        self._stopping = True
        await self._end_keeper()
        if self._consumer is not None:
            with contextlib.suppress(*AWAY):
                await self._consumer[0].cancel(self._consumer[1], timeout=5)
        while self._running:
            await asyncio.wait(self._running)
        await self._close()

    async def abandon(self) -> None:
        """See `Subscription.abandon`."""
        self._stopping = True
        await self._end_keeper()
        await self._cancel_running()
        await self._close()

    async def _end_keeper(self) -> None:
        if self._keeper is not None:
            self._keeper.cancel()
            await asyncio.wait([self._keeper])

    async def _close(self) -> None:
        self._bus.forget(self)
        if self._channel is not None:
            with contextlib.suppress(*AWAY):
                await self._channel.close()

    async def _keep(self) -> None:
        while True:
            if not self.is_served:
                await self._lost()
                await self._bus.up.wait()
                try:
                    await self._consume()
                except (*AWAY, Unavailable) as error:
                    log.warning("cannot consume: queue=%s error=%s", self._queue, type(error).__name__)
            await asyncio.sleep(WATCH_SECONDS / 4)

    async def _consume(self) -> None:
        channel = self._channel = await self._bus.connection.channel()
        await channel.set_qos(prefetch_count=self._prefetch)
        queue = await self._bus.open_queue(channel, self._queue)
        self._consumer = (queue, await queue.consume(self._take))

    async def _lost(self) -> None:
        """The broker gives what was under way to the next consumer: nothing of it may go on here."""
        if self._consumer is None:
            return
        self._consumer = None
        await self._cancel_running()
        if self._channel is not None:
            with contextlib.suppress(*AWAY):
                await self._channel.close()
        if self._on_lost is not None:
            self._on_lost()

    async def _cancel_running(self) -> None:
        running = set(self._running)
        for task in running:
            task.cancel()
        if running:
            await asyncio.wait(running)

    async def _take(self, incoming: AbstractIncomingMessage) -> None:
        if self._stopping:
            return  # it goes back when the channel closes
        task = asyncio.create_task(self._work(incoming))
        self._running.add(task)
        task.add_done_callback(self._running.discard)

    async def _work(self, incoming: AbstractIncomingMessage) -> None:
        message = _message(incoming)
        await settle(self._queue, message, self._handler, self._bus.publish, self._bus.clock)
        with contextlib.suppress(*AWAY):  # an ack that is lost means the message again; handlers bear that
            await incoming.ack()


def _message(incoming: AbstractIncomingMessage) -> Message:
    headers = {key: _text(value) for key, value in (incoming.headers or {}).items()}
    count = headers.pop("x-delivery-count", "")
    deliveries = int(count) if count.isdecimal() else int(bool(incoming.redelivered))
    return Message(incoming.body, headers, incoming.message_id or "", deliveries)


def _text(value: object) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)


@contextlib.asynccontextmanager
async def open_amqp(url: str, clock: Clock) -> AsyncGenerator[AmqpBus]:
    """A connected bus."""
    bus = AmqpBus(url, clock)
    await bus.start()
    try:
        yield bus
    finally:
        await bus.close()
