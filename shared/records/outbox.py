"""The outbox: persons' messages until xAgent has taken them, in order a channel (IM v2 §9)."""

from typing import Any, Literal

from sqlalchemy import delete, func, insert, select, update

from shared.records import tables as t
from shared.records.database import Database
from shared.records.model import Added, DeadLetter, OutboxRow
from shared.records.waiting import bury

_o = t.outbox.c


def _one(channel: str, message_id: str) -> Any:
    return (_o.channel == channel) & (_o.message_id == message_id)


class OutboxRecords:
    """See `shared.records.model.OutboxRow`."""

    def __init__(self, database: Database) -> None:
        self._db = database

    async def add(
        self, channel: str, card: str, message_id: str, payload: bytes, now: float, ttl: float, cap: int
    ) -> Added:
        """Takes a message, once a message_id, at most `cap` pending a channel."""
        async with self._db.begin() as connection:
            lock = select(t.channels.c.edge_id).where(t.channels.c.channel_id == channel).with_for_update()
            edge_id = (await connection.execute(lock)).scalar_one_or_none() or ""
            known = await connection.execute(select(_o.seq).where(_one(channel, message_id)))
            if known.first() is not None:
                return Added("duplicate", edge_id)
            pending = select(func.count()).where((_o.channel == channel) & (_o.state == "pending"))
            if (await connection.execute(pending)).scalar_one() >= cap:
                return Added("full", edge_id)
            await connection.execute(
                insert(t.outbox).values(
                    channel=channel,
                    card=card,
                    message_id=message_id,
                    payload=payload,
                    accepted_at=now,
                    expires_at=now + ttl,
                    state="pending",
                    attempts=0,
                    code="",
                )
            )
            return Added("added", edge_id)

    async def pending(self, channel: str, now: float, limit: int) -> list[OutboxRow]:
        """What is to be sent, in order."""
        due = (_o.channel == channel) & (_o.state == "pending") & (_o.expires_at > now)
        return await self._all(select(t.outbox).where(due).order_by(_o.seq).limit(limit))

    async def settle(
        self, channel: str, message_id: str, state: Literal["accepted", "rejected"], code: str = ""
    ) -> None:
        """Its end: the key stays for dedupe; a rejected one becomes a dead letter."""
        row = await self.get(channel, message_id)
        if row is None:
            return
        async with self._db.begin() as connection:
            done = update(t.outbox).where(_one(channel, message_id)).values(state=state, code=code, payload=b"")
            await connection.execute(done)
            if state == "rejected":
                await bury(connection, _letter(row, code or "rejected", "xAgent refused it", row.accepted_at))

    async def attempted(self, channel: str, message_id: str) -> None:
        """It was sent, and not taken."""
        async with self._db.begin() as connection:
            await connection.execute(update(t.outbox).where(_one(channel, message_id)).values(attempts=_o.attempts + 1))

    async def expire(self, now: float, limit: int) -> list[tuple[str, str]]:
        """Ends what is past its hour, each with its dead letter in the same transaction."""
        late = (_o.state == "pending") & (_o.expires_at <= now)
        rows = await self._all(select(t.outbox).where(late).order_by(_o.seq).limit(limit))
        async with self._db.begin() as connection:
            for row in rows:
                ended = update(t.outbox).where(_one(row.channel, row.message_id) & (_o.state == "pending"))
                await connection.execute(ended.values(state="expired", code="expired", payload=b""))
                await bury(connection, _letter(row, "expired", "xAgent did not take it in time", now))
        return [(row.channel, row.message_id) for row in rows]

    async def find(self, limit: int, channel: str = "") -> list[OutboxRow]:
        """What is pending, for an operator."""
        query = select(t.outbox).where(_o.state == "pending").order_by(_o.seq).limit(limit)
        return await self._all(query.where(_o.channel == channel) if channel else query)

    async def get(self, channel: str, message_id: str) -> OutboxRow | None:
        """One message."""
        found = await self._all(select(t.outbox).where(_one(channel, message_id)))
        return found[0] if found else None

    async def retry(self, channel: str, message_id: str) -> None:
        """By an operator: its count of attempts begins anew."""
        async with self._db.begin() as connection:
            await connection.execute(
                update(t.outbox).where(_one(channel, message_id) & (_o.state == "pending")).values(attempts=0)
            )

    async def drop(self, channel: str, message_id: str) -> None:
        """By an operator: ended, with a dead letter."""
        row = await self.get(channel, message_id)
        if row is None:
            return
        async with self._db.begin() as connection:
            ended = update(t.outbox).where(_one(channel, message_id))
            await connection.execute(ended.values(state="rejected", code="dropped", payload=b""))
            await bury(connection, _letter(row, "dropped", "by an operator", row.accepted_at))

    async def purge(self, before: float) -> None:
        """Forgets the keys of what ended long ago."""
        async with self._db.begin() as connection:
            await connection.execute(delete(t.outbox).where((_o.state != "pending") & (_o.accepted_at < before)))

    async def _all(self, query: Any) -> list[OutboxRow]:
        async with self._db.begin() as connection:
            rows = (await connection.execute(query)).mappings()
            return [OutboxRow(**{**dict(row), "payload": bytes(row["payload"])}) for row in rows]


def _letter(row: OutboxRow, code: str, detail: str, at: float) -> DeadLetter:
    return DeadLetter(
        id=f"in:{row.channel}:{row.message_id}",
        channel=row.channel,
        card=row.card,
        message_id=row.message_id,
        direction="in",
        code=code,
        detail=detail,
        body=row.payload,
        attempts=row.attempts,
        at=at,
    )
