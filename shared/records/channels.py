"""Channels: who owns each, which socket has it open, and what it is bound to."""

import secrets
from collections.abc import Sequence
from typing import Any

import msgspec
from sqlalchemy import delete, insert, select, text, update
from sqlalchemy.ext.asyncio import AsyncConnection

from shared.records import tables as t
from shared.records.database import Database
from shared.records.errors import NotOwned
from shared.records.model import Channel, Opened
from shared.records.sql import changed
from shared.text.policy import clean_text

_c = t.channels.c

# Nothing is dropped without a record: what a channel still owed when it went is filed.
_FILE_OUTBOX = text(
    "INSERT INTO dead_letters (id, channel, card, message_id, direction, code, detail, body, attempts, at) "
    "SELECT 'in:' || channel || ':' || message_id, channel, card, message_id, 'in', 'channel_removed', "
    "'the channel was removed', payload, attempts, accepted_at FROM outbox "
    "WHERE channel = :channel AND state = 'pending' ON CONFLICT (id) DO NOTHING"
)
_FILE_PARKED = text(
    "INSERT INTO dead_letters (id, channel, card, message_id, direction, code, detail, body, attempts, at) "
    "SELECT 'parked:' || id, channel, card, '', 'bus', 'channel_removed', reason, item, attempts, first_at "
    "FROM parked WHERE channel = :channel ON CONFLICT (id) DO NOTHING"
)


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
        status: str = "created",
    ) -> Opened:
        """Opens a known channel, or makes a fresh one where the id is empty or unknown.

        Args:
            card_id: the Card it is opened on.
            connector_id: who opens it.
            channel_id: which; may be empty.
            edge_id: where the socket is.
            session_id: the socket.
            now: the time of birth of a fresh one.
            status: the status of a fresh one.

        Raises:
            NotOwned: the channel belongs to another connector or Card.
        """
        async with self._db.writing() as connection:
            row = await _locked(connection, channel_id)
            if row is not None:
                return await _reopened(connection, row, (card_id, connector_id), (edge_id, session_id))
            fresh = Channel(
                channel_id="cch_" + secrets.token_urlsafe(16),
                card_id=card_id,
                connector_id=connector_id,
                edge_id=edge_id,
                session_id=session_id,
                status=status,
                created_at=now,
            )
            await connection.execute(insert(t.channels).values(**_values(fresh)))
            return Opened(fresh, None)

    async def close(self, channel_id: str, session_id: str) -> bool:
        """Drops the route, if that session has it; says whether it had."""
        return await self._unroute((_c.channel_id == channel_id) & (_c.session_id == session_id)) > 0

    async def close_session(self, edge_id: str, session_id: str) -> int:
        """Drops every route of a socket; returns how many."""
        return await self._unroute((_c.session_id == session_id) & (_c.edge_id == edge_id))

    async def close_edge(self, edge_id: str) -> int:
        """Drops every route of an edge; returns how many."""
        return await self._unroute(_c.edge_id == edge_id)

    async def get(self, channel_id: str) -> Channel | None:
        """A channel by its id."""
        async with self._db.reading() as connection:
            row = (await connection.execute(select(t.channels).where(_c.channel_id == channel_id))).mappings().first()
            return None if row is None else _channel(row)

    async def bind(self, channel_id: str, status: str, target: dict[str, str], sealed: bytes, reason: str = "") -> None:
        """Stores what a sign-in yielded, or clears it."""
        await self._set(channel_id, status=status, target=_json(target), sealed=sealed, reason=clean_text(reason))

    async def set_status(self, channel_id: str, status: str, reason: str = "") -> None:
        """Changes the status, with its reason."""
        await self._set(channel_id, status=status, reason=clean_text(reason))

    async def find(self, limit: int, card_id: str = "") -> Sequence[Channel]:
        """Channels for an operator, the newest first."""
        query = select(t.channels).order_by(_c.created_at.desc(), _c.channel_id).limit(limit)
        if card_id:
            query = query.where(_c.card_id == card_id)
        async with self._db.reading() as connection:
            return [_channel(row) for row in (await connection.execute(query)).mappings()]

    async def delete(self, channel_id: str) -> None:
        """Removes the channel and its temporary state; what it still owed becomes dead letters."""
        async with self._db.writing() as connection:
            await forget(connection, channel_id)

    async def _set(self, channel_id: str, **values: object) -> None:
        async with self._db.writing() as connection:
            await connection.execute(update(t.channels).where(_c.channel_id == channel_id).values(**values))

    async def _unroute(self, which: Any) -> int:
        async with self._db.writing() as connection:
            return await changed(connection, update(t.channels).where(which).values(edge_id="", session_id=""))


async def forget(connection: AsyncConnection, channel_id: str) -> None:
    """Removes a channel within a transaction; the bytes of its files are left to the sweep of expired ones."""
    await _locked(connection, channel_id)
    await connection.execute(_FILE_OUTBOX, {"channel": channel_id})
    await connection.execute(_FILE_PARKED, {"channel": channel_id})
    for table in (t.ledger, t.parked, t.outbox, t.auth_sessions, t.transcript):
        await connection.execute(delete(table).where(table.c.channel == channel_id))
    await connection.execute(update(t.files).where(t.files.c.channel == channel_id).values(expires_at=0.0))
    await connection.execute(delete(t.channels).where(_c.channel_id == channel_id))


async def _locked(connection: AsyncConnection, channel_id: str) -> Any:
    query = select(t.channels).where(_c.channel_id == channel_id).with_for_update()
    return (await connection.execute(query)).mappings().first()


async def _reopened(connection: AsyncConnection, row: Any, owner: tuple[str, str], route: tuple[str, str]) -> Opened:
    if (row["card_id"], row["connector_id"]) != owner:
        raise NotOwned(row["channel_id"])
    edge_id, session_id = route
    moved = update(t.channels).where(_c.channel_id == row["channel_id"])
    await connection.execute(moved.values(edge_id=edge_id, session_id=session_id))
    before = (row["edge_id"], row["session_id"])
    channel = msgspec.structs.replace(_channel(row), edge_id=edge_id, session_id=session_id)
    return Opened(channel, before if all(before) and before != route else None)


def _json(target: dict[str, str]) -> str:
    return msgspec.json.encode({key: clean_text(value) for key, value in target.items()}).decode()


def _values(channel: Channel) -> dict[str, object]:
    return {**msgspec.structs.asdict(channel), "target": _json(channel.target)}


def _channel(row: Any) -> Channel:
    target = msgspec.json.decode(row["target"], type=dict[str, str])
    return Channel(**{**row, "target": target})
