"""The database behind the records: connections, transactions, and the translation of the drivers' errors."""

import asyncio
import contextlib
import sqlite3
from collections.abc import AsyncGenerator, Generator, Sequence
from typing import Any, Final, Self

import asyncpg
from sqlalchemy import event, text
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError, DBAPIError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, create_async_engine

from shared.records.errors import RecordsUnavailable

SQLITE_BUSY_SECONDS: Final = 30
POSTGRES_CONNECTIONS: Final = 12
HOT_CONNECTIONS: Final = 4
_BEGIN: Final = "sluice_begin"
_RETRYABLE_STATES: Final = ("08", "40", "53", "55P03", "57P", "25006")
_RETRYABLE_LITE: Final = frozenset(
    {
        sqlite3.SQLITE_BUSY,
        sqlite3.SQLITE_LOCKED,
        sqlite3.SQLITE_IOERR,
        sqlite3.SQLITE_FULL,
        sqlite3.SQLITE_CANTOPEN,
        sqlite3.SQLITE_READONLY,
    }
)


def read_url(url: str) -> URL:
    """Reads SLUICE_RECORDS_URL.

    Raises:
        ValueError: it is neither SQLite nor PostgreSQL; the message names the setting and shows no password.
    """
    wanted = "sqlite:///path or postgresql://user@host/database is needed"
    try:
        parsed = make_url(url)
        backend = parsed.get_backend_name()
    except (ArgumentError, ValueError):
        raise ValueError(f"SLUICE_RECORDS_URL: not a URL; {wanted}") from None
    if backend not in ("sqlite", "postgresql"):
        raise ValueError(f"SLUICE_RECORDS_URL: {backend} is not supported; {wanted}")
    if backend == "sqlite" and not parsed.database:
        raise ValueError(f"SLUICE_RECORDS_URL: a database in memory forgets; {wanted}")
    return parsed.set(drivername=backend)


class Database:
    """One database, spoken to in two ways: SQLAlchemy, and for batches of the hot path the driver itself.

    SQLite has one writer at a time; within the process they queue here in order, since its own busy wait is a poll.

    Args:
        url: as `read_url` returns it.
    """

    def __init__(self, url: URL) -> None:
        self.is_sqlite = url.get_backend_name() == "sqlite"
        self._engine = _sqlite(url) if self.is_sqlite else _postgres(url)
        self._writer = self._engine.execution_options(**{_BEGIN: "BEGIN IMMEDIATE"})
        level = {} if self.is_sqlite else {"isolation_level": "AUTOCOMMIT"}  # a read needs no BEGIN and COMMIT
        self._reader = self._engine.execution_options(**level)
        self._turn = asyncio.Lock() if self.is_sqlite else contextlib.nullcontext()
        self._hot = None if self.is_sqlite else _hot_pool(url)

    async def __aenter__(self) -> Self:
        """Opens; no connection is made before it is needed."""
        if self._hot is not None:
            await self._hot
        return self

    async def __aexit__(self, *_: object) -> None:
        """Closes every connection."""
        if self._hot is not None:
            await self._hot.close()
        await self._engine.dispose()

    @contextlib.asynccontextmanager
    async def writing(self) -> AsyncGenerator[AsyncConnection]:
        """A transaction, committed when the block ends well.

        Raises:
            RecordsUnavailable: the database is away or busy; nothing was written, or nobody knows.
        """
        with _translated():
            async with self._turn, self._writer.begin() as connection:
                yield connection

    @contextlib.asynccontextmanager
    async def reading(self) -> AsyncGenerator[AsyncConnection]:
        """A connection to look things up with.

        Raises:
            RecordsUnavailable: the database is away or busy.
        """
        with _translated():
            async with self._reader.connect() as connection:
                yield connection

    async def write_rows(self, statement: str, rows: str) -> Sequence[Any]:
        """Runs one statement that is a transaction by itself; its one parameter is a JSON array of rows."""
        if self._hot is None:
            async with self.writing() as connection:
                return _all(await connection.exec_driver_sql(statement, (rows,)))
        return await self._hot_rows(statement, rows)

    async def read_rows(self, statement: str, rows: str) -> Sequence[Any]:
        """As `write_rows`, for a statement that only reads."""
        if self._hot is None:
            async with self.reading() as connection:
                return _all(await connection.exec_driver_sql(statement, (rows,)))
        return await self._hot_rows(statement, rows)

    async def check(self) -> None:
        """Asks the database whether it is there.

        Raises:
            RecordsUnavailable: it is not.
        """
        async with self.reading() as connection:
            await connection.execute(text("SELECT 1"))

    async def _hot_rows(self, statement: str, rows: str) -> Sequence[Any]:
        with _translated():
            found: Sequence[Any] = await self._hot.fetch(statement, rows)  # type: ignore[union-attr]
            return found


def _all(result: Any) -> Sequence[Any]:
    rows: Sequence[Any] = result.all() if result.returns_rows else ()
    return rows


@contextlib.contextmanager
def _translated() -> Generator[None]:
    try:
        yield
    except (OSError, PoolTimeoutError, asyncpg.InterfaceError) as error:
        raise RecordsUnavailable(f"the database is away: {type(error).__name__}") from error
    except (DBAPIError, asyncpg.PostgresError) as error:
        if _is_retryable(error):
            raise RecordsUnavailable(f"the database is away or busy: {type(error).__name__}") from error
        raise


def _is_retryable(error: Exception) -> bool:
    source = error.orig if isinstance(error, DBAPIError) else error
    if isinstance(error, DBAPIError) and error.connection_invalidated:
        return True
    if isinstance(source, sqlite3.Error):
        return getattr(source, "sqlite_errorcode", 0) & 0xFF in _RETRYABLE_LITE
    return str(getattr(source, "sqlstate", "") or "").startswith(_RETRYABLE_STATES)


def make_engine(url: URL) -> AsyncEngine:
    """An engine for a migration, whose every transaction is one that writes."""
    engine = _sqlite(url) if url.get_backend_name() == "sqlite" else _postgres(url)
    return engine.execution_options(**{_BEGIN: "BEGIN IMMEDIATE"})


def _postgres(url: URL) -> AsyncEngine:
    async def connect() -> Any:  # the DSN is read by the driver, so that sslmode and the like mean what libpq means
        return await asyncpg.connect(_dsn(url), timeout=10)

    return create_async_engine(
        "postgresql+asyncpg://", async_creator=connect, pool_size=POSTGRES_CONNECTIONS, max_overflow=0, pool_timeout=10
    )


def _hot_pool(url: URL) -> Any:
    async def keep(connection: Any) -> None:  # a hot statement leaves nothing behind, so a reset would be for nothing
        del connection

    return asyncpg.create_pool(
        _dsn(url), min_size=0, max_size=HOT_CONNECTIONS, reset=keep, timeout=10, command_timeout=60
    )


def _dsn(url: URL) -> str:
    return url.render_as_string(hide_password=False)


def _sqlite(url: URL) -> AsyncEngine:
    engine = create_async_engine(
        url.set(drivername="sqlite+aiosqlite"),
        connect_args={"timeout": SQLITE_BUSY_SECONDS, "isolation_level": None},  # BEGIN is ours, below
    )

    @event.listens_for(engine.sync_engine, "connect")
    def set_up(connection: Any, record: object) -> None:
        del record
        cursor = connection.cursor()
        for pragma in ("journal_mode=WAL", "synchronous=FULL"):
            cursor.execute(f"PRAGMA {pragma}")
        cursor.close()

    @event.listens_for(engine.sync_engine, "begin")
    def begin(connection: Any) -> None:  # a writer takes its lock at once: SQLite cannot wait for it halfway
        connection.exec_driver_sql(connection.get_execution_options().get(_BEGIN, "BEGIN"))

    return engine
