"""Alembic's entry: one transaction, under a lock that lets one role migrate at a time."""

import asyncio

from alembic import context
from sqlalchemy import Connection, text

from shared.records.database import make_engine
from shared.records.tables import metadata

LOCK = 5_139_772_611


def _upgrade(connection: Connection) -> None:
    if connection.dialect.name == "postgresql":
        connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": LOCK})
    context.configure(connection=connection, target_metadata=metadata)
    context.run_migrations()


async def _run() -> None:
    engine = make_engine(context.config.attributes["url"])
    async with engine.begin() as connection:
        await connection.run_sync(_upgrade)
    await engine.dispose()


asyncio.run(_run())
