"""Alembic's entry: one transaction, under a lock that lets one role at a time look and migrate."""

import asyncio

from alembic import context
from sqlalchemy import Connection, text

from shared.records.database import make_engine

LOCK = 5_139_772_611


def _upgrade(connection: Connection) -> None:
    if connection.dialect.name == "postgresql":  # SQLite's BEGIN IMMEDIATE is such a lock already
        connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": LOCK})
    context.configure(connection=connection)
    context.run_migrations()


async def _run() -> None:
    engine = make_engine(context.config.attributes["url"])
    try:
        async with engine.begin() as connection:
            await connection.run_sync(_upgrade)
    finally:
        await engine.dispose()


asyncio.run(_run())
