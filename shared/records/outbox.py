"""The outbox: persons' messages until xAgent has taken them, in order a channel (IM v2 §9)."""

from typing import Any, Final, Literal

from sqlalchemy import delete, func, select, text, update
from sqlalchemy.ext.asyncio import AsyncConnection

from shared.clock import SystemClock
from shared.records import tables as t
from shared.records.database import Database
from shared.records.dead import bury, revive
from shared.records.model import Added, DeadLetter, OutboxRow
from shared.records.sql import purge

_c = t.outbox.c
_ADD: Final = text(
    "INSERT INTO outbox (channel, card, message_id, payload, accepted_at, expires_at, state, attempts, code) "
    "VALUES (:channel, :card, :message_id, :payload, :now, :expires_at, 'pending', 0, '') "
    "ON CONFLICT (channel, message_id) DO NOTHING RETURNING seq"
)


class OutboxRecords:
    """See `shared.records.model.OutboxRow`."""

    def __init__(self, database: Database) -> None:
        self._db = database

    async def add(
        self, channel: str, card: str, message_id: str, payload: bytes, now: float, ttl: float, cap: int
    ) -> Added:
        """Takes a message: once a message_id, and at most `cap` pending a channel. Durable when it returns.

        Args:
            channel: whose outbox.
            card: its Card.
            message_id: the key.
            payload: the JSON of the chat.message payload.
            now: when it was accepted.
            ttl: seconds that it may wait; later tries do not extend them.
            cap: the most that may be pending on the channel.
        """
        async with self._db.writing() as connection:
            # The lock makes the order of seq the order of commits, so that no reader sees 2 before 1.
            route = select(t.channels.c.edge_id).where(t.channels.c.channel_id == channel).with_for_update()
            edge_id: str = (await connection.execute(route)).scalar() or ""
            if (await connection.execute(select(_c.seq).where(_one(channel, message_id)))).first():
                return Added("duplicate", edge_id)
            waiting = select(func.count()).where((_c.channel == channel) & (_c.state == "pending"))
            if (await connection.execute(waiting)).scalar_one() >= cap:
                return Added("full", edge_id)
            values = {"channel": channel, "card": card, "message_id": message_id, "payload": payload, "now": now}
            made = await connection.execute(_ADD, {**values, "expires_at": now + ttl})
            return Added("duplicate" if made.first() is None else "added", edge_id)

    async def pending(self, channel: str, now: float, limit: int) -> list[OutboxRow]:
        """What is to be sent, in order."""
        due = (_c.channel == channel) & (_c.state == "pending") & (_c.expires_at > now)
        return await self._all(select(t.outbox).where(due).order_by(_c.seq).limit(limit))

    async def channels_with_pending(self, limit: int) -> list[tuple[str, str]]:
        """Channels with something to send, the longest waiting first: (channel, edge that has it open or "")."""
        waits = select(_c.channel, func.min(_c.seq).label("first")).where(_c.state == "pending").group_by(_c.channel)
        lanes = waits.order_by(func.min(_c.seq)).limit(limit).subquery()
        channels = t.channels.c
        query = select(lanes.c.channel, func.coalesce(channels.edge_id, "")).outerjoin(
            t.channels, channels.channel_id == lanes.c.channel
        )
        async with self._db.reading() as connection:
            return [(row[0], row[1]) for row in await connection.execute(query.order_by(lanes.c.first))]

    async def settle(
        self, channel: str, message_id: str, state: Literal["accepted", "rejected"], code: str = ""
    ) -> None:
        """Ends a message: its body goes and its key stays for dedupe; a rejected one becomes a dead letter.

        An acceptance that comes after its hour still counts, and takes the dead letter back.
        """
        async with self._db.writing() as connection:
            row = await _locked(connection, channel, message_id)
            if row is None or row.state == "accepted" or (state == "rejected" and row.state != "pending"):
                return
            await _end(connection, row, state, code)
            if state == "rejected":
                await bury(connection, [_letter(row, code or "rejected", "xAgent refused it", row.accepted_at)])
            else:
                await connection.execute(delete(t.dead_letters).where(t.dead_letters.c.id == _letter_id(row)))

    async def attempted(self, channel: str, message_id: str) -> None:
        """Counts a try that was not answered, or not well."""
        async with self._db.writing() as connection:
            which = update(t.outbox).where(_one(channel, message_id))
            await connection.execute(which.values(attempts=_c.attempts + 1))

    async def expire(self, now: float, limit: int) -> list[tuple[str, str]]:
        """Ends what is past its hour, each with its dead letter in the same transaction: (channel, message_id)."""
        late = (_c.state == "pending") & (_c.expires_at <= now)
        query = select(t.outbox).where(late).order_by(_c.seq).limit(limit).with_for_update(skip_locked=True)
        async with self._db.writing() as connection:
            rows = [OutboxRow(**row) for row in (await connection.execute(query)).mappings()]
            for row in rows:
                await _end(connection, row, "expired", "expired")
            if rows:
                await bury(connection, [_letter(row, "expired", "xAgent did not take it in time", now) for row in rows])
        return [(row.channel, row.message_id) for row in rows]

    async def find(self, limit: int, channel: str = "") -> list[OutboxRow]:
        """What xAgent has not taken, for an operator, in order."""
        query = select(t.outbox).where(_c.state != "accepted").order_by(_c.seq).limit(limit)
        return await self._all(query.where(_c.channel == channel) if channel else query)

    async def get(self, channel: str, message_id: str) -> OutboxRow | None:
        """One message."""
        found = await self._all(select(t.outbox).where(_one(channel, message_id)))
        return found[0] if found else None

    async def retry(self, channel: str, message_id: str, now: float | None = None) -> bool:
        """By an operator: a rejected or expired message waits again, for a new hour; says whether it does."""
        async with self._db.writing() as connection:
            row = await _locked(connection, channel, message_id)
            if row is None or row.state == "pending":
                return row is not None
            filed = select(t.dead_letters).where(t.dead_letters.c.id == _letter_id(row)).with_for_update()
            letter = (await connection.execute(filed)).mappings().first()
            if letter is None:
                return False
            await revive(connection, DeadLetter(**letter), SystemClock().now() if now is None else now)
            await connection.execute(delete(t.dead_letters).where(t.dead_letters.c.id == _letter_id(row)))
            return True

    async def drop(self, channel: str, message_id: str) -> None:
        """By an operator: a pending message ends, with a dead letter."""
        async with self._db.writing() as connection:
            row = await _locked(connection, channel, message_id)
            if row is not None and row.state == "pending":
                await _end(connection, row, "rejected", "dropped")
                await bury(connection, [_letter(row, "dropped", "by an operator", row.accepted_at)])

    async def purge(self, before: float) -> int:
        """Forgets the keys of what ended and was accepted before then, in bounded steps; returns how many."""
        return await purge(self._db, t.outbox, (_c.accepted_at < before) & (_c.state != "pending"))

    async def _all(self, query: Any) -> list[OutboxRow]:
        async with self._db.reading() as connection:
            return [OutboxRow(**row) for row in (await connection.execute(query)).mappings()]


def _one(channel: str, message_id: str) -> Any:
    return (_c.channel == channel) & (_c.message_id == message_id)


async def _locked(connection: AsyncConnection, channel: str, message_id: str) -> OutboxRow | None:
    query = select(t.outbox).where(_one(channel, message_id)).with_for_update()
    row = (await connection.execute(query)).mappings().first()
    return None if row is None else OutboxRow(**row)


async def _end(connection: AsyncConnection, row: OutboxRow, state: str, code: str) -> None:
    ended = update(t.outbox).where(_c.seq == row.seq)
    await connection.execute(ended.values(state=state, code=code, payload=b""))


def _letter_id(row: OutboxRow) -> str:
    return f"in:{row.channel}:{row.message_id}"


def _letter(row: OutboxRow, code: str, detail: str, at: float) -> DeadLetter:
    return DeadLetter(
        id=_letter_id(row),
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
