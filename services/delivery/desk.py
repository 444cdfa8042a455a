"""The records as a delivery uses them: every round trip shared with all others of the moment."""

from collections.abc import Sequence

from shared.batcher import Batcher
from shared.cards.card import Card, ChannelView, descriptor
from shared.clock import Clock
from shared.records.model import (
    Channel,
    Claim,
    Claimed,
    DeadLetter,
    FileRow,
    LedgerEntry,
    LedgerUpdate,
    Parked,
)
from shared.records.records import Records
from shared.state.streams import Streams
from shared.wire import replies

Key = tuple[str, str]


class Desk:
    """Batches what deliveries read and write.

    Args:
        records: ledger, parked, dead letters, files.
        streams: texts of running streams.
        clock: for lifetimes.
    """

    def __init__(self, records: Records, streams: Streams, clock: Clock) -> None:
        self._records = records
        self._clock = clock
        self._claims: Batcher[Claim, Claimed] = Batcher(records.ledger.claim)
        self._finds: Batcher[Key, LedgerEntry | None] = Batcher(records.ledger.get)
        self._texts: Batcher[Key, tuple[bytes, int] | None] = Batcher(streams.texts)
        self._closes: Batcher[Key, bool] = Batcher(streams.close)

        async def update(updates: list[LedgerUpdate]) -> Sequence[None]:
            await records.ledger.update(updates)
            return [None] * len(updates)

        async def park(rows: list[Parked]) -> Sequence[None]:
            await records.parked.park(rows)
            return [None] * len(rows)

        async def bury(letters: list[DeadLetter]) -> Sequence[None]:
            await records.dead.bury(letters)
            return [None] * len(letters)

        self._updates: Batcher[LedgerUpdate, None] = Batcher(update)
        self._parks: Batcher[Parked, None] = Batcher(park)
        self._burials: Batcher[DeadLetter, None] = Batcher(bury)

    async def claim(self, claim: Claim) -> Claimed:
        """Claims a final in the ledger."""
        return await self._claims.add(claim)

    async def find(self, channel: str, message_id: str) -> LedgerEntry | None:
        """What the ledger says of a message."""
        return await self._finds.add((channel, message_id))

    async def write(self, update: LedgerUpdate) -> None:
        """Durable when it returns."""
        await self._updates.add(update)

    async def park(self, row: Parked) -> None:
        """Puts work aside; durable when it returns, in the order of the calls."""
        await self._parks.add(row)

    async def bury(self, letter: DeadLetter) -> None:
        """Files a dead letter."""
        await self._burials.add(letter)

    async def file(self, ref: str) -> FileRow | None:
        """An uploaded file, while its ref lives."""
        return await self._records.files.get(ref, self._clock.now())

    async def text(self, channel: str, message_id: str) -> tuple[bytes, int] | None:
        """The newest text of a stream and its last sequence."""
        return await self._texts.add((channel, message_id))

    async def close_stream(self, channel: str, message_id: str) -> None:
        """The final has come: the stream's state goes, and late deltas find a tombstone."""
        await self._closes.add((channel, message_id))

    @staticmethod
    def descriptor_push(card: Card, channel: Channel) -> bytes:
        """The packet that tells xAgent of a changed Descriptor."""
        payload = {"connection_descriptor": descriptor(card, ChannelView.of(channel))}
        return replies.packet("connection.descriptor.push", payload, channel=channel.channel_id)
