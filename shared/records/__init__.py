"""The records: what outlives every process, on SQLite or PostgreSQL; the only place that speaks SQL."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator
from pathlib import Path

import asyncpg
from sqlalchemy import text
from sqlalchemy.engine import URL
from sqlalchemy.exc import SQLAlchemyError

from shared.records.database import Database, make_engine, read_url
from shared.records.records import Records

__all__ = ["Records", "migrate", "open_records"]


@contextlib.asynccontextmanager
async def open_records(url: str) -> AsyncGenerator[Records]:
    """The records of a database that `migrate` has brought up to date.

    Args:
        url: `sqlite:///path` or `postgresql://…`.

    Raises:
        ValueError: it is neither; the message names SLUICE_RECORDS_URL.
    """
    async with Database(read_url(url)) as database:
        yield Records(database)


async def migrate(url: str) -> None:
    """Brings a database up to this version; roles that start together wait for one another.

    Raises:
        ValueError: as `open_records`.
    """
    wanted = read_url(url)
    if await _version(wanted) == _newest():
        return
    from shared.records.migrations.upgrade import upgrade  # noqa: PLC0415 - see there

    await asyncio.to_thread(upgrade, wanted)


def _newest() -> str:
    """The revision of the last migration: they are named r<revision>_<what>.py."""
    versions = Path(__file__).parent / "migrations" / "versions"
    return max(path.stem for path in versions.glob("r*.py"))[1:].partition("_")[0]


async def _version(url: URL) -> str:
    """The revision of a database; empty where there is none yet, or it cannot be read."""
    engine = make_engine(url)
    try:
        async with engine.connect() as connection:
            return str(await connection.scalar(text("SELECT version_num FROM alembic_version")) or "")
    except (SQLAlchemyError, asyncpg.PostgresError, OSError):
        return ""  # the migration finds out what is wrong, and says so
    finally:
        await engine.dispose()
