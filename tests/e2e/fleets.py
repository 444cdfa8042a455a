"""The fixture of a fleet with records of its own."""

import contextlib
import secrets
from collections.abc import AsyncIterator
from pathlib import Path

import asyncpg

from tests.support.process import Fleet


@contextlib.asynccontextmanager
async def fleet_of(folder: Path, amqp: str, redis: str, postgres: str, **env: str) -> AsyncIterator[Fleet]:
    """A fleet without processes yet; they are stopped in the end."""
    name = "t" + secrets.token_hex(6)
    connection = await asyncpg.connect(postgres)
    await connection.execute(f"CREATE DATABASE {name}")
    await connection.close()
    fleet = Fleet(folder, amqp, redis, postgres.rsplit("/", 1)[0] + "/" + name, **env)
    try:
        yield fleet
    finally:
        await fleet.stop()
