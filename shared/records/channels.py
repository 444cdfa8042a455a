"""Connectors and channels: who may open what, and which socket has it open."""

import secrets
from collections.abc import Sequence
from typing import Any

import msgspec
from sqlalchemy import delete, insert, select, update

from shared.records import tables as t
from shared.records.database import Database
from shared.records.errors import NotOwned
from shared.records.model import Channel, Opened


class ConnectorRecords:
    """connector_ids and when a socket of each was last alive."""

    def __init__(self, database: Database) -> None:
        self._db = database

    async def hello(self, card_id: str, connector_id: str, now: float) -> str:
        """Returns a known id of that Card, or a new one."""
        table = t.connectors
        async with self._db.begin() as connection:
            if connector_id:
                same = (table.c.connector_id == connector_id) & (table.c.card_id == card_id)
                touched = await connection.execute(update(table).where(same).values(seen_at=now))
                if touched.rowcount:
                    return connector_id
            fresh = "cn_" + secrets.token_urlsafe(16)
            await connection.execute(insert(table).values(connector_id=fresh, card_id=card_id, seen_at=now))
            return fresh

    async def touch(self, ids: Sequence[str], now: float) -> None:
        """Their sockets live."""
        if not ids:
            return
        async with self._db.begin() as connection:
            await connection.execute(
                update(t.connectors).where(t.connectors.c.connector_id.in_(list(ids))).values(seen_at=now)
            )

    async def stale(self, before: float, limit: int) -> list[tuple[str, str, list[str]]]:
        """Those without a live socket since `before`: (card_id, connector_id, channel_ids)."""
        table = t.connectors
        async with self._db.begin() as connection:
            rows = (
                await connection.execute(
                    select(table.c.card_id, table.c.connector_id).where(table.c.seen_at < before).limit(limit)
                )
            ).all()
            found = []
            for card_id, connector_id in rows:
                ids = await connection.scalars(
                    select(t.channels.c.channel_id).where(t.channels.c.connector_id == connector_id)
                )
                found.append((card_id, connector_id, list(ids)))
            return found

    async def remove(self, connector_id: str) -> None:
        """The id is unregistered."""
        async with self._db.begin() as connection:
            await connection.execute(delete(t.connectors).where(t.connectors.c.connector_id == connector_id))


class ChannelRecords:
    """See `shared.records.model.Channel`."""

    def __init__(self, database: Database) -> None:
        self._db = database

    async def open(
        self,
        card_id: str,
        connector_id: str,
        channel_id: str,
        edge_id: str,
        session_id: str,
        now: float,
        *,
        status: str,
    ) -> Opened:
        """Opens a known channel, or a fresh one where the id is empty or unknown.

        Raises:
            NotOwned: the channel belongs to another connector or Card.
        """
        table = t.channels
        async with self._db.begin() as connection:
            if channel_id:
                query = select(table).where(table.c.channel_id == channel_id).with_for_update()
                row = (await connection.execute(query)).mappings().first()
                if row is not None:
                    if (row["card_id"], row["connector_id"]) != (card_id, connector_id):
                        raise NotOwned(channel_id)
                    await connection.execute(
                        update(table)
                        .where(table.c.channel_id == channel_id)
                        .values(edge_id=edge_id, session_id=session_id)
                    )
                    before = (row["edge_id"], row["session_id"])
                    channel = msgspec.structs.replace(_channel(row), edge_id=edge_id, session_id=session_id)
                    return Opened(channel, before if before[1] not in ("", session_id) else None)
            channel = Channel(
                channel_id="cch_" + secrets.token_urlsafe(16),
                card_id=card_id,
                connector_id=connector_id,
                edge_id=edge_id,
                session_id=session_id,
                status=status,
                created_at=now,
            )
            await connection.execute(insert(table).values(**_values(channel)))
            return Opened(channel, None)

    async def close(self, channel_id: str, session_id: str) -> bool:
        """Drops the route, if that session has it."""
        return await self._unroute((t.channels.c.channel_id == channel_id) & (t.channels.c.session_id == session_id))

    async def close_session(self, edge_id: str, session_id: str) -> bool:
        """Drops every route of a socket."""
        return await self._unroute((t.channels.c.session_id == session_id) & (t.channels.c.edge_id == edge_id))

    async def get(self, channel_id: str) -> Channel | None:
        """A channel by id."""
        if not channel_id:
            return None
        async with self._db.begin() as connection:
            query = select(t.channels).where(t.channels.c.channel_id == channel_id)
            row = (await connection.execute(query)).mappings().first()
            return _channel(row) if row is not None else None

    async def bind(self, channel_id: str, status: str, target: dict[str, str], sealed: bytes, reason: str = "") -> None:
        """Stores what a sign-in yielded, or clears it."""
        await self._set(
            channel_id, status=status, target=msgspec.json.encode(target).decode(), sealed=sealed, reason=reason
        )

    async def set_status(self, channel_id: str, status: str, reason: str) -> None:
        """Changes the status, with its reason."""
        await self._set(channel_id, status=status, reason=reason)

    async def find(self, limit: int, card_id: str = "") -> Sequence[Channel]:
        """Channels for an operator, the newest first."""
        query = select(t.channels).order_by(t.channels.c.created_at.desc()).limit(limit)
        if card_id:
            query = query.where(t.channels.c.card_id == card_id)
        async with self._db.begin() as connection:
            return [_channel(row) for row in (await connection.execute(query)).mappings()]

    async def delete(self, channel_id: str) -> None:
        """The channel is gone, with all temporary state of it."""
        async with self._db.begin() as connection:
            await connection.execute(delete(t.channels).where(t.channels.c.channel_id == channel_id))
            for table in (t.ledger, t.parked, t.outbox, t.auth_sessions, t.transcript):
                await connection.execute(delete(table).where(table.c.channel == channel_id))

    async def _set(self, channel_id: str, **values: object) -> None:
        async with self._db.begin() as connection:
            await connection.execute(update(t.channels).where(t.channels.c.channel_id == channel_id).values(**values))

    async def _unroute(self, which: Any) -> bool:
        async with self._db.begin() as connection:
            done = await connection.execute(update(t.channels).where(which).values(edge_id="", session_id=""))
            return bool(done.rowcount)


def _values(channel: Channel) -> dict[str, object]:
    values = msgspec.structs.asdict(channel)
    return {**values, "target": msgspec.json.encode(channel.target).decode()}


def _channel(row: Any) -> Channel:
    target = msgspec.json.decode(row["target"] or "{}", type=dict[str, str])
    return Channel(**{**dict(row), "target": target, "sealed": bytes(row["sealed"])})
