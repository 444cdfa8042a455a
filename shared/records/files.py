"""Files: what a ref means, for as long as it lives."""

from collections.abc import Sequence
from typing import Any

import msgspec
from sqlalchemy import delete, insert, select

from shared.records import tables as t
from shared.records.database import Database
from shared.records.model import FileRow
from shared.records.sql import steps

_c = t.files.c


class FileRecords:
    """See `shared.records.model.FileRow`."""

    def __init__(self, database: Database) -> None:
        self._db = database

    async def add(self, row: FileRow) -> None:
        """Makes a ref known."""
        async with self._db.writing() as connection:
            await connection.execute(insert(t.files).values(**msgspec.structs.asdict(row)))

    async def get(self, ref: str, now: float) -> FileRow | None:
        """The file behind a ref, while it lives."""
        found = await self._all(select(t.files).where((_c.ref == ref) & (_c.expires_at > now)))
        return found[0] if found else None

    async def expired(self, now: float, limit: int) -> list[FileRow]:
        """Those whose bytes may go, the oldest first."""
        return await self._all(select(t.files).where(_c.expires_at <= now).order_by(_c.expires_at).limit(limit))

    async def remove(self, refs: Sequence[str]) -> None:
        """Forgets them."""
        for some in steps(refs):
            async with self._db.writing() as connection:
                await connection.execute(delete(t.files).where(_c.ref.in_(some)))

    async def _all(self, query: Any) -> list[FileRow]:
        async with self._db.reading() as connection:
            return [FileRow(**row) for row in (await connection.execute(query)).mappings()]
