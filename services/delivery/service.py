"""The delivery worker: takes its share of the partitions and feeds their lanes."""

import asyncio
import hashlib
import logging
from collections.abc import Awaitable, Callable

import msgspec

from services.delivery.activity import ActivityBoard
from services.delivery.channels import Channels
from services.delivery.lanes import Batch, Lanes, log_failure
from services.delivery.targets.port import Target
from services.delivery.work import AWAY, LaneWorker
from shared.bus.port import Bus, Done, Message, Outcome, QueueKind, Reject, Subscription
from shared.clock import Clock
from shared.config import Settings
from shared.records.errors import RecordsUnavailable
from shared.records.records import Records
from shared.telemetry.metrics import DeliveryMetrics
from shared.wire import notes
from shared.wire.codec import decode_trusted
from shared.wire.ids import delivery_queue, partition_of
from shared.wire.items import BadBatchError, Item, unpack
from shared.wire.packets import ChatActivity, Packet

log = logging.getLogger(__name__)

PREFETCH = 32
POLL_SECONDS = 0.5
SLOW_LANE_SECONDS = 3.0
MOST_LANES = 1000


class DeliveryService:
    """One worker of the delivery group; a `PartitionHandlers` of the partition owner.

    Args:
        settings: partitions and limits.
        bus: where the partitions are.
        records: parked work and the rest.
        targets: by connector_card_id.
        channels: their bindings.
        worker: what is done in the lanes.
        activity: what goes beside them.
        clock: time.
        metrics: what is counted.
    """

    def __init__(
        self,
        settings: Settings,
        bus: Bus,
        records: Records,
        targets: dict[str, Target],
        channels: Channels,
        worker: LaneWorker,
        activity: ActivityBoard,
        clock: Clock,
        metrics: DeliveryMetrics,
    ) -> None:
        self._settings = settings
        self._limits = settings.limits
        self._bus = bus
        self._records = records
        self._targets = targets
        self._channels = channels
        self._worker = worker
        self._activity = activity
        self._clock = clock
        self._metrics = metrics
        self._lanes = Lanes(worker, clock)
        self._subscriptions: dict[int, Subscription] = {}
        self._suspects: dict[int, asyncio.Lock] = {}
        self._lookups: set[asyncio.Task[None]] = set()
        self._loops: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        """Starts the loops; partitions come by `acquired`."""
        for partition in range(self._settings.partitions):
            await self._bus.declare(delivery_queue(partition), QueueKind.PARTITION)
        self._loops = [
            asyncio.create_task(self._every(POLL_SECONDS, self._poll), name="parked"),
            asyncio.create_task(self._every(1.0, self._watch_lanes), name="slow lanes"),
            asyncio.create_task(
                self._every(self._limits.stream_cleanup_seconds, self._end_stale_previews), name="stale previews"
            ),
        ]

    async def stop(self) -> None:
        """Ends the loops; the partitions have been released by then."""
        for loop in self._loops:
            loop.cancel()
        await self._activity.stop()

    async def acquired(self, partition: int, epoch: int) -> None:
        """Takes a partition: what is parked first, so that nothing overtakes it."""
        self._channels.forget_all()
        self._suspects[partition] = asyncio.Lock()
        for channel, _, _ in await self._records.parked.lanes([partition], 1_000_000):
            self._lanes.lane(channel, partition).parked = True
        self._subscriptions[partition] = await self._bus.subscribe(
            delivery_queue(partition),
            lambda message: self._take(message, partition),
            prefetch=PREFETCH,
            on_lost=None,
        )
        log.info("delivery partition acquired: partition=%d epoch=%d", partition, epoch)

    async def released(self, partition: int) -> None:
        """Hands a partition back in order: nothing new, then what is under way."""
        subscription = self._subscriptions.pop(partition, None)
        if subscription is not None:
            await subscription.stop()
        await self._lanes.drain(partition)

    async def lost(self, partition: int) -> None:
        """The partition is another's: stop at once; the ledger keeps both from sending."""
        log.warning("delivery partition lost: partition=%d", partition)
        subscription = self._subscriptions.pop(partition, None)
        if subscription is not None:
            await subscription.abandon()
        await self._lanes.abandon(partition)

    async def _take(self, message: Message, partition: int) -> Outcome:
        try:
            items = unpack(message.body)
        except BadBatchError as error:
            return Reject("bad_batch", str(error)[:200])
        lock = self._suspects[partition]
        if message.deliveries >= self._limits.poison_deliveries or lock.locked():
            async with lock:
                await self._take_one_by_one(items, partition, suspect=message.deliveries > 0)
            return Done()
        batch = Batch(len(items))
        try:
            for item in items:
                await self._submit(item, partition, batch)
            await batch.done.wait()
        except asyncio.CancelledError:
            await self._lanes.abandon(partition)
            raise
        return Done()

    async def _take_one_by_one(self, items: list[Item], partition: int, *, suspect: bool) -> None:
        """A message that has come back often may hold what kills workers: it alone pays (field report 34)."""
        for item in items:
            if suspect and await self._is_poison(item):
                continue
            batch = Batch(1)
            await self._submit(item, partition, batch)
            await batch.done.wait()

    async def _is_poison(self, item: Item) -> bool:
        key = f"{item.channel}:{hashlib.blake2b(item.raw, digest_size=12).hexdigest()}"
        (count,) = await self._records.attempts.bump([key], self._clock.now())
        if count <= self._limits.poison_attempts:
            return False
        await self._worker.give_up(item, "poison", f"workers died or failed {count - 1} times while they had it")
        return True

    async def _submit(self, item: Item, partition: int, batch: Batch) -> None:
        packet: Packet | None = None
        if item.kind == notes.PACKET:
            try:
                packet = decode_trusted(item.raw)
            except msgspec.MsgspecError as error:
                await self._worker.give_up(item, "bad_item", str(error)[:200])
                batch.settle()
                return
        if isinstance(packet, ChatActivity):  # never in the way of messages
            task = asyncio.create_task(self._show_activity(item, packet), name="activity lookup")
            self._lookups.add(task)
            task.add_done_callback(self._looked_up)
            batch.settle()
        else:
            self._lanes.submit(item, packet, partition, batch)

    def _looked_up(self, task: asyncio.Task[None]) -> None:
        self._lookups.discard(task)
        log_failure(task)

    async def _show_activity(self, item: Item, packet: ChatActivity) -> None:
        try:
            known = await self._channels.get(item.channel)
        except RecordsUnavailable:
            return
        if known is not None and known.is_connected:
            target = self._targets[item.card]
            self._activity.show(target, known.binding, packet.payload.status, packet.payload.tool_name)

    async def _poll(self) -> None:
        for channel, partition, due_at in await self._records.parked.lanes(list(self._subscriptions), MOST_LANES):
            if due_at <= self._clock.now():
                self._lanes.due(channel, partition)

    async def _watch_lanes(self) -> None:
        self._lanes.spill_slow(SLOW_LANE_SECONDS)
        self._metrics.parked.set(self._lanes.parked_count())

    async def _end_stale_previews(self) -> None:
        before = self._clock.now() - self._limits.stream_seconds
        for entry in await self._records.ledger.stale_previews(before, MOST_LANES):
            partition = partition_of(entry.channel, self._settings.partitions)
            if partition in self._subscriptions:
                body = msgspec.json.encode(notes.PreviewDue(entry.message_id))
                self._lanes.submit(Item(notes.INTERRUPTED, "", entry.channel, body), None, partition, None)

    async def _every(self, seconds: float, work: Callable[[], Awaitable[None]]) -> None:
        while True:
            await self._clock.sleep(seconds)
            try:
                await work()
            except AWAY as error:
                log.info("a periodic task waits for a dependency: %s", error)
