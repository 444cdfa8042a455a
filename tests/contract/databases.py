"""The records on both their databases, for the contract suites."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from shared.records import Records, migrate, open_records
from shared.records.model import DeadLetter, FileRow, LedgerUpdate, OutboxRow, Parked, Receipt
from tests.support.postgres import drop_database, make_database

KINDS = ("sqlite", "postgresql")
NOW = 1_790_000_000.0


@asynccontextmanager
async def database_of(request: pytest.FixtureRequest, folder: Path) -> AsyncGenerator[str]:
    """The URL of a database of the kind that the fixture is parametrised with; it is empty."""
    if request.param == "sqlite":
        yield f"sqlite:///{folder / 'records.db'}"
        return
    server = str(request.getfixturevalue("postgres_url"))
    url = await make_database(server)
    yield url
    await drop_database(server, url)


@asynccontextmanager
async def records_of(request: pytest.FixtureRequest, folder: Path) -> AsyncGenerator[Records]:
    """Records in a fresh database."""
    async with database_of(request, folder) as url:
        await migrate(url)
        async with open_records(url) as records:
            yield records


def parked(channel: str, item: bytes = b"item", *, partition: int = 0, due_at: float = NOW) -> Parked:
    """Parked work."""
    return Parked(
        channel=channel,
        partition=partition,
        card="im.test",
        item=item,
        due_at=due_at,
        attempts=1,
        first_at=NOW,
        reason="slow",
    )


def letter(letter_id: str, channel: str = "cch_1", **changes: object) -> DeadLetter:
    """A dead letter of a final."""
    values: dict[str, object] = {
        "id": letter_id,
        "channel": channel,
        "card": "im.test",
        "message_id": "m1",
        "direction": "out",
        "code": "refused",
        "detail": "no",
        "body": b'{"type":"chat.message"}',
        "attempts": 3,
        "at": NOW,
    }
    return DeadLetter(**{**values, **changes})  # type: ignore[arg-type]


def written(message_id: str, state: str = "open", **changes: object) -> LedgerUpdate:
    """An update of the ledger."""
    values: dict[str, object] = {
        "channel": "c",
        "message_id": message_id,
        "state": state,
        "receipts": (),
        "intent": -1,
        "preview": (),
        "shown": 0,
        "at": NOW,
    }
    return LedgerUpdate(**{**values, **changes})  # type: ignore[arg-type]


def receipts(*ids: str) -> tuple[Receipt, ...]:
    """Receipts of consecutive parts."""
    return tuple(Receipt(part, name, 5) for part, name in enumerate(ids))


def file_row(ref: str, expires_at: float, channel: str = "c") -> FileRow:
    """A file."""
    return FileRow(
        ref=ref,
        channel=channel,
        card="im.test",
        direction="out",
        filename="a.txt",
        mime_type="text/plain",
        file_type="file",
        byte_size=3_000_000_000,
        storage_key="k/" + ref,
        expires_at=expires_at,
    )


def names(rows: list[OutboxRow]) -> list[str]:
    """The message_ids of rows."""
    return [row.message_id for row in rows]
