"""A person's message, from whatever platform: written to the outbox before the platform is told "received"."""

from typing import Literal, Protocol

import msgspec

from shared.clock import Clock
from shared.config import Limits
from shared.records.records import Records
from shared.text.policy import clean_text
from shared.wire.packets import File, MessagePayload

Accepted = Literal["added", "duplicate", "full"]


class Notifier(Protocol):
    """Tells the edge that has the channel open."""

    async def due(self, channel: str, edge_id: str) -> None:
        """The outbox of the channel has grown."""
        ...


class Intake:
    """Puts persons' messages into the outbox.

    Args:
        records: where the outbox is.
        notifier: who sends it.
        limits: lifetime and cap.
        clock: when it was accepted; retries never extend its hour.
    """

    def __init__(self, records: Records, notifier: Notifier, limits: Limits, clock: Clock) -> None:
        self._records = records
        self._notifier = notifier
        self._limits = limits
        self._clock = clock

    async def accept(
        self, channel: str, card: str, message_id: str, text: str, files: tuple[File, ...] = ()
    ) -> Accepted:
        """Takes responsibility for a message; deduped by message_id for as long as the key is kept.

        Raises:
            RecordsUnavailable: nothing was stored; the platform must send it again.
        """
        now = self._clock.now()
        payload = MessagePayload(message_id=message_id, text=clean_text(text), files=files, created_at=int(now * 1000))
        added = await self._records.outbox.add(
            channel,
            card,
            message_id,
            msgspec.json.encode(payload),
            now,
            self._limits.inbound_seconds,
            self._limits.inbound_per_channel,
        )
        if added.status == "added":
            await self._notifier.due(channel, added.edge_id)
        return added.status
