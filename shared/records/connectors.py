"""Connectors: the ids that xAgent was given, and when a socket of each was last alive."""

import secrets
from collections.abc import Sequence

from sqlalchemy import delete, insert, select, update

from shared.records import tables as t
from shared.records.channels import forget
from shared.records.database import Database
from shared.records.sql import changed, steps

_c = t.connectors.c


class ConnectorRecords:
    """The leases of connector_ids, kept by the fleet and not by a process."""

    def __init__(self, database: Database) -> None:
        self._db = database

    async def hello(self, card_id: str, connector_id: str, now: float) -> str:
        """Returns the id where that Card knows it, else a fresh one; either way it has just been seen."""
        async with self._db.writing() as connection:
            same = (_c.connector_id == connector_id) & (_c.card_id == card_id)
            if await changed(connection, update(t.connectors).where(same).values(seen_at=now)):
                return connector_id
            fresh = "cn_" + secrets.token_urlsafe(16)
            await connection.execute(insert(t.connectors).values(connector_id=fresh, card_id=card_id, seen_at=now))
            return fresh

    async def touch(self, ids: Sequence[str], now: float) -> None:
        """Says that sockets of these are alive; never turns time back."""
        for some in steps(sorted(set(ids))):
            # Locked in order, for two edges may hold sockets of the same connectors.
            behind = select(_c.connector_id).where(_c.connector_id.in_(some) & (_c.seen_at < now))
            locked = behind.order_by(_c.connector_id).with_for_update()
            async with self._db.writing() as connection:
                await connection.execute(update(t.connectors).where(_c.connector_id.in_(locked)).values(seen_at=now))

    async def stale(self, before: float, limit: int) -> list[tuple[str, str, list[str]]]:
        """Those not seen since `before`, the longest first: (card_id, connector_id, channel_ids)."""
        query = select(_c.card_id, _c.connector_id).where(_c.seen_at < before).order_by(_c.seen_at).limit(limit)
        async with self._db.reading() as connection:
            rows = (await connection.execute(query)).all()
            owned: dict[str, list[str]] = {connector_id: [] for _, connector_id in rows}
            channels = t.channels.c
            for some in steps(list(owned)):
                mine = select(channels.connector_id, channels.channel_id).where(channels.connector_id.in_(some))
                for connector_id, channel_id in await connection.execute(mine.order_by(channels.channel_id)):
                    owned[connector_id].append(channel_id)
        return [(card_id, connector_id, owned[connector_id]) for card_id, connector_id in rows]

    async def remove(self, connector_id: str) -> None:
        """Unregisters the id, and removes its channels as `ChannelRecords.delete` does."""
        channels = t.channels.c
        async with self._db.writing() as connection:
            owned = select(channels.channel_id).where(channels.connector_id == connector_id)
            for channel_id in (await connection.scalars(owned.order_by(channels.channel_id))).all():
                await forget(connection, channel_id)
            await connection.execute(delete(t.connectors).where(_c.connector_id == connector_id))
