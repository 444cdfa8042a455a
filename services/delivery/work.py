"""What is done with one job of a lane: a final is delivered or parked, a preview shown, a control packet answered."""

import asyncio
import hashlib
import logging
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TypeVar

import msgspec

from services.delivery.activity import ActivityBoard
from services.delivery.answers import Answers
from services.delivery.control import Control
from services.delivery.desk import Desk
from services.delivery.finals import Attempt, Finals
from services.delivery.lanes import Job, Lane, Tail
from services.delivery.previews import Previews
from services.delivery.retry import Wait
from services.delivery.tools import Tools
from shared.clock import Clock
from shared.config import Limits
from shared.records.errors import RecordsUnavailable
from shared.records.model import DeadLetter, Parked
from shared.records.records import Records
from shared.state.client import StateUnavailable
from shared.telemetry.metrics import DeliveryMetrics
from shared.telemetry.traces import NO_SPAN, Facts, Span, SpanName, Traces, channel_hash
from shared.wire import notes, replies
from shared.wire.codec import decode_trusted
from shared.wire.items import Item, pack, unpack
from shared.wire.packets import AuthCancel, AuthLogout, AuthStart, AuthStatus, ChatMessage, Packet, ToolInvoke

log = logging.getLogger(__name__)

AWAY = (RecordsUnavailable, StateUnavailable)
R = TypeVar("R")
CLAIMS_AHEAD = 16
PARKED_AT_ONCE = 16


class LaneWorker:
    """The `Worker` of the lanes.

    Args:
        limits: waits and attempts.
        records: parked work.
        desk, answers, finals, previews, activity, control, tools: the parts it directs.
        clock: time.
        metrics: what is counted.
        traces: spans of the work.
    """

    def __init__(
        self,
        limits: Limits,
        records: Records,
        desk: Desk,
        answers: Answers,
        finals: Finals,
        previews: Previews,
        activity: ActivityBoard,
        control: Control,
        tools: Tools,
        clock: Clock,
        metrics: DeliveryMetrics,
        traces: Traces,
    ) -> None:
        self._limits = limits
        self._records = records
        self._desk = desk
        self._answers = answers
        self._finals = finals
        self._previews = previews
        self._activity = activity
        self._control = control
        self._tools = tools
        self._clock = clock
        self._metrics = metrics
        self._traces = traces

    async def work(self, lane: Lane, job: Job) -> Tail | None:
        """Does one job to its end, or parks it; a dependency that is away is waited for, a bug is buried."""
        behind = lane.parked  # what is spilled while this one runs is behind it, not ahead
        return await self._persist(job.item, lambda: self._do(lane, job, behind=behind))

    async def resume(self, lane: Lane) -> None:
        """Works off what is parked of a lane, in order, as far as it goes."""
        while True:
            rows = await self._there(lambda: self._records.parked.head(lane.channel, PARKED_AT_ONCE))
            for row in rows:
                if row.due_at > self._clock.now():
                    return
                wait, tries = await self._retry(lane, row)
                if wait is not None:
                    due = self._clock.now() + wait.seconds
                    await self._there(partial(self._records.parked.reschedule, row.id, due, tries, wait.reason))
                    return
                await self._there(partial(self._records.parked.remove, [row.id]))
            if not rows and lane.spill is None:  # nothing is left, and nothing is on its way there
                lane.parked = False
                return

    async def park(self, lane: Lane, jobs: list[Job]) -> None:
        """Puts finals into the records, in order."""
        for job in jobs:
            await self._park(lane, job.item, Wait(0.0, "slow lane"), tries=0)

    async def bury(self, job: Job, error: BaseException) -> None:
        """A final that has landed could not be concluded: a bug, and an operator's to see."""
        log.error("a final could not be concluded: channel=%s", job.item.channel, exc_info=error)
        await self.give_up(job.item, "handler_failed", type(error).__name__)

    async def give_up(self, item: Item, code: str, detail: str) -> None:
        """Files an item that cannot be worked on, and tells its sender."""
        packet_id, message_id = _about(item)
        letter = DeadLetter(
            id=f"{code}:{item.channel}:{hashlib.blake2b(item.raw, digest_size=12).hexdigest()}",
            channel=item.channel,
            card=item.card,
            message_id=message_id,
            direction="out",
            code=code,
            detail=detail,
            body=item.raw,
            attempts=self._limits.poison_attempts,
            at=self._clock.now(),
        )
        await self._desk.bury(letter)
        self._metrics.dead(code)
        if message_id:
            raw = replies.rejected(
                item.channel, packet_id, message_id, "target_delivery_failed", detail, retryable=False
            )
            await self._answers.reply(item, raw)

    async def _do(self, lane: Lane, job: Job, *, behind: bool) -> Tail | None:
        item, packet = job.item, job.packet
        match item.kind:
            case notes.PREVIEW if not lane.parked:
                await self._previews.show(lane, item, _note(item).message_id)
            case notes.INTERRUPTED:
                await self._previews.interrupted(lane, _note(item).message_id)
            case notes.UNREGISTER:
                await self._control.unregister(item)
            case notes.PACKET:
                return await self._do_packet(lane, job, packet or decode_trusted(item.raw), behind=behind)
            case _:
                pass
        return None

    async def _do_packet(self, lane: Lane, job: Job, packet: Packet, *, behind: bool) -> Tail | None:
        item = job.item
        match packet:
            case ChatMessage() if behind:
                await self._park(lane, item, Wait(0.0, "behind parked work"), tries=0)
            case ChatMessage():
                return await self._final(lane, job, packet)
            case AuthStart() | AuthStatus() | AuthCancel() | AuthLogout():
                await self._control.handle(item, packet)
            case ToolInvoke():
                await self._tools.invoke(item, packet)
            case _:
                log.warning("no work for delivery: type=%s", packet.__struct_config__.tag)
        return None

    async def _final(self, lane: Lane, job: Job, packet: ChatMessage) -> Tail | None:
        if job.claimed is None:
            await self._claim_ahead(lane, job)
        attempt, job.claimed = Attempt(job.item, packet, claimed=job.claimed), None
        attempt.span = self._span(job.item, packet)
        with attempt.span:
            wait = await self._send(lane, attempt)
            if wait is not None:
                await self._park_running(lane, job.item, wait, attempt.tries)
                attempt.span.end("parked")
                return None
        return self._finals.conclude(attempt)

    def _span(self, item: Item, packet: ChatMessage) -> Span:
        """The time in the queues, and the work that begins now."""
        if not item.trace:
            return NO_SPAN
        self._traces.child(item.trace, SpanName.QUEUE, Facts(), since=item.at).end()
        facts = Facts(card=item.card, channel_hash=channel_hash(item.channel), message_id=packet.payload.message_id)
        return self._traces.child(item.trace, SpanName.DELIVER, facts)

    async def _claim_ahead(self, lane: Lane, first: Job) -> None:
        """One look into the ledger for the finals that wait; a message_id that is there twice waits its turn."""
        asked: dict[str, Job] = {}
        for job in (first, *list(lane.jobs)[: CLAIMS_AHEAD - 1]):
            if job.final_id and job.final_id not in lane.tails:
                asked.setdefault(job.final_id, job)
        attempts = [Attempt(job.item, job.packet) for job in asked.values() if isinstance(job.packet, ChatMessage)]
        await self._finals.claim_ahead(attempts)
        for job, attempt in zip(asked.values(), attempts, strict=True):
            job.claimed = attempt.claimed

    async def _send(self, lane: Lane, attempt: Attempt) -> Wait | None:
        self._activity.clear(lane.channel)
        wait = await self._finals.send(attempt)
        if wait is None:
            lane.shown.pop(attempt.message_id, None)
        return wait

    async def _park_running(self, lane: Lane, item: Item, wait: Wait, tries: int) -> None:
        """What has waited behind this one may have been spilled meanwhile, and must stay behind it."""
        while lane.spill is not None:
            await asyncio.wait([lane.spill])
        if not lane.parked:
            await self._park(lane, item, wait, tries=tries)
            return
        lane.spill = asyncio.current_task()  # so that nothing more is spilled while the order is made
        try:
            await self._desk.park_first(self._row(lane, item, wait, tries))
        finally:
            lane.spill = None
        self._metrics.parks.inc()

    async def _park(self, lane: Lane, item: Item, wait: Wait, *, tries: int) -> None:
        await self._desk.park(self._row(lane, item, wait, tries))
        lane.parked = True
        self._metrics.parks.inc()

    def _row(self, lane: Lane, item: Item, wait: Wait, tries: int) -> Parked:
        now = self._clock.now()
        return Parked(
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

    async def _there(self, work: Callable[[], Awaitable[R]]) -> R:
        """Waits for a dependency that is away."""
        while True:
            try:
                return await work()
            except AWAY as error:
                log.warning("waiting for a dependency: %s", error)
                await self._clock.sleep(self._limits.retry_first_seconds)

    async def _persist(self, item: Item, work: Callable[[], Awaitable[R]]) -> R | None:
        """As `_there`; a bug is tried some times, with pauses, and then the item is filed."""
        failures = 0
        while True:
            try:
                return await self._there(work)
            except Exception as error:
                failures += 1
                log.exception("a job failed: channel=%s", item.channel)
                if failures >= self._limits.poison_attempts:
                    await self.give_up(item, "handler_failed", type(error).__name__)
                    return None
                await self._clock.sleep(self._limits.retry_first_seconds * 2**failures)

    async def _retry(self, lane: Lane, row: Parked) -> tuple[Wait | None, int]:
        (item,) = unpack(row.item)
        packet = decode_trusted(item.raw)
        if not isinstance(packet, ChatMessage):
            return None, row.attempts
        by_hand = row.kind == "retry"
        attempt = Attempt(item, packet, tries=row.attempts, answered=not by_hand, forced=by_hand)
        attempt.span = self._span(item, packet)
        wait = await self._persist(item, lambda: self._send(lane, attempt))
        if wait is None:
            await self._persist(item, lambda: self._finals.conclude(attempt))
        else:
            attempt.span.end("parked")
        return wait, attempt.tries


def _note(item: Item) -> notes.PreviewDue:
    return msgspec.json.decode(item.raw, type=notes.PreviewDue)


def _about(item: Item) -> tuple[str, str]:
    """Packet id and message id of what may not even be a packet."""
    try:
        packet = decode_trusted(item.raw)
    except msgspec.MsgspecError:
        return "", ""
    return (packet.packet_id, packet.payload.message_id) if isinstance(packet, ChatMessage) else ("", "")
