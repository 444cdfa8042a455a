"""The records: what outlives every process, on SQLite or PostgreSQL; the only place that speaks SQL."""

import asyncio
import contextlib
import threading
from collections.abc import AsyncGenerator
from pathlib import Path

from alembic import command
from alembic.config import Config

from shared.records.database import Database, read_url
from shared.records.records import Records

__all__ = ["Records", "migrate", "open_records"]

_alembic = threading.Lock()  # it keeps what it is doing in globals of the process


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
    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent / "migrations"))
    config.attributes["url"] = read_url(url)
    await asyncio.to_thread(_upgrade, config)


def _upgrade(config: Config) -> None:
    with _alembic:
        command.upgrade(config, "head")
