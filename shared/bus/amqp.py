"""The bus over RabbitMQ 3.10 to 4.x."""

import asyncio
import logging
import random
from collections.abc import Callable

from aiormq.abc import AbstractChannel

from shared.bus.amqp_errors import translated
from shared.bus.amqp_link import REPLY_WITHIN, Link, close_quietly
from shared.bus.amqp_queues import declare
from shared.bus.amqp_subscription import FIRST_WAIT, LONGEST_WAIT, AmqpSubscription
from shared.bus.backoff import jittered
from shared.bus.port import BusError, Handler, Message, QueueKind, Reject, Subscription, Unavailable, require_size
from shared.bus.settling import bury
from shared.clock import Clock

log = logging.getLogger(__name__)

PUBLISH_TIMEOUT = 30.0


class AmqpBus:
    """A client of RabbitMQ that mends itself; see `Bus`.

    Args:
        url: `amqp://user:password@host:port/vhost`.
        clock: for waits between tries.
        publish_timeout: seconds until a publish without an answer is Unavailable.
    """

    def __init__(self, url: str, clock: Clock, *, publish_timeout: float = PUBLISH_TIMEOUT) -> None:
        self._url = url
        self._clock = clock
        self._publish_timeout = publish_timeout
        self._kinds: dict[str, QueueKind] = {}
        self._subscriptions: set[AmqpSubscription] = set()
        self._link: Link | None = None
        self._linked = asyncio.Event()
        self._keeper: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Connects; from then on the connection is mended whenever it breaks.

        Raises:
            Unavailable: nobody there, or we are not let in.
        """
        self._use(await Link.open(self._url))
        self._keeper = asyncio.create_task(self._keep(), name="bus:keep")

    async def publish(self, queue: str, message: Message) -> None:
        """See `Bus.publish`."""
        require_size(message)
        await self._live_link().publish(queue, message, self._publish_timeout)

    async def subscribe(
        self, queue: str, handler: Handler, *, prefetch: int, on_lost: Callable[[], None] | None = None
    ) -> Subscription:
        """See `Bus.subscribe`."""
        self._live_link()
        subscription = AmqpSubscription(
            queue,
            handler,
            prefetch=prefetch,
            on_lost=on_lost,
            clock=self._clock,
            open_channel=self._open_channel,
            bury=self._bury,
            forget=self._subscriptions.discard,
        )
        await subscription.start()
        self._subscriptions.add(subscription)
        return subscription

    async def declare(self, queue: str, kind: QueueKind) -> None:
        """See `Bus.declare`."""
        self._kinds[queue] = kind
        await self._declare(self._live_link(), queue, kind)

    async def depth(self, queue: str) -> int:
        """See `Bus.depth`."""
        channel = await self._live_link().channel()
        try:
            with translated(queue):
                answer = await channel.queue_declare(queue, passive=True, timeout=REPLY_WITHIN)
                return answer.message_count or 0
        finally:
            await close_quietly(channel)

    def ready(self) -> bool:
        """See `Bus.ready`."""
        linked = self._link is not None and not self._link.lost.is_set()
        return linked and all(subscription.live for subscription in self._subscriptions)

    async def close(self) -> None:
        """See `Bus.close`."""
        for subscription in tuple(self._subscriptions):
            await subscription.abandon()
        if self._keeper is not None:
            self._keeper.cancel()
            await asyncio.wait([self._keeper])
        if self._link is not None:
            link, self._link = self._link, None
            await link.close()

    def _live_link(self) -> Link:
        if self._link is None or self._link.lost.is_set():
            raise Unavailable("no connection to the broker")
        return self._link

    def _use(self, link: Link) -> None:
        self._link = link
        self._linked.set()

    async def _keep(self) -> None:
        while (link := self._link) is not None:
            await link.lost.wait()
            log.warning("the connection to the broker is lost")
            self._linked.clear()
            self._link = None
            await link.close()
            self._use(await self._reconnect())

    async def _reconnect(self) -> Link:
        attempt = 0
        while True:
            try:
                link = await Link.open(self._url)
            except BusError as error:
                attempt += 1
                log.warning("no connection yet: try=%d: %r", attempt, error)
                await self._clock.sleep(jittered(attempt, FIRST_WAIT, LONGEST_WAIT, random.random()))  # noqa: S311
            else:
                await self._declare_again(link)
                return link

    async def _declare_again(self, link: Link) -> None:
        """A broker that lost its disk, or our inbox with the connection, has the queues made anew."""
        for queue, kind in self._kinds.items():
            try:
                await self._declare(link, queue, kind)
            except BusError as error:
                log.warning("a queue could not be declared: queue=%s: %r", queue, error)

    async def _declare(self, link: Link, queue: str, kind: QueueKind) -> None:
        channel = await link.channel()
        try:
            with translated(queue):
                await declare(channel, queue, kind, REPLY_WITHIN)
        finally:
            await close_quietly(channel)

    async def _open_channel(self, queue: str) -> AbstractChannel:
        await self._linked.wait()
        channel = await self._live_link().channel()
        kind = self._kinds.get(queue)
        if kind is None:
            return channel
        try:
            with translated(queue):
                await declare(channel, queue, kind, REPLY_WITHIN)
        except BaseException:
            await close_quietly(channel)
            raise
        return channel

    async def _bury(self, queue: str, message: Message, reject: Reject) -> None:
        await bury(self, queue, message, reject, self._clock)
