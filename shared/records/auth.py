"""Sign-ins that were begun, and what became of them."""

from typing import Final

import msgspec
from sqlalchemy import select, text

from shared.records import tables as t
from shared.records.database import Database
from shared.records.model import AuthSession
from shared.records.sql import purge

_c = t.auth_sessions.c
_SAVE: Final = text(
    "INSERT INTO auth_sessions (session_id, channel, flow_id, status, message, expires_at) "
    "VALUES (:session_id, :channel, :flow_id, :status, :message, :expires_at) "
    "ON CONFLICT (session_id) DO UPDATE SET status = excluded.status, message = excluded.message, "
    "expires_at = excluded.expires_at"
)


class AuthRecords:
    """See `shared.records.model.AuthSession`."""

    def __init__(self, database: Database) -> None:
        self._db = database

    async def save(self, session: AuthSession) -> None:
        """Keeps a sign-in, or what it has become."""
        async with self._db.writing() as connection:
            await connection.execute(_SAVE, msgspec.structs.asdict(session))

    async def get(self, session_id: str) -> AuthSession | None:
        """One sign-in; the caller looks at its end."""
        async with self._db.reading() as connection:
            row = (
                (await connection.execute(select(t.auth_sessions).where(_c.session_id == session_id)))
                .mappings()
                .first()
            )
            return None if row is None else AuthSession(**row)

    async def purge(self, before: float) -> int:
        """Forgets those that ended before then, in bounded steps; returns how many."""
        return await purge(self._db, t.auth_sessions, _c.expires_at < before)
