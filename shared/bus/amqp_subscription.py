"""A subscription at RabbitMQ: one channel at a time, and a new one whenever that is lost."""

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable
from typing import cast

from aiormq.abc import AbstractChannel, DeliveredMessage
from pamqp.commands import Basic

from shared.bus.amqp_errors import translated
from shared.bus.amqp_link import REPLY_WITHIN, close_quietly
from shared.bus.backoff import jittered
from shared.bus.port import BusError, Handler, Message, Reject
from shared.bus.settling import AtWork, conclude
from shared.clock import Clock

log = logging.getLogger(__name__)

FIRST_WAIT = 0.2
LONGEST_WAIT = 10.0


class Session:
    """The life of one channel and its consumer; over when `lost` is set."""

    def __init__(self, channel: AbstractChannel) -> None:
        self.channel = channel
        self.lost = asyncio.Event()
        self.tag = ""
        channel.closing.add_done_callback(lambda _: self.lost.set())
        channel.on_consumer_cancel_callbacks.add(self._cancelled_by_broker)

    async def consume(self, queue: str, prefetch: int, take: Callable[[DeliveredMessage], None]) -> None:
        """Has the broker send messages."""

        async def deliver(delivered: DeliveredMessage) -> None:
            take(delivered)

        with translated(queue):
            await self.channel.basic_qos(prefetch_count=prefetch, timeout=REPLY_WITHIN)
            answer = await self.channel.basic_consume(queue, deliver, timeout=REPLY_WITHIN)
            self.tag = answer.consumer_tag or ""

    async def cancel(self) -> None:
        """Has the broker send no more."""
        with translated():
            await self.channel.basic_cancel(self.tag, timeout=REPLY_WITHIN)

    def _cancelled_by_broker(self, _frame: Basic.Cancel) -> None:
        self.lost.set()


class AmqpSubscription:
    """See `Subscription`.

    Args:
        queue: what is consumed.
        handler: deals with one message.
        prefetch: the most messages under way.
        on_lost: called when a channel is lost.
        clock: for waits between tries.
        open_channel: a new channel once the broker is there, with the queue declared.
        bury: puts a rejected message in the dead queue.
        forget: called once at the end.
    """

    def __init__(
        self,
        queue: str,
        handler: Handler,
        *,
        prefetch: int,
        on_lost: Callable[[], None] | None,
        clock: Clock,
        open_channel: Callable[[str], Awaitable[AbstractChannel]],
        bury: Callable[[str, Message, Reject], Awaitable[None]],
        forget: Callable[["AmqpSubscription"], None],
    ) -> None:
        self._queue = queue
        self._handler = handler
        self._prefetch = prefetch
        self._on_lost = on_lost
        self._clock = clock
        self._open_channel = open_channel
        self._bury = bury
        self._forget = forget
        self._at_work = AtWork()
        self._session: Session | None = None
        self._keeper: asyncio.Task[None] | None = None
        self._taking = True
        self._mending = True

    @property
    def live(self) -> bool:
        """Whether the broker feeds it."""
        return self._session is not None and not self._session.lost.is_set()

    async def start(self) -> None:
        """Subscribes; from then on it mends itself.

        Raises:
            Unroutable: no such queue.
            Unavailable: the broker is away, or the queue belongs to another.
        """
        await self._subscribe()
        self._keeper = asyncio.create_task(self._keep(), name=f"bus:keep:{self._queue}")

    async def stop(self) -> None:
        """See `Subscription.stop`."""
        self._mending = False
        if self._session is not None and self.live:
            try:
                await self._session.cancel()
            except BusError:
                log.info("the channel was lost while stopping: queue=%s", self._queue)
        await self._at_work.idle()
        await self._end()

    async def abandon(self) -> None:
        """See `Subscription.abandon`."""
        self._mending = self._taking = False
        self._at_work.cancel()
        await self._at_work.idle()
        await self._end()

    async def _end(self) -> None:
        keeper, self._keeper = self._keeper, None
        if keeper is not None:
            keeper.cancel()
            await asyncio.wait([keeper])
        session, self._session = self._session, None
        if session is not None:
            await close_quietly(session.channel)
        self._forget(self)

    async def _subscribe(self) -> None:
        session = Session(await self._open_channel(self._queue))
        self._session = session
        try:
            await session.consume(self._queue, self._prefetch, lambda delivered: self._take(session, delivered))
        except BaseException:
            self._session = None
            await close_quietly(session.channel)
            raise

    async def _keep(self) -> None:
        while (session := self._session) is not None:
            await session.lost.wait()
            log.warning("a subscription is lost: queue=%s under_way=%d", self._queue, len(self._at_work))
            self._at_work.cancel()
            if self._on_lost is not None:
                self._on_lost()
            await self._at_work.idle()
            await close_quietly(session.channel)
            self._session = None
            await self._mend()

    async def _mend(self) -> None:
        attempt = 0
        while self._mending:
            try:
                await self._subscribe()
            except BusError as error:
                attempt += 1
                log.warning("no subscription yet: queue=%s try=%d: %r", self._queue, attempt, error)
                await self._clock.sleep(jittered(attempt, FIRST_WAIT, LONGEST_WAIT, random.random()))  # noqa: S311
            else:
                log.info("subscribed again: queue=%s", self._queue)
                return

    def _take(self, session: Session, delivered: DeliveredMessage) -> None:
        if self._taking and not session.lost.is_set():
            self._at_work.start(lambda: self._settle(session, delivered), f"bus:{self._queue}")

    async def _settle(self, session: Session, delivered: DeliveredMessage) -> None:
        message = _message(delivered)
        outcome = await conclude(self._handler, message, self._clock)
        if isinstance(outcome, Reject):
            await self._bury(self._queue, message, outcome)
        delivery = cast("Basic.Deliver", delivered.delivery)
        try:
            with translated(self._queue):
                await session.channel.basic_ack(delivery.delivery_tag or 0, wait=False)
        except BusError:
            log.info("the channel was lost before the ack: queue=%s", self._queue)


def _message(delivered: DeliveredMessage) -> Message:
    properties = delivered.header.properties
    headers = dict(properties.headers or {})
    count = headers.pop("x-delivery-count", None)
    again = bool(cast("Basic.Deliver", delivered.delivery).redelivered)
    return Message(
        body=bytes(delivered.body),
        headers={key: _text(value) for key, value in headers.items()},
        message_id=properties.correlation_id or "",
        deliveries=count if isinstance(count, int) else int(again),
    )


def _text(value: object) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes | bytearray) else str(value)
