"""What waits and what was given up: parked work, dead letters, and the attempts at suspicious items."""

from collections.abc import Callable, Sequence
from typing import Any

import msgspec
from sqlalchemy import delete, func, insert, select, text, update

from shared.records import tables as t
from shared.records.database import Database
from shared.records.model import DeadLetter, Parked
from shared.wire.items import Item, pack


class ParkedRecords:
    """See `shared.records.model.Parked`."""

    def __init__(self, database: Database) -> None:
        self._db = database

    async def park(self, rows: Sequence[Parked]) -> None:
        """Puts work aside, in order."""
        async with self._db.begin() as connection:
            for row in rows:
                await connection.execute(insert(t.parked).values(**_parked_values(row)))

    async def lanes(self, partitions: Sequence[int], limit: int) -> list[tuple[str, int, float]]:
        """Lanes with parked work: (channel, partition, when its head is due)."""
        table = t.parked
        heads = (
            select(func.min(table.c.id))
            .where(table.c.partition.in_(list(partitions)))
            .group_by(table.c.channel)
            .scalar_subquery()
        )
        query = (
            select(table.c.channel, table.c.partition, table.c.due_at)
            .where(table.c.id.in_(heads))
            .order_by(table.c.due_at)
            .limit(limit)
        )
        async with self._db.begin() as connection:
            return [(row[0], row[1], row[2]) for row in (await connection.execute(query)).all()]

    async def head(self, channel: str, limit: int) -> list[Parked]:
        """The first of a lane, in order."""
        query = select(t.parked).where(t.parked.c.channel == channel).order_by(t.parked.c.id).limit(limit)
        return await self._all(query)

    async def remove(self, ids: Sequence[int]) -> None:
        """They are done."""
        async with self._db.begin() as connection:
            await connection.execute(delete(t.parked).where(t.parked.c.id.in_(list(ids))))

    async def reschedule(self, row_id: int, due_at: float, attempts: int, reason: str) -> None:
        """A later try."""
        await self._set(row_id, due_at=due_at, attempts=attempts, reason=reason)

    async def retry(self, row_id: int) -> None:
        """Due now."""
        await self._set(row_id, due_at=0.0)

    async def find(self, limit: int, channel: str = "") -> list[Parked]:
        """For an operator."""
        query = select(t.parked).order_by(t.parked.c.id).limit(limit)
        return await self._all(query.where(t.parked.c.channel == channel) if channel else query)

    async def get(self, row_id: int) -> Parked | None:
        """One row."""
        found = await self._all(select(t.parked).where(t.parked.c.id == row_id))
        return found[0] if found else None

    async def _all(self, query: Any) -> list[Parked]:
        async with self._db.begin() as connection:
            rows = (await connection.execute(query)).mappings()
            return [Parked(**{**dict(row), "item": bytes(row["item"])}) for row in rows]

    async def _set(self, row_id: int, **values: object) -> None:
        async with self._db.begin() as connection:
            await connection.execute(update(t.parked).where(t.parked.c.id == row_id).values(**values))


class DeadRecords:
    """See `shared.records.model.DeadLetter`."""

    def __init__(self, database: Database) -> None:
        self._db = database

    async def bury(self, letters: Sequence[DeadLetter]) -> None:
        """Files them; the same id again replaces what it said."""
        async with self._db.begin() as connection:
            for letter in letters:
                await bury(connection, letter)

    async def find(self, limit: int, channel: str = "") -> list[DeadLetter]:
        """For an operator, the newest first."""
        query = select(t.dead_letters).order_by(t.dead_letters.c.at.desc()).limit(limit)
        async with self._db.begin() as connection:
            if channel:
                query = query.where(t.dead_letters.c.channel == channel)
            return [_letter(row) for row in (await connection.execute(query)).mappings()]

    async def get(self, letter_id: str) -> DeadLetter | None:
        """One letter."""
        async with self._db.begin() as connection:
            query = select(t.dead_letters).where(t.dead_letters.c.id == letter_id)
            row = (await connection.execute(query)).mappings().first()
            return _letter(row) if row is not None else None

    async def remove(self, letter_id: str) -> None:
        """Forgets it."""
        async with self._db.begin() as connection:
            await connection.execute(delete(t.dead_letters).where(t.dead_letters.c.id == letter_id))

    async def purge(self, before: float) -> None:
        """Forgets the old ones."""
        async with self._db.begin() as connection:
            await connection.execute(delete(t.dead_letters).where(t.dead_letters.c.at < before))

    async def retry(self, letter_id: str, partition_of: Callable[[str], int], now: float) -> bool:
        """Moves it back: an outbound one to its lane, an inbound one to the outbox. False when it is not there."""
        letter = await self.get(letter_id)
        if letter is None:
            return False
        async with self._db.begin() as connection:
            if letter.direction == "in":
                await connection.execute(
                    update(t.outbox)
                    .where((t.outbox.c.channel == letter.channel) & (t.outbox.c.message_id == letter.message_id))
                    .values(state="pending", code="", payload=letter.body, expires_at=now + 3600.0)
                )
            else:
                item = Item("packet", letter.card, letter.channel, letter.body, "", now)
                row = Parked(
                    channel=letter.channel,
                    partition=partition_of(letter.channel),
                    card=letter.card,
                    item=pack([item]),
                    due_at=now,
                    attempts=0,
                    first_at=now,
                    reason="retried by hand",
                    kind="retry",
                )
                await connection.execute(insert(t.parked).values(**_parked_values(row)))
            await connection.execute(delete(t.dead_letters).where(t.dead_letters.c.id == letter_id))
        return True


class AttemptRecords:
    """How often items were begun that may kill their workers."""

    def __init__(self, database: Database) -> None:
        self._db = database

    async def bump(self, keys: Sequence[str], now: float) -> list[int]:
        """Counts one more beginning of each; durable when it returns."""
        statement = text(
            "INSERT INTO attempts (key, count, at) VALUES (:key, 1, :now) "
            "ON CONFLICT (key) DO UPDATE SET count = attempts.count + 1, at = :now RETURNING count"
        )
        async with self._db.begin() as connection:
            return [int((await connection.execute(statement, {"key": key, "now": now})).scalar_one()) for key in keys]

    async def purge(self, before: float) -> None:
        """Forgets the old ones."""
        async with self._db.begin() as connection:
            await connection.execute(delete(t.attempts).where(t.attempts.c.at < before))


async def bury(connection: Any, letter: DeadLetter) -> None:
    """Files a dead letter within a transaction."""
    await connection.execute(delete(t.dead_letters).where(t.dead_letters.c.id == letter.id))
    await connection.execute(insert(t.dead_letters).values(**msgspec.structs.asdict(letter)))


def _parked_values(row: Parked) -> dict[str, object]:
    values = msgspec.structs.asdict(row)
    del values["id"]
    return values


def _letter(row: Any) -> DeadLetter:
    return DeadLetter(**{**dict(row), "body": bytes(row["body"])})
