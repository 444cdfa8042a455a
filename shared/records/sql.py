"""Small pieces of SQL that several subjects need; each is the same on both databases."""

from collections.abc import Iterator, Sequence
from typing import Any, Final, TypeVar

from sqlalchemy import CursorResult, Table, delete, select, tuple_
from sqlalchemy.ext.asyncio import AsyncConnection

from shared.records.database import Database

STEP: Final = 5000
"""The most rows that one statement names or deletes: it bounds locks, parameters and the time of a transaction."""
T = TypeVar("T")


def steps(items: Sequence[T]) -> Iterator[list[T]]:
    """The items in lists that one statement may name."""
    for start in range(0, len(items), STEP):
        yield list(items[start : start + STEP])


async def changed(connection: AsyncConnection, statement: Any) -> int:
    """Runs a statement and says how many rows it touched."""
    result: CursorResult[Any] = await connection.execute(statement)
    return result.rowcount


async def purge(database: Database, table: Table, old: Any) -> int:
    """Deletes the rows that `old` describes, step by step, passing over those that somebody holds."""
    keys = list(table.primary_key.columns)
    some = select(*keys).where(old).limit(STEP).with_for_update(skip_locked=True)
    doomed = keys[0].in_(some) if len(keys) == 1 else tuple_(*keys).in_(some)
    total = 0
    while True:
        async with database.writing() as connection:
            gone = await changed(connection, delete(table).where(doomed))
        total += gone
        if gone < STEP:
            return total
