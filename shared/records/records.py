"""The records as one thing: each subject by its name."""

from sqlalchemy import text

from shared.records.channels import ChannelRecords, ConnectorRecords
from shared.records.database import Database
from shared.records.ledger import LedgerRecords
from shared.records.outbox import OutboxRecords
from shared.records.small import AuthRecords, FileRecords, TranscriptRecords
from shared.records.waiting import AttemptRecords, DeadRecords, ParkedRecords


class Records:
    """All that outlives a process.

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
        self.attempts = AttemptRecords(database)
        self.outbox = OutboxRecords(database)
        self.files = FileRecords(database)
        self.auth = AuthRecords(database)
        self.transcript = TranscriptRecords(database)

    async def check(self) -> None:
        """Raises `RecordsUnavailable` when the database is away."""
        async with self._db.begin() as connection:
            await connection.execute(text("SELECT 1"))
