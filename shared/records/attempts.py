"""How often an item was begun that may kill whoever works on it (field report 34)."""

from collections.abc import Sequence
from typing import Final

from sqlalchemy import text

from shared.records import tables as t
from shared.records.database import Database
from shared.records.sql import purge

_BUMP: Final = text(
    "INSERT INTO attempts (key, count, at) VALUES (:key, 1, :now) "
    "ON CONFLICT (key) DO UPDATE SET count = attempts.count + 1, at = excluded.at RETURNING count"
)


class AttemptRecords:
    """Counters that outlive the process that they count the deaths of."""

    def __init__(self, database: Database) -> None:
        self._db = database

    async def bump(self, keys: Sequence[str], now: float) -> list[int]:
        """Counts one more beginning of each, and returns the counts in order; durable when it returns."""
        counts: dict[int, int] = {}
        async with self._db.writing() as connection:
            for place, key in sorted(enumerate(keys), key=lambda entry: entry[1]):
                counts[place] = (await connection.execute(_BUMP, {"key": key, "now": now})).scalar_one()
        return [counts[place] for place in range(len(keys))]

    async def purge(self, before: float) -> int:
        """Forgets the old ones, in bounded steps; returns how many."""
        return await purge(self._db, t.attempts, t.attempts.c.at < before)
