"""The delivery worker: takes its share of the partitions, runs their lanes, parks and resumes."""

import asyncio
import hashlib
import logging
from collections.abc import Awaitable, Callable

import msgspec

from services.delivery.activity import ActivityBoard
from services.delivery.answers import Answers
from services.delivery.channels import Channels
from services.delivery.control import Control
from services.delivery.desk import Desk
from services.delivery.finals import Attempt, Finals
from services.delivery.lanes import Batch, Job, Lane, Lanes
from services.delivery.previews import Previews
from services.delivery.retry import Wait
from services.delivery.targets.port import Target
from services.delivery.tools import Tools
from shared.bus.port import Bus, Done, Message, Outcome, QueueKind, Reject, Subscription
from shared.clock import Clock
from shared.config import Settings
from shared.records.errors import RecordsUnavailable
from shared.records.model import DeadLetter, Parked
from shared.records.records import Records
from shared.state.client import StateUnavailable
from shared.telemetry.metrics import DeliveryMetrics
from shared.wire import notes, replies
from shared.wire.codec import WireError, decode_trusted
from shared.wire.ids import delivery_queue, partition_of
from shared.wire.items import BadBatchError, Item, pack, unpack
from shared.wire.packets import (
    AuthCancel,
    AuthLogout,
    AuthStart,
    AuthStatus,
    ChatActivity,
    ChatMessage,
    Packet,
    ToolInvoke,
)

log = logging.getLogger(__name__)

PREFETCH = 32
POLL_SECONDS = 0.5
SLOW_LANE_SECONDS = 3.0
MOST_LANES = 1000
AWAY = (RecordsUnavailable, StateUnavailable)


class DeliveryService:
    """One worker of the delivery group; a `PartitionHandlers` of the partition owner.

    Args:
        settings: partitions and limits.
        bus: where the partitions are.
        records: parked work and the rest.
        targets: by connector_card_id.
        channels, desk, answers, finals, previews, activity, control, tools: the parts it directs.
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
        desk: Desk,
        answers: Answers,
        finals: Finals,
        previews: Previews,
        activity: ActivityBoard,
        control: Control,
        tools: Tools,
        clock: Clock,
        metrics: DeliveryMetrics,
    ) -> None:
        self._settings = settings
        self._limits = settings.limits
        self._bus = bus
        self._records = records
        self._targets = targets
        self._channels = channels
        self._desk = desk
        self._answers = answers
        self._finals = finals
        self._previews = previews
        self._activity = activity
        self._control = control
        self._tools = tools
        self._clock = clock
        self._metrics = metrics
        self._lanes = Lanes(self._work, self._resume, clock)
        self._subscriptions: dict[int, Subscription] = {}
        self._suspects: dict[int, asyncio.Lock] = {}
        self._loops: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        """Starts the loops; partitions come by `acquired`."""
        for partition in range(self._settings.partitions):
            await self._bus.declare(delivery_queue(partition), QueueKind.PARTITION)
        self._loops = [
            asyncio.create_task(self._every(POLL_SECONDS, self._poll), name="parked"),
            asyncio.create_task(self._every(1.0, self._spill_slow_lanes), name="slow lanes"),
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
                self._submit(item, partition, batch)
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
            self._submit(item, partition, batch)
            await batch.done.wait()

    async def _is_poison(self, item: Item) -> bool:
        key = f"{item.channel}:{hashlib.blake2b(item.raw, digest_size=12).hexdigest()}"
        (count,) = await self._records.attempts.bump([key], self._clock.now())
        if count <= self._limits.poison_attempts:
            return False
        await self._give_up(item, "poison", f"workers died or failed {count - 1} times while they had it")
        return True

    def _submit(self, item: Item, partition: int, batch: Batch) -> None:
        if item.kind == notes.PACKET and b'"chat.activity"' in item.raw:  # never in the way of messages
            self._show_activity(item)
            batch.settle()
        else:
            self._lanes.submit(item, partition, batch)

    def _show_activity(self, item: Item) -> None:
        task = asyncio.create_task(self._activity_of(item), name="activity lookup")
        task.add_done_callback(_log_failure)

    async def _activity_of(self, item: Item) -> None:
        try:
            packet = decode_trusted(item.raw)
            known = await self._channels.get(item.channel)
        except (*AWAY, WireError, msgspec.MsgspecError):
            return
        if isinstance(packet, ChatActivity) and known is not None and known.is_connected:
            target = self._targets[item.card]
            self._activity.show(target, known.binding, packet.payload.status, packet.payload.tool_name)

    async def _work(self, lane: Lane, job: Job) -> None:
        """Does one job to its end, or parks it; a dependency that is away is waited for, a bug is buried."""
        failures = 0
        while True:
            try:
                await self._do(lane, job.item)
            except AWAY as error:
                log.warning("waiting for a dependency: %s", error)
                await self._clock.sleep(self._limits.retry_first_seconds)
            except Exception as error:
                failures += 1
                log.exception("a job failed: channel=%s", lane.channel)
                if failures >= self._limits.poison_attempts:
                    await self._give_up(job.item, "handler_failed", f"{type(error).__name__}")
                    return
                await self._clock.sleep(self._limits.retry_first_seconds * 2**failures)
            else:
                return

    async def _do(self, lane: Lane, item: Item) -> None:
        if item.kind == notes.PREVIEW:
            if not lane.parked:
                note = msgspec.json.decode(item.raw, type=notes.PreviewDue)
                await self._previews.show(lane, item, note.message_id)
            return
        if item.kind == notes.INTERRUPTED:
            note = msgspec.json.decode(item.raw, type=notes.PreviewDue)
            await self._previews.interrupted(lane, note.message_id)
            return
        if item.kind == notes.UNREGISTER:
            await self._control.unregister(item)
            return
        await self._do_packet(lane, item, decode_trusted(item.raw))

    async def _do_packet(self, lane: Lane, item: Item, packet: Packet) -> None:
        match packet:
            case ChatMessage() if lane.parked:
                await self._park(lane, item, Wait(0.0, "behind parked work"), tries=0)
            case ChatMessage():
                attempt = Attempt(item, packet)
                wait = await self._deliver(lane, attempt)
                if wait is not None:
                    await self._park(lane, item, wait, tries=attempt.tries)
            case AuthStart() | AuthStatus() | AuthCancel() | AuthLogout():
                await self._control.handle(item, packet)
            case ToolInvoke():
                await self._tools.invoke(item, packet)
            case _:
                log.warning("no work for delivery: type=%s", packet.__struct_config__.tag)

    async def _deliver(self, lane: Lane, attempt: Attempt) -> Wait | None:
        self._activity.clear(lane.channel)
        wait = await self._finals.deliver(attempt)
        if wait is None:
            lane.shown.pop(attempt.message_id, None)
            try:
                await self._desk.close_stream(lane.channel, attempt.message_id)
            except StateUnavailable:
                log.info("a stream ends by its lifetime: the state is away")
        return wait

    async def _park(self, lane: Lane, item: Item, wait: Wait, *, tries: int) -> None:
        now = self._clock.now()
        row = Parked(
            channel=lane.channel,
            partition=lane.partition,
            card=item.card,
            item=pack([item]),
            due_at=now + wait.seconds,
            attempts=tries,
            first_at=item.at or now,
            reason=wait.reason,
            kind="lane",
        )
        await self._desk.park(row)
        lane.parked = True
        self._metrics.parked.set(self._lanes.parked_count())

    async def _resume(self, lane: Lane) -> None:
        """Works off what is parked of a lane, in order, as far as it goes."""
        while rows := await self._parked_head(lane):
            for row in rows:
                if row.due_at > self._clock.now():
                    return
                wait, tries = await self._retry(lane, row)
                if wait is not None:
                    due = self._clock.now() + wait.seconds
                    await self._records.parked.reschedule(row.id, due, tries, wait.reason)
                    return
                await self._records.parked.remove([row.id])
        lane.parked = False
        self._metrics.parked.set(self._lanes.parked_count())

    async def _parked_head(self, lane: Lane) -> list[Parked]:
        while True:
            try:
                return await self._records.parked.head(lane.channel, 16)
            except AWAY:
                await self._clock.sleep(self._limits.retry_first_seconds)

    async def _retry(self, lane: Lane, row: Parked) -> tuple[Wait | None, int]:
        (item,) = unpack(row.item)
        packet = decode_trusted(item.raw)
        if not isinstance(packet, ChatMessage):
            return None, row.attempts
        by_hand = row.kind == "retry"
        attempt = Attempt(item, packet, tries=row.attempts, answered=not by_hand, forced=by_hand)
        while True:
            try:
                return await self._deliver(lane, attempt), attempt.tries
            except AWAY:
                await self._clock.sleep(self._limits.retry_first_seconds)

    async def _poll(self) -> None:
        for channel, partition, due_at in await self._records.parked.lanes(list(self._subscriptions), MOST_LANES):
            if due_at <= self._clock.now():
                self._lanes.due(channel, partition)

    async def _spill_slow_lanes(self) -> None:
        """A lane that crawls parks what waits in it, so that it holds no bus message back (field report 35)."""
        for lane in self._lanes.slow(SLOW_LANE_SECONDS):
            finals = [job for job in lane.jobs if job.item.kind == notes.PACKET and b'"chat.message"' in job.item.raw]
            if len(finals) != len(lane.jobs):
                continue
            lane.jobs.clear()
            was_parked, lane.parked = lane.parked, True
            for job in finals:
                await self._park(lane, job.item, Wait(0.0, "slow lane"), tries=0)
                if job.batch is not None:
                    job.batch.settle()
            if not was_parked:
                lane.resume = True

    async def _end_stale_previews(self) -> None:
        before = self._clock.now() - self._limits.stream_seconds
        for entry in await self._records.ledger.stale_previews(before, MOST_LANES):
            partition = partition_of(entry.channel, self._settings.partitions)
            if partition in self._subscriptions:
                body = msgspec.json.encode(notes.PreviewDue(entry.message_id))
                self._lanes.submit(Item(notes.INTERRUPTED, "", entry.channel, body), partition, None)

    async def _give_up(self, item: Item, code: str, detail: str) -> None:
        """Files an item that cannot be worked on, and tells its sender."""
        about = _about(item)
        letter = DeadLetter(
            id=f"{code}:{item.channel}:{hashlib.blake2b(item.raw, digest_size=12).hexdigest()}",
            channel=item.channel,
            card=item.card,
            message_id=about[1],
            direction="out",
            code=code,
            detail=detail,
            body=item.raw,
            attempts=self._limits.poison_attempts,
            at=self._clock.now(),
        )
        await self._desk.bury(letter)
        self._metrics.dead(code)
        if about[1]:
            raw = replies.rejected(item.channel, about[0], about[1], "target_delivery_failed", detail, retryable=False)
            await self._answers.reply(item, raw)

    async def _every(self, seconds: float, work: Callable[[], Awaitable[None]]) -> None:
        while True:
            await self._clock.sleep(seconds)
            try:
                await work()
            except AWAY as error:
                log.info("a periodic task waits for a dependency: %s", error)


def _about(item: Item) -> tuple[str, str]:
    """Packet id and message id of what may not even be a packet."""
    try:
        packet = decode_trusted(item.raw)
    except msgspec.MsgspecError:
        return "", ""
    return (packet.packet_id, packet.payload.message_id) if isinstance(packet, ChatMessage) else ("", "")


def _log_failure(task: "asyncio.Task[None]") -> None:
    if not task.cancelled() and task.exception() is not None:
        log.error("a background task failed", exc_info=task.exception())
