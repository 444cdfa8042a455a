"""A link to RabbitMQ: one connection to publish on and one to consume on, lost and mended together.

Two, because the broker slows a publishing connection down by not reading it, which would hold back acks as well.
"""

import asyncio
import itertools
import logging
from contextlib import AsyncExitStack, suppress
from typing import cast

import aiormq
from aiormq.abc import AbstractChannel, AbstractConnection
from pamqp.commands import Basic

from shared.bus.amqp_errors import translated
from shared.bus.port import INBOX_PREFIX, BusError, Message, Unavailable

log = logging.getLogger(__name__)

REPLY_WITHIN = 10.0
HEARTBEAT = 10


class Link:
    """Live from `open` until `lost` is set.

    Args:
        publishing: the connection of `publisher`.
        consuming: the connection for everything else; exclusive queues belong to it.
        publisher: a channel in confirm mode.
    """

    def __init__(
        self, publishing: AbstractConnection, consuming: AbstractConnection, publisher: aiormq.Channel
    ) -> None:
        self.lost = asyncio.Event()
        self._publishing = publishing
        self._consuming = consuming
        self._publisher = publisher
        self._ids = itertools.count(1)
        for part in (publishing, consuming, publisher):
            part.closing.add_done_callback(lambda _: self.lost.set())

    @classmethod
    async def open(cls, url: str) -> "Link":
        """Connects.

        Raises:
            Unavailable: nobody there, or we are not let in.
        """
        async with AsyncExitStack() as undo:
            publishing = await _connect(url)
            undo.push_async_callback(close_quietly, publishing)
            consuming = await _connect(url)
            undo.push_async_callback(close_quietly, consuming)
            with translated():
                publisher = await publishing.channel(publisher_confirms=True, timeout=REPLY_WITHIN)
            undo.pop_all()
        return cls(publishing, consuming, cast("aiormq.Channel", publisher))

    async def publish(self, queue: str, message: Message, within: float) -> None:
        """Returns when the broker has confirmed; many may be in flight."""
        if self.lost.is_set():
            raise Unavailable("the connection is lost")
        properties = Basic.Properties(
            headers=dict(message.headers),
            delivery_mode=1 if queue.startswith(INBOX_PREFIX) else 2,
            # The library finds a returned message by this name, so it has to be unique: the sender's own, which may
            # be in flight twice, travels beside it.
            message_id=format(next(self._ids), "x"),
            correlation_id=message.message_id or None,
        )
        with translated(queue):
            await self._publisher.basic_publish(
                message.body, routing_key=queue, properties=properties, mandatory=True, timeout=within, wait=False
            )

    async def channel(self) -> AbstractChannel:
        """A new channel to consume or declare on."""
        if self.lost.is_set():
            raise Unavailable("the connection is lost")
        with translated():
            return await self._consuming.channel(publisher_confirms=False, timeout=REPLY_WITHIN)

    async def close(self) -> None:
        """Closes both connections."""
        self.lost.set()
        await asyncio.gather(close_quietly(self._publishing), close_quietly(self._consuming))


async def _connect(url: str) -> AbstractConnection:
    address = f"{url}{'&' if '?' in url else '?'}heartbeat={HEARTBEAT}&name=sluice"
    with translated():
        async with asyncio.timeout(REPLY_WITHIN):
            return await aiormq.connect(address)


async def close_quietly(part: AbstractConnection | AbstractChannel) -> None:
    """Closes what may already be broken."""
    with suppress(BusError), translated():
        async with asyncio.timeout(REPLY_WITHIN):
            await part.close()
