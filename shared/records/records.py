"""The records as one thing: each subject by its name."""

from sqlalchemy import func, select

from shared.records import tables as t
from shared.records.attempts import AttemptRecords
from shared.records.auth import AuthRecords
from shared.records.channels import ChannelRecords
from shared.records.connectors import ConnectorRecords
from shared.records.database import Database
from shared.records.dead import DeadRecords
from shared.records.files import FileRecords
from shared.records.ledger import LedgerRecords
from shared.records.model import Backlog
from shared.records.outbox import OutboxRecords
from shared.records.parked import ParkedRecords
from shared.records.transcript import TranscriptRecords


class Records:
    """All that outlives a process. Every operation raises `RecordsUnavailable` where it may be tried again.

    Args:
        database: SQLite or PostgreSQL.
    """

    def __init__(self, database: Database) -> None:
        self._db = database
        self.connectors = ConnectorRecords(database)
        self.channels = ChannelRecords(database)
        self.ledger = LedgerRecords(database)
        self.parked = ParkedRecords(database)
        self.dead = DeadRecords(database)
        self.outbox = OutboxRecords(database)
        self.files = FileRecords(database)
        self.auth = AuthRecords(database)
        self.transcript = TranscriptRecords(database)
        self.attempts = AttemptRecords(database)

    async def backlog(self, now: float) -> Backlog:
        """What waits for someone, and for how long."""
        outbox = select(func.count(), func.min(t.outbox.c.accepted_at)).where(t.outbox.c.state == "pending")
        parked = select(func.count(), func.min(t.parked.c.first_at))
        async with self._db.reading() as connection:
            owed, oldest = (await connection.execute(outbox)).one()
            aside, first = (await connection.execute(parked)).one()
            dead = await connection.scalar(select(func.count()).select_from(t.dead_letters))
        return Backlog(owed, now - oldest if owed else 0.0, aside, now - first if aside else 0.0, int(dead or 0))

    async def check(self) -> None:
        """Asks the database whether it is there.

        Raises:
            RecordsUnavailable: it is not.
        """
        await self._db.check()
