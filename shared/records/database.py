"""The database behind the records: engine, transactions, and the translation of its errors."""

import contextlib
from collections.abc import AsyncGenerator

from sqlalchemy import event
from sqlalchemy.engine import make_url
from sqlalchemy.exc import ArgumentError, DBAPIError, InterfaceError, OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeout
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, create_async_engine

from shared.records.errors import RecordsUnavailable

_RETRYABLE_STATES = ("40001", "40P01", "53", "57P", "08")


def async_url(url: str) -> str:
    """The URL with its async driver.

    Raises:
        ValueError: neither SQLite nor PostgreSQL.
    """
    try:
        parsed = make_url(url)
    except ArgumentError as error:
        raise ValueError("SLUICE_RECORDS_URL: not a URL; sqlite:///path or postgresql://… is needed") from error
    backend = parsed.get_backend_name()
    driver = {"sqlite": "sqlite+aiosqlite", "postgresql": "postgresql+asyncpg"}.get(backend)
    if driver is None:
        raise ValueError(f"SLUICE_RECORDS_URL: {backend} is not supported; sqlite:///path or postgresql://… is needed")
    return parsed.set(drivername=driver).render_as_string(hide_password=False)


class Database:
    """Transactions on one engine.

    Attributes:
        is_sqlite: which of the two dialects is spoken.
    """

    def __init__(self, engine: AsyncEngine) -> None:
        self._engine = engine
        self.is_sqlite = engine.dialect.name == "sqlite"

    @contextlib.asynccontextmanager
    async def begin(self) -> AsyncGenerator[AsyncConnection]:
        """A transaction: committed when the block ends well.

        Raises:
            RecordsUnavailable: the database is away or busy.
        """
        try:
            async with self._engine.begin() as connection:
                yield connection
        except (OperationalError, InterfaceError, PoolTimeout, OSError) as error:
            raise RecordsUnavailable(type(error).__name__) from error
        except DBAPIError as error:
            state = str(getattr(error.orig, "sqlstate", "") or "")
            if error.connection_invalidated or state.startswith(_RETRYABLE_STATES):
                raise RecordsUnavailable(type(error).__name__) from error
            raise


def make_engine(url: str) -> AsyncEngine:
    """An engine with the settings that durability and order need."""
    target = async_url(url)
    if target.startswith("postgresql"):
        return create_async_engine(target, pool_size=8, max_overflow=8, pool_timeout=10, pool_pre_ping=False)
    engine = create_async_engine(target, connect_args={"timeout": 30})

    @event.listens_for(engine.sync_engine, "connect")
    def set_up(connection, record) -> None:  # type: ignore[no-untyped-def] # noqa: ANN001
        del record
        cursor = connection.cursor()
        for pragma in ("journal_mode=WAL", "synchronous=FULL", "busy_timeout=30000", "foreign_keys=ON"):
            cursor.execute(f"PRAGMA {pragma}")
        cursor.close()

    @event.listens_for(engine.sync_engine, "begin")
    def write_at_once(connection) -> None:  # type: ignore[no-untyped-def] # noqa: ANN001
        connection.exec_driver_sql("BEGIN IMMEDIATE")

    return engine
