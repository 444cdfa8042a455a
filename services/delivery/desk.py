"""The records as a delivery uses them: every round trip shared with all others of the moment.

What is read may fail with `RecordsUnavailable`: nothing has happened yet, and the work is tried again. What is written
down has happened already, so a write waits for the records until it is durable.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from shared.batcher import Batcher
from shared.cards.card import Card, ChannelView, descriptor
from shared.clock import Clock
from shared.records.errors import RecordsUnavailable
from shared.records.model import (
    Channel,
    Claim,
    Claimed,
    DeadLetter,
    FileRow,
    Intent,
    LedgerEntry,
    LedgerUpdate,
    Parked,
)
from shared.records.records import Records
from shared.state.client import StateUnavailable
from shared.state.streams import Streams
from shared.wire import replies

log = logging.getLogger(__name__)

Key = tuple[str, str]
R = TypeVar("R")
RETRY_SECONDS = 1.0


class Desk:
    """Batches what deliveries read and write.

    Args:
        records: ledger, parked, dead letters, files.
        streams: texts of running streams.
        clock: for lifetimes.
    """

    def __init__(self, records: Records, streams: Streams, clock: Clock) -> None:
        self._records = records
        self._streams = streams
        self._clock = clock
        self._claims: Batcher[Claim, Claimed] = Batcher(records.ledger.claim)
        self._finds: Batcher[Key, LedgerEntry | None] = Batcher(records.ledger.get)
        self._texts: Batcher[Key, tuple[bytes, int] | None] = Batcher(streams.texts)

        async def update(updates: list[LedgerUpdate]) -> Sequence[None]:
            await records.ledger.update(updates)
            return [None] * len(updates)

        async def park(rows: list[Parked]) -> Sequence[None]:
            await records.parked.park(rows)
            return [None] * len(rows)

        async def bury(letters: list[DeadLetter]) -> Sequence[None]:
            await records.dead.bury(letters)
            return [None] * len(letters)

        self._intents: Batcher[Intent, bool] = Batcher(records.ledger.intend)
        self._updates: Batcher[LedgerUpdate, None] = Batcher(update)
        self._parks: Batcher[Parked, None] = Batcher(park)
        self._burials: Batcher[DeadLetter, None] = Batcher(bury)

    def claim(self, claim: Claim) -> asyncio.Future[Claimed]:
        """Claims a final in the ledger."""
        return self._claims.put(claim)

    async def find(self, channel: str, message_id: str) -> LedgerEntry | None:
        """What the ledger says of a message."""
        return await self._finds.add((channel, message_id))

    async def intend(self, intent: Intent) -> bool:
        """Whether the call may be made: durable when it returns, and nobody else has got ahead with it."""
        return await _durably(lambda: self._intents.add(intent), self._clock)

    async def reopen(self, channel: str, message_id: str) -> None:
        """A refused message gets one more try, by an operator; durable when it returns."""
        await _durably(lambda: self._records.ledger.reopen(channel, message_id), self._clock)

    async def write(self, update: LedgerUpdate) -> None:
        """Durable when it returns."""
        await _durably(lambda: self._updates.add(update), self._clock)

    async def write_all(self, updates: Sequence[LedgerUpdate]) -> None:
        """Durable when it returns."""
        await _durably(lambda: self._records.ledger.update(updates), self._clock)

    async def park(self, row: Parked) -> None:
        """Puts work aside; durable when it returns."""
        await _durably(lambda: self._parks.add(row), self._clock)

    async def park_first(self, row: Parked) -> None:
        """Puts work aside ahead of what is parked of its lane; durable when it returns."""
        await _durably(lambda: self._records.parked.park_first(row), self._clock)

    async def bury(self, letter: DeadLetter) -> None:
        """Files a dead letter; durable when it returns."""
        await _durably(lambda: self._burials.add(letter), self._clock)

    async def file(self, ref: str) -> FileRow | None:
        """An uploaded file, while its ref lives."""
        return await self._records.files.get(ref, self._clock.now())

    async def text(self, channel: str, message_id: str) -> tuple[bytes, int] | None:
        """The newest text of a stream and its last sequence."""
        return await self._texts.add((channel, message_id))

    async def close_streams(self, keys: Sequence[Key]) -> None:
        """The finals have come: the streams' state goes, and late deltas find a tombstone."""
        try:
            await self._streams.close(keys)
        except StateUnavailable:
            log.info("streams end by their lifetime: the state is away: streams=%d", len(keys))

    @staticmethod
    def descriptor_push(card: Card, channel: Channel) -> bytes:
        """The packet that tells xAgent of a changed Descriptor."""
        payload = {"connection_descriptor": descriptor(card, ChannelView.of(channel))}
        return replies.packet("connection.descriptor.push", payload, channel=channel.channel_id)


async def _durably(write: Callable[[], Awaitable[R]], clock: Clock) -> R:
    while True:
        try:
            return await write()
        except RecordsUnavailable as error:
            log.warning("waiting for the records: %s", error)
            await clock.sleep(RETRY_SECONDS)
