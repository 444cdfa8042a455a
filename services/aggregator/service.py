"""The aggregator's shell: a window of deltas is one call of the shared state, whatever it holds."""

import asyncio
import logging
from collections.abc import Iterable, Sequence

import msgspec

from services.aggregator.coalesce import Stream
from shared.batcher import Batcher
from shared.bus.outgoing import Outgoing
from shared.bus.port import Bus, Done, Message, Outcome, QueueKind, Reject, Subscription
from shared.clock import Clock
from shared.config import Settings
from shared.state.client import StateUnavailable
from shared.state.streams import Streams
from shared.telemetry.metrics import StreamMetrics
from shared.telemetry.traces import NO_SPAN, Facts, Span, SpanName, Traces
from shared.wire import notes, replies
from shared.wire.codec import decode_trusted, delta_bytes
from shared.wire.ids import delivery_queue, edge_queue, partition_of, stream_queue
from shared.wire.items import BadBatchError, Item, unpack
from shared.wire.packets import ChatDelta

log = logging.getLogger(__name__)

PREFETCH = 64
NOTE_SECONDS = 0.25
"""The shortest time between two previews of a stream; delivery and the platform's budget may take longer."""
MOST_HOT_BYTES = 128 * 1024 * 1024

Key = tuple[str, str]
Delta = tuple[Item, ChatDelta]
REASONS = {
    "sequence_gap": "a delta is missing before this one",
    "sequence_conflict": "another text had this sequence",
    "stream_too_large": "the stream is at its limit; the final carries the rest",
    "too_many_streams": "too many streams are open on the channel",
}


class AggregatorService:
    """One worker of the stream group; a `PartitionHandlers` of the partition owner.

    Args:
        settings: partitions and limits.
        bus: where the partitions are.
        outgoing: notes to delivery, errors to the edge.
        streams: the shared state.
        clock: time.
        metrics: what is counted.
        traces: spans of windows.
    """

    def __init__(
        self,
        settings: Settings,
        bus: Bus,
        outgoing: Outgoing,
        streams: Streams,
        clock: Clock,
        metrics: StreamMetrics,
        traces: Traces,
    ) -> None:
        self._settings = settings
        self._limits = settings.limits
        self._bus = bus
        self._outgoing = outgoing
        self._streams = streams
        self._clock = clock
        self._metrics = metrics
        self._traces = traces
        self._hot: dict[Key, Stream] = {}
        self._unshown: dict[Key, Item] = {}
        self._windows: dict[int, Batcher[list[Item], None]] = {}
        self._subscriptions: dict[int, Subscription] = {}
        self._loops: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        """Starts the loops; partitions come by `acquired`."""
        for partition in range(self._settings.partitions):
            await self._bus.declare(stream_queue(partition), QueueKind.PARTITION)
        self._loops = [asyncio.create_task(self._note()), asyncio.create_task(self._clean())]

    async def stop(self) -> None:
        """Ends the loops."""
        for loop in self._loops:
            loop.cancel()

    async def acquired(self, partition: int, epoch: int) -> None:
        """Takes a partition; its streams are loaded as they are needed."""
        self._forget(partition)
        self._windows[partition] = Batcher(self._take_window, max_items=PREFETCH)
        self._subscriptions[partition] = await self._bus.subscribe(
            stream_queue(partition),
            lambda message: self._take(message, partition),
            prefetch=PREFETCH,
            on_lost=None,
        )
        log.info("stream partition acquired: partition=%d epoch=%d", partition, epoch)

    async def released(self, partition: int) -> None:
        """Hands a partition back: what was taken is stored by then."""
        subscription = self._subscriptions.pop(partition, None)
        if subscription is not None:
            await subscription.stop()
        self._forget(partition)

    async def lost(self, partition: int) -> None:
        """The partition is another's; the state's own check keeps a late write of ours out."""
        subscription = self._subscriptions.pop(partition, None)
        if subscription is not None:
            await subscription.abandon()
        self._forget(partition)

    async def _take(self, message: Message, partition: int) -> Outcome:
        try:
            items = unpack(message.body)
        except BadBatchError as error:
            return Reject("bad_batch", str(error)[:200])
        window = self._windows[partition]
        while True:
            try:
                await window.add(items)
            except StateUnavailable as error:
                log.warning("waiting for the state: %s", error)
                await self._clock.sleep(self._limits.retry_first_seconds)
            else:
                return Done()

    async def _take_window(self, batches: list[list[Item]]) -> Sequence[None]:
        deltas = [
            (item, packet)
            for items in batches
            for item in items
            if isinstance(packet := decode_trusted(item.raw), ChatDelta)
        ]
        by_stream: dict[Key, list[Delta]] = {}
        for delta in deltas:
            by_stream.setdefault((delta[0].channel, delta[1].payload.message_id), []).append(delta)
        span = self._span(deltas)
        await self._load_missing(by_stream)
        refused = {key: self._apply(key, stream_deltas) for key, stream_deltas in by_stream.items()}
        refused |= await self._store(by_stream)
        span.end("stored")
        await self._refuse({key: refusals for key, refusals in refused.items() if refusals})
        self._note_now(by_stream)
        self._metrics.windows.inc()
        self._metrics.open.set(len(self._hot))
        return [None] * len(batches)

    def _span(self, deltas: list[Delta]) -> Span:
        """One span for the window, in the trace of its first traced delta, linked to all the others."""
        traced = [item.trace for item, _ in deltas if item.trace]
        if not traced:
            return NO_SPAN
        return self._traces.child(traced[0], SpanName.FLUSH, Facts(items=len(deltas)), traced[1:])

    async def _load_missing(self, by_stream: dict[Key, list[Delta]]) -> None:
        """A stream that begins in this window need not be looked up; one that goes on must be."""
        keys = [key for key, deltas in by_stream.items() if key not in self._hot and deltas[0][1].payload.sequence > 1]
        if not keys:
            return
        for key, stored in zip(keys, await self._streams.load(keys), strict=True):
            stream = self._hot[key] = Stream()
            stream.restore(stored)

    def _apply(self, key: Key, deltas: list[Delta]) -> list[tuple[Delta, str]]:
        stream = self._hot.get(key)
        if stream is None:
            stream = self._hot[key] = Stream()
        stream.touched = self._clock.monotonic()
        before = stream.sequence
        refusals: list[tuple[Delta, str]] = []
        for delta in deltas:
            payload = delta[1].payload
            verdict = stream.apply(payload.sequence, delta_bytes(payload), self._limits.stream_bytes)
            if verdict not in ("appended", "repeat"):
                refusals.append((delta, verdict))
        appended = stream.sequence - before
        self._metrics.deltas.inc(appended)
        self._metrics.repeats.inc(len(deltas) - appended - len(refusals))
        return refusals

    async def _store(self, by_stream: dict[Key, list[Delta]]) -> dict[Key, list[tuple[Delta, str]]]:
        """Writes what is new; returns, for streams that had to be read again, what is refused of them now."""
        changed: dict[Key, list[tuple[Delta, str]]] = {}
        dirty = [key for key in by_stream if self._hot[key].is_dirty]
        while dirty:
            statuses = await self._streams.append([self._hot[key].unsaved(*key) for key in dirty])
            behind: list[Key] = []
            for key, status in zip(dirty, statuses, strict=True):
                match status:
                    case "ok":
                        self._hot[key].stored = self._hot[key].sequence
                    case "behind":
                        behind.append(key)
                    case "closed":
                        del self._hot[key]
                        self._metrics.late.inc(len(by_stream[key]))
                        changed[key] = []
                    case _:
                        del self._hot[key]
                        changed[key] = [(delta, "too_many_streams") for delta in by_stream[key]]
            if behind:
                for key, stored in zip(behind, await self._streams.load(behind), strict=True):
                    self._hot[key].restore(stored)
                    changed[key] = self._apply(key, by_stream[key])
            dirty = [key for key in behind if self._hot[key].is_dirty]
        return changed

    async def _refuse(self, refused: dict[Key, list[tuple[Delta, str]]]) -> None:
        if not refused:
            return
        keys = list(refused)
        for key, closed in zip(keys, await self._streams.closed(keys), strict=True):
            stream = self._hot.get(key)
            if closed:
                self._hot.pop(key, None)
                self._metrics.late.inc(len(refused[key]))
                continue
            for (item, packet), code in refused[key]:
                self._metrics.refused(code)
                expected = stream.sequence + 1 if stream is not None else 1
                await self._answer(item, packet, code, expected)
            if stream is not None and stream.sequence == 0:
                del self._hot[key]

    async def _answer(self, item: Item, packet: ChatDelta, code: str, expected: int) -> None:
        payload = {"message_id": packet.payload.message_id, "expected_sequence": expected}
        raw = replies.error(code, REASONS[code], channel=item.channel, reply_to=packet.packet_id, payload=payload)
        queue = edge_queue(item.origin)
        while not self._outgoing.offer(queue, Item(notes.SEND, item.card, item.channel, raw)):
            await self._outgoing.drain(queue)

    def _note_now(self, by_stream: dict[Key, list[Delta]]) -> None:
        now = self._clock.monotonic()
        for key, deltas in by_stream.items():
            stream = self._hot.get(key)
            if stream is not None and stream.sequence > stream.noted:
                item = deltas[-1][0]
                if now - stream.noted_at < NOTE_SECONDS or not self._send_note(key, stream, item):
                    self._unshown[key] = item

    def _send_note(self, key: Key, stream: Stream, item: Item) -> bool:
        body = msgspec.json.encode(notes.PreviewDue(key[1]))
        queue = delivery_queue(partition_of(item.channel, self._settings.partitions))
        note = Item(notes.PREVIEW, item.card, item.channel, body, item.origin, item.at, item.trace)
        if not self._outgoing.offer(queue, note):
            return False
        stream.noted, stream.noted_at = stream.sequence, self._clock.monotonic()
        self._unshown.pop(key, None)
        return True

    async def _note(self) -> None:
        """Sends the notes whose pause is over."""
        while True:
            await self._clock.sleep(NOTE_SECONDS / 4)
            now = self._clock.monotonic()
            for key, item in list(self._unshown.items()):
                stream = self._hot.get(key)
                if stream is None:
                    del self._unshown[key]
                elif now - stream.noted_at >= NOTE_SECONDS:
                    self._send_note(key, stream, item)

    async def _clean(self) -> None:
        """Forgets streams that rest; the state still has them, for as long as they live there."""
        while True:
            await self._clock.sleep(self._limits.stream_cleanup_seconds)
            before = self._clock.monotonic() - self._limits.stream_cleanup_seconds
            self._drop(key for key, s in list(self._hot.items()) if s.touched < before and not s.is_dirty)
            held = sum(len(stream.text) for stream in self._hot.values())
            if held > MOST_HOT_BYTES:
                self._drop(key for key, s in list(self._hot.items()) if not s.is_dirty)
            self._metrics.open.set(len(self._hot))

    def _forget(self, partition: int) -> None:
        self._drop(key for key in list(self._hot) if partition_of(key[0], self._settings.partitions) == partition)

    def _drop(self, keys: Iterable[Key]) -> None:
        for key in keys:
            self._hot.pop(key, None)
            self._unshown.pop(key, None)
