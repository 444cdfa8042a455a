"""Previews: the newest text of a running stream, shown by editing one message in place (IM v2 §6).

A preview runs in the lane of its channel, so it never overtakes a final, no two edits of a message are in flight,
and once the ledger has a final nothing edits it. A preview that cannot be shown is shed; the final says it all.
"""

import msgspec

from services.delivery.activity import ActivityBoard
from services.delivery.channels import Channels, Known
from services.delivery.desk import Desk
from services.delivery.lanes import Lane, Shown
from services.delivery.targets.port import Part, Target, TargetError, Throttled
from shared.clock import Clock
from shared.records.model import LedgerUpdate, Receipt
from shared.telemetry.metrics import DeliveryMetrics
from shared.telemetry.traces import Facts, SpanName, Traces
from shared.wire.codec import shown_text
from shared.wire.items import Item
from shared.wire.packets import MessagePayload

DEFAULT_PAUSE = 2.0
"""Seconds without previews after a platform said "slow down" and not for how long."""


class Previews:
    """Shows streams.

    Args:
        targets: by connector_card_id.
        channels: their bindings.
        desk: stream texts and the ledger.
        activity: cleared when text becomes visible.
        clock: time.
        metrics: what is counted.
        traces: spans of the edits.
    """

    def __init__(
        self,
        targets: dict[str, Target],
        channels: Channels,
        desk: Desk,
        activity: ActivityBoard,
        clock: Clock,
        metrics: DeliveryMetrics,
        traces: Traces,
    ) -> None:
        self._targets = targets
        self._channels = channels
        self._desk = desk
        self._activity = activity
        self._clock = clock
        self._metrics = metrics
        self._traces = traces

    async def show(self, lane: Lane, item: Item, message_id: str) -> None:
        """Brings the preview up to the newest text."""
        known = await self._channels.get(item.channel)
        if known is None or not known.is_connected or self._clock.monotonic() < lane.preview_after:
            self._metrics.shed(item.card)
            return
        target = self._targets[item.card]
        if not (await target.traits(known.binding)).edits:
            return
        newest = await self._desk.text(item.channel, message_id)
        shown = lane.shown.get(message_id)
        if newest is None or (shown is not None and newest[1] <= shown.sequence):
            return
        handle = shown.handle if shown is not None else None
        if shown is None and (entry := await self._desk.find(item.channel, message_id)) is not None:
            if entry.state != "preview":
                return
            handle = entry.preview[0] if entry.preview else None
        part = await self._first_part(target, known, message_id, shown_text(newest[0]))
        if part is None:
            return
        same = shown is not None and shown.digest == hash(part.text)  # a text beyond the first message grows unseen
        if handle is None or not same:
            span = self._traces.child(item.trace, SpanName.PREVIEW, Facts(card=item.card, message_id=message_id))
            handle = await self._put(lane, known, target, handle, message_id, part)
            span.end("shed" if handle is None else "shown")
        if handle is not None:
            lane.shown[message_id] = Shown(newest[1], handle, hash(part.text))

    async def interrupted(self, lane: Lane, message_id: str) -> None:
        """The stream died without its final: one last edit says so (contract.md, Delivery)."""
        lane.shown.pop(message_id, None)
        entry = await self._desk.find(lane.channel, message_id)
        if entry is None or entry.state != "preview" or entry.code:
            return
        known = await self._channels.get(entry.channel)
        if known is not None and known.is_connected:
            target = self._targets[known.channel.card_id]
            part = Part(entry.message_id, 0, f"{lane.channel}:{entry.message_id}.interrupted", "[interrupted]")
            for shown in entry.preview:
                try:
                    await target.edit(known.binding, shown, part)
                except TargetError as error:
                    self._metrics.failed(known.channel.card_id, type(error).__name__)
        await self._remember(entry.channel, entry.message_id, entry.preview, code="interrupted")

    async def _put(
        self, lane: Lane, known: Known, target: Target, handle: Receipt | None, message_id: str, part: Part
    ) -> Receipt | None:
        try:
            if handle is None:
                handle = await target.send(known.binding, part)
                await self._remember(lane.channel, message_id, (handle,))
            else:
                await target.edit(known.binding, handle, part)
        except Throttled as error:
            lane.preview_after = self._clock.monotonic() + (error.retry_after or DEFAULT_PAUSE)
            self._metrics.shed(known.channel.card_id)
            return None
        except TargetError as error:
            lane.preview_after = self._clock.monotonic() + DEFAULT_PAUSE
            self._metrics.failed(known.channel.card_id, type(error).__name__)
            return None
        self._activity.clear(lane.channel)
        self._metrics.previews.inc()
        return handle

    async def _first_part(self, target: Target, known: Known, message_id: str, text: str) -> Part | None:
        """A text that the platform would take in several messages is shown as far as the first goes."""
        if not text.strip():
            return None
        try:
            parts = await target.plan(known.binding, MessagePayload(message_id=message_id, text=text), ())
        except TargetError as error:
            self._metrics.failed(known.channel.card_id, type(error).__name__)
            return None
        key = f"{known.channel.channel_id}:{message_id}.preview"
        return msgspec.structs.replace(parts[0], key=key) if parts else None

    async def _remember(self, channel: str, message_id: str, handles: tuple[Receipt, ...], code: str = "") -> None:
        update = LedgerUpdate(channel, message_id, "preview", (), -1, handles, 0, code, "", "", self._clock.now())
        await self._desk.write(update)
