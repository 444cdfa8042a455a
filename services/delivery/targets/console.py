"""`im.console`: the person is on a terminal or a WebSocket of ours; the platform is the transcript in the records."""

from collections.abc import Sequence
from typing import Any

import msgspec

from services.delivery.targets.port import Binding, OutFile, Part, SignedIn, Traits
from shared.bus.outgoing import Outgoing
from shared.cards.card import Card
from shared.clock import Clock
from shared.records.model import Receipt, TranscriptRow
from shared.records.records import Records
from shared.state.leases import Leases
from shared.wire import notes
from shared.wire.ids import edge_queue
from shared.wire.items import Item
from shared.wire.packets import MessagePayload


class ConsoleTarget:
    """Puts messages into the transcript and tells the edges with viewers.

    A transcript row is keyed by message_id, so a repeat or an edit is the same write: the platform is keyed.

    Args:
        card: the Connector Card.
        records: the transcript.
        leases: which edges have viewers of a channel.
        outgoing: the way to those edges.
        clock: time.
    """

    def __init__(self, card: Card, records: Records, leases: Leases, outgoing: Outgoing, clock: Clock) -> None:
        self.card = card
        self._records = records
        self._leases = leases
        self._outgoing = outgoing
        self._clock = clock

    async def traits(self, binding: Binding) -> Traits:
        """Edits in place."""
        del binding
        return Traits(keyed=True, edits=True)

    async def plan(self, binding: Binding, message: MessagePayload, files: tuple[OutFile, ...]) -> tuple[Part, ...]:
        """One row, however long."""
        return (Part(message.message_id, 0, f"{binding.channel}:{message.message_id}", message.text, files),)

    async def send(self, binding: Binding, part: Part) -> Receipt:
        """A preview is only shown; a complete message is written first."""
        receipt = Receipt(0, part.message_id, len(part.text))
        if part.key.endswith(".preview"):
            event = notes.TranscriptEvent("preview", part.message_id, part.text)
            await self._tell(binding, event)
            return receipt
        files = tuple({"filename": f.row.filename, "mime_type": f.row.mime_type, "url": f.url} for f in part.files)
        row = await self._records.transcript.put(
            TranscriptRow(
                channel=binding.channel,
                seq=0,
                message_id=part.message_id,
                author="agent",
                text=part.text,
                files=msgspec.json.encode(files),
                at=self._clock.now(),
                revision=0,
            )
        )
        await self._tell(binding, notes.TranscriptEvent("message", part.message_id, part.text, files, seq=row.seq))
        return receipt

    async def edit(self, binding: Binding, shown: Receipt, part: Part) -> Receipt:
        """The same row again."""
        del shown
        return await self.send(binding, part)

    async def remove(self, binding: Binding, shown: Receipt) -> None:
        """A preview was never written, so it only has to vanish."""
        await self._tell(binding, notes.TranscriptEvent("removed", shown.id))

    async def activity(self, binding: Binding, status: str, tool_name: str) -> None:
        """Shown as it is."""
        await self._tell(binding, notes.TranscriptEvent("activity", status=status, tool_name=tool_name))

    async def sign_in(self, channel: str, flow_id: str, values: dict[str, Any]) -> SignedIn:
        """A console needs none."""
        del channel, flow_id, values
        return SignedIn({})

    async def sign_out(self, binding: Binding) -> None:
        """Nothing to forget."""

    async def _tell(self, binding: Binding, event: notes.TranscriptEvent) -> None:
        body = msgspec.json.encode(event)
        for edge_id in await self._viewers(binding.channel):
            self._outgoing.offer(edge_queue(edge_id), Item(notes.TRANSCRIPT, binding.card, binding.channel, body))

    async def _viewers(self, channel: str) -> Sequence[str]:
        return await self._leases.members(f"viewers:{channel}")
