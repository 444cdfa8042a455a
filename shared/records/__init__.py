"""The records: SQLAlchemy Core on SQLite or PostgreSQL; the only place that speaks SQL."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator
from pathlib import Path

from alembic import command
from alembic.config import Config

from shared.records.database import Database, async_url, make_engine
from shared.records.records import Records


@contextlib.asynccontextmanager
async def open_records(url: str) -> AsyncGenerator[Records]:
    """The records of a database that is up to date.

    Args:
        url: `sqlite:///path` or `postgresql://…`.

    Raises:
        ValueError: neither; it names SLUICE_RECORDS_URL.
    """
    engine = make_engine(url)
    try:
        yield Records(Database(engine))
    finally:
        await engine.dispose()


async def migrate(url: str) -> None:
    """Brings a database up to this version; roles that start together wait for one another."""
    async_url(url)
    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent / "migrations"))
    config.attributes["url"] = url
    await asyncio.to_thread(command.upgrade, config, "head")
