"""Work that waits for a later try, lane by lane, in the order of its ids."""

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec
from sqlalchemy import delete, func, insert, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from shared.records import tables as t
from shared.records.database import Database
from shared.records.model import Parked
from shared.records.sql import steps
from shared.text.policy import clean_text

_c = t.parked.c


class ParkedRecords:
    """See `shared.records.model.Parked`."""

    def __init__(self, database: Database) -> None:
        self._db = database

    async def park(self, rows: Sequence[Parked]) -> None:
        """Puts work aside; ids grow in the order given. Durable when it returns."""
        if not rows:
            return
        async with self._db.writing() as connection:
            await put_aside(connection, rows)

    async def park_first(self, row: Parked) -> None:
        """Puts work aside at the head of its lane; what is parked there already gets new ids, in its order."""
        names = [column.name for column in t.parked.columns if column is not _c.id]
        async with self._db.writing() as connection:
            made = await connection.execute(insert(t.parked).values(_values(row)).returning(_c.id))
            before = (_c.channel == row.channel) & (_c.id < made.scalar_one())
            rest = select(*(t.parked.c[name] for name in names)).where(before).order_by(_c.id)
            await connection.execute(insert(t.parked).from_select(names, rest))
            await connection.execute(delete(t.parked).where(before))

    async def lanes(self, partitions: Sequence[int], limit: int) -> list[tuple[str, int, float]]:
        """Lanes with parked work, the most urgent first: (channel, partition, when its head is due)."""
        heads = select(func.min(_c.id)).where(_c.partition.in_(list(partitions))).group_by(_c.channel)
        query = select(_c.channel, _c.partition, _c.due_at).where(_c.id.in_(heads)).order_by(_c.due_at, _c.id)
        async with self._db.reading() as connection:
            return [(row[0], row[1], row[2]) for row in await connection.execute(query.limit(limit))]

    async def head(self, channel: str, limit: int) -> list[Parked]:
        """The first of a lane, in order."""
        return await self._all(select(t.parked).where(_c.channel == channel).order_by(_c.id).limit(limit))

    async def remove(self, ids: Sequence[int]) -> None:
        """They are done."""
        for some in steps(ids):
            async with self._db.writing() as connection:
                await connection.execute(delete(t.parked).where(_c.id.in_(some)))

    async def reschedule(self, row_id: int, due_at: float, attempts: int, reason: str) -> None:
        """Waits for a later try."""
        await self._set(row_id, due_at=due_at, attempts=attempts, reason=clean_text(reason))

    async def find(self, limit: int, channel: str = "") -> list[Parked]:
        """What is parked, for an operator, in order."""
        query = select(t.parked).order_by(_c.id).limit(limit)
        return await self._all(query.where(_c.channel == channel) if channel else query)

    async def get(self, row_id: int) -> Parked | None:
        """One row."""
        found = await self._all(select(t.parked).where(_c.id == row_id))
        return found[0] if found else None

    async def retry(self, row_id: int) -> None:
        """Makes it due at once."""
        await self._set(row_id, due_at=0.0)

    async def count(self) -> int:
        """How much is parked in all."""
        async with self._db.reading() as connection:
            return int((await connection.execute(select(func.count()).select_from(t.parked))).scalar_one())

    async def _all(self, query: Any) -> list[Parked]:
        async with self._db.reading() as connection:
            return [Parked(**row) for row in (await connection.execute(query)).mappings()]

    async def _set(self, row_id: int, **values: object) -> None:
        async with self._db.writing() as connection:
            await connection.execute(update(t.parked).where(_c.id == row_id).values(**values))


async def put_aside(connection: AsyncConnection, rows: Iterable[Parked]) -> None:
    """Parks within a transaction."""
    await connection.execute(insert(t.parked), [_values(row) for row in rows])


def _values(row: Parked) -> dict[str, object]:
    values = msgspec.structs.asdict(row)
    del values["id"]
    return {**values, "reason": clean_text(row.reason)}
