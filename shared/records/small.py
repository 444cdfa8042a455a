"""Files, sign-ins and console transcripts."""

from collections.abc import Sequence
from typing import Any

import msgspec
from sqlalchemy import delete, insert, select, text

from shared.records import tables as t
from shared.records.database import Database
from shared.records.model import AuthSession, FileRow, TranscriptRow


class FileRecords:
    """See `shared.records.model.FileRow`."""

    def __init__(self, database: Database) -> None:
        self._db = database

    async def add(self, row: FileRow) -> None:
        """A new ref."""
        async with self._db.begin() as connection:
            await connection.execute(insert(t.files).values(**msgspec.structs.asdict(row)))

    async def get(self, ref: str, now: float) -> FileRow | None:
        """What a ref means while it lives."""
        found = await self._all(select(t.files).where((t.files.c.ref == ref) & (t.files.c.expires_at > now)))
        return found[0] if found else None

    async def expired(self, now: float, limit: int) -> list[FileRow]:
        """Those whose bytes may go."""
        return await self._all(select(t.files).where(t.files.c.expires_at <= now).limit(limit))

    async def remove(self, refs: Sequence[str]) -> None:
        """Forgets them."""
        async with self._db.begin() as connection:
            await connection.execute(delete(t.files).where(t.files.c.ref.in_(list(refs))))

    async def _all(self, query: Any) -> list[FileRow]:
        async with self._db.begin() as connection:
            return [FileRow(**dict(row)) for row in (await connection.execute(query)).mappings()]


class AuthRecords:
    """See `shared.records.model.AuthSession`."""

    def __init__(self, database: Database) -> None:
        self._db = database

    async def save(self, session: AuthSession) -> None:
        """Keeps a sign-in."""
        async with self._db.begin() as connection:
            await connection.execute(insert(t.auth_sessions).values(**msgspec.structs.asdict(session)))

    async def get(self, session_id: str) -> AuthSession | None:
        """One sign-in."""
        async with self._db.begin() as connection:
            query = select(t.auth_sessions).where(t.auth_sessions.c.session_id == session_id)
            row = (await connection.execute(query)).mappings().first()
            return AuthSession(**dict(row)) if row is not None else None


class TranscriptRecords:
    """See `shared.records.model.TranscriptRow`."""

    def __init__(self, database: Database) -> None:
        self._db = database

    async def put(self, row: TranscriptRow) -> TranscriptRow:
        """Writes a line, or what it has become."""
        statement = text(
            "INSERT INTO transcript (channel, message_id, author, text, files, at, revision) "
            "VALUES (:channel, :message_id, :author, :text, :files, :at, 0) "
            "ON CONFLICT (channel, message_id) DO UPDATE SET text = excluded.text, files = excluded.files, "
            "revision = transcript.revision + 1 RETURNING seq, revision"
        )
        async with self._db.begin() as connection:
            seq, revision = (await connection.execute(statement, msgspec.structs.asdict(row))).one()
            return msgspec.structs.replace(row, seq=seq, revision=revision)

    async def find(self, channel: str, after_seq: int, limit: int) -> list[TranscriptRow]:
        """The lines in order."""
        table = t.transcript
        query = select(table).where((table.c.channel == channel) & (table.c.seq > after_seq))
        async with self._db.begin() as connection:
            rows = (await connection.execute(query.order_by(table.c.seq).limit(limit))).mappings()
            return [TranscriptRow(**{**dict(row), "files": bytes(row["files"])}) for row in rows]

    async def trim(self, channel: str, keep: int) -> None:
        """Forgets all but the newest."""
        table = t.transcript
        newest = select(table.c.seq).where(table.c.channel == channel).order_by(table.c.seq.desc()).limit(keep)
        async with self._db.begin() as connection:
            await connection.execute(
                delete(table).where((table.c.channel == channel) & table.c.seq.not_in(newest.scalar_subquery()))
            )
