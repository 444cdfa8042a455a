"""Dead letters: what was given up, why, and the way back."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

import msgspec
from sqlalchemy import delete, select, text
from sqlalchemy.ext.asyncio import AsyncConnection

from shared.records import tables as t
from shared.records.database import Database
from shared.records.model import DeadLetter, Parked
from shared.records.parked import put_aside
from shared.records.sql import purge
from shared.text.policy import clean_text
from shared.wire import notes
from shared.wire.items import Item, pack

RETRY_SECONDS: Final = 3600.0
"""What a person's message gets when an operator sends it again: the hour that every message has (contract.md)."""
_c = t.dead_letters.c
_BURY: Final = text(
    "INSERT INTO dead_letters (id, channel, card, message_id, direction, code, detail, body, attempts, at) "
    "VALUES (:id, :channel, :card, :message_id, :direction, :code, :detail, :body, :attempts, :at) "
    "ON CONFLICT (id) DO UPDATE SET channel = excluded.channel, card = excluded.card, "
    "message_id = excluded.message_id, direction = excluded.direction, code = excluded.code, "
    "detail = excluded.detail, body = excluded.body, attempts = excluded.attempts, at = excluded.at"
)
_REVIVE: Final = text(
    "INSERT INTO outbox (channel, card, message_id, payload, accepted_at, expires_at, state, attempts, code) "
    "VALUES (:channel, :card, :message_id, :body, :now, :expires_at, 'pending', 0, '') "
    "ON CONFLICT (channel, message_id) DO UPDATE SET payload = excluded.payload, expires_at = excluded.expires_at, "
    "state = 'pending', attempts = 0, code = '' WHERE outbox.state IN ('rejected', 'expired')"
)


class DeadRecords:
    """See `shared.records.model.DeadLetter`."""

    def __init__(self, database: Database) -> None:
        self._db = database

    async def bury(self, letters: Sequence[DeadLetter]) -> None:
        """Files them; the same id again says it anew, and is still one letter. Durable when it returns."""
        if not letters:
            return
        async with self._db.writing() as connection:
            await bury(connection, letters)

    async def find(self, limit: int, channel: str = "") -> list[DeadLetter]:
        """What was given up, for an operator, the newest first."""
        query = select(t.dead_letters).order_by(_c.at.desc(), _c.id).limit(limit)
        return await self._all(query.where(_c.channel == channel) if channel else query)

    async def get(self, letter_id: str) -> DeadLetter | None:
        """One letter."""
        found = await self._all(select(t.dead_letters).where(_c.id == letter_id))
        return found[0] if found else None

    async def remove(self, letter_id: str) -> None:
        """Forgets it."""
        async with self._db.writing() as connection:
            await connection.execute(delete(t.dead_letters).where(_c.id == letter_id))

    async def purge(self, before: float) -> int:
        """Forgets the old ones, in bounded steps; returns how many."""
        return await purge(self._db, t.dead_letters, _c.at < before)

    async def retry(self, letter_id: str, partition_of: Callable[[str], int], now: float) -> bool:
        """Moves it back in one transaction: an outbound one to its lane, a person's to the outbox.

        Returns:
            Whether it was moved: not when it is gone, and not when it is of the bus and so has nowhere to go.
        """
        async with self._db.writing() as connection:
            query = select(t.dead_letters).where(_c.id == letter_id).with_for_update()
            row = (await connection.execute(query)).mappings().first()
            if row is None:
                return False
            letter = DeadLetter(**row)
            if letter.direction == "bus":
                return False
            if letter.direction == "in":
                await revive(connection, letter, now)
            else:
                await put_aside(connection, [_parked(letter, partition_of(letter.channel), now)])
            await connection.execute(delete(t.dead_letters).where(_c.id == letter_id))
            return True

    async def _all(self, query: Any) -> list[DeadLetter]:
        async with self._db.reading() as connection:
            return [DeadLetter(**row) for row in (await connection.execute(query)).mappings()]


async def bury(connection: AsyncConnection, letters: Iterable[DeadLetter]) -> None:
    """Files dead letters within a transaction."""
    ordered = sorted(letters, key=lambda letter: letter.id)  # so that two batches never wait for one another
    await connection.execute(_BURY, [_values(letter) for letter in ordered])


async def revive(connection: AsyncConnection, letter: DeadLetter, now: float) -> None:
    """Makes a person's message pending again within a transaction, at its old place in the order."""
    locked = select(t.channels.c.channel_id).where(t.channels.c.channel_id == letter.channel).with_for_update()
    await connection.execute(locked)
    values = {"channel": letter.channel, "card": letter.card, "message_id": letter.message_id, "body": letter.body}
    await connection.execute(_REVIVE, {**values, "now": now, "expires_at": now + RETRY_SECONDS})


def _parked(letter: DeadLetter, partition: int, now: float) -> Parked:
    item = Item(notes.PACKET, letter.card, letter.channel, letter.body, at=now)
    return Parked(
        channel=letter.channel,
        partition=partition,
        card=letter.card,
        item=pack([item]),
        due_at=now,
        attempts=0,
        first_at=now,
        reason=f"sent again by an operator; it was {letter.code}",
        kind="retry",
    )


def _values(letter: DeadLetter) -> dict[str, object]:
    return {**msgspec.structs.asdict(letter), "detail": clean_text(letter.detail)}
