"""Transcripts: what a console has shown, line by line."""

from typing import Final

import msgspec
from sqlalchemy import delete, select, text

from shared.records import tables as t
from shared.records.database import Database
from shared.records.model import TranscriptRow

_c = t.transcript.c
_PUT: Final = text(
    "INSERT INTO transcript (channel, message_id, author, text, files, at, revision) "
    "VALUES (:channel, :message_id, :author, :text, :files, :at, 0) "
    "ON CONFLICT (channel, message_id) DO UPDATE SET text = excluded.text, files = excluded.files, "
    "revision = transcript.revision + 1 RETURNING seq, at, revision"
)


class TranscriptRecords:
    """See `shared.records.model.TranscriptRow`."""

    def __init__(self, database: Database) -> None:
        self._db = database

    async def put(self, row: TranscriptRow) -> TranscriptRow:
        """Writes a line, or what it says now, at its old place; returns it with seq and revision."""
        async with self._db.writing() as connection:
            seq, at, revision = (await connection.execute(_PUT, msgspec.structs.asdict(row))).one()
            return msgspec.structs.replace(row, seq=seq, at=at, revision=revision)

    async def find(self, channel: str, after_seq: int, limit: int) -> list[TranscriptRow]:
        """The lines after one, in order."""
        query = select(t.transcript).where((_c.channel == channel) & (_c.seq > after_seq)).order_by(_c.seq)
        async with self._db.reading() as connection:
            return [TranscriptRow(**row) for row in (await connection.execute(query.limit(limit))).mappings()]

    async def trim(self, channel: str, keep: int) -> None:
        """Forgets all but the newest."""
        newest = select(_c.seq).where(_c.channel == channel).order_by(_c.seq.desc())
        last_out = newest.offset(keep).limit(1).scalar_subquery()
        async with self._db.writing() as connection:
            await connection.execute(delete(t.transcript).where((_c.channel == channel) & (_c.seq <= last_out)))
