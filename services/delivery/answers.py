"""The way back: packets for xAgent go to the edge that has the channel."""

import logging
from collections.abc import Sequence

from shared.bus.outgoing import Outgoing
from shared.records.errors import RecordsUnavailable
from shared.records.records import Records
from shared.wire import notes
from shared.wire.ids import edge_queue
from shared.wire.items import Item

log = logging.getLogger(__name__)


class Answers:
    """Sends packets to the edges.

    Args:
        outgoing: the batched way onto the bus.
        records: who has a channel open, where the edge that asked is gone.
    """

    def __init__(self, outgoing: Outgoing, records: Records) -> None:
        self._outgoing = outgoing
        self._records = records

    async def reply(self, item: Item, raw: bytes, trace: str = "") -> None:
        """Answers an item; nothing where nobody waits. An answer that is lost is asked for again by its sender."""
        if item.origin:
            await self._offer(item.origin, Item(notes.SEND, item.card, item.channel, raw, trace=trace or item.trace))

    async def push(self, card: str, channel: str, edge_id: str, raw: bytes) -> None:
        """Sends what was not asked for, where the channel is open."""
        if edge_id:
            await self._offer(edge_id, Item(notes.SEND, card, channel, raw))

    async def unroutable(self, queue: str, items: Sequence[Item]) -> None:
        """The edge is gone: its channels may be open on another by now."""
        for item in items:
            try:
                channel = await self._records.channels.get(item.channel)
            except RecordsUnavailable:
                channel = None
            if channel is not None and channel.edge_id and edge_queue(channel.edge_id) != queue:
                await self._offer(channel.edge_id, item)
            else:
                log.info("an answer found nobody: channel=%s kind=%s", item.channel, item.kind)

    async def _offer(self, edge_id: str, item: Item) -> None:
        queue = edge_queue(edge_id)
        while not self._outgoing.offer(queue, item):
            await self._outgoing.drain(queue)
