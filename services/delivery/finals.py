"""A final: claim -> plan -> calls, a receipt a part -> receipts durable -> ack -> settle (design.md, The flow, 3)."""

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

import msgspec

from services.delivery import retry
from services.delivery.answers import Answers
from services.delivery.channels import Channels, Known
from services.delivery.desk import Desk
from services.delivery.ledger import Conflict, Go, Repeat, SameRefusal, Uncertain, fingerprint, judge
from services.delivery.retry import GiveUp, Wait
from services.delivery.targets.port import Gone, OutFile, Part, Refused, Target, TargetError, Traits
from services.delivery.trail import DeliveryStep, Trail
from shared.batcher import Batcher
from shared.clock import Clock
from shared.config import Limits
from shared.records.errors import RecordsUnavailable
from shared.records.model import Channel, Claim, Claimed, DeadLetter, Intent, LedgerState, LedgerUpdate, Receipt
from shared.telemetry.metrics import DeliveryMetrics
from shared.telemetry.traces import NO_SPAN, Facts, Span, SpanName, Traces
from shared.wire import replies
from shared.wire.items import Item
from shared.wire.packets import ChatMessage

log = logging.getLogger(__name__)


class Taken(msgspec.Struct, frozen=True):
    """Another worker has got ahead with the call, and answers for it."""


@dataclass
class Attempt:
    """One final on its way.

    Attributes:
        item: as it came.
        packet: what it holds.
        tries: calls that failed so far, kept over parking.
        answered: whether xAgent waits for an ack.
        forced: an operator asked for one more try.
        claimed: what the ledger said, where it was asked ahead.
        landed: every part is on the platform, and nobody has been told yet.
        span: of this try.
    """

    item: Item
    packet: ChatMessage
    tries: int = 0
    answered: bool = True
    forced: bool = False
    claimed: Claimed | None = None
    landed: bool = False
    span: Span = NO_SPAN
    receipts: list[Receipt] = field(default_factory=list)
    preview: tuple[Receipt, ...] = ()

    @cached_property
    def print_(self) -> str:
        """The fingerprint of the message."""
        return fingerprint(self.packet.payload)

    @property
    def message_id(self) -> str:
        """Of the message."""
        return self.packet.payload.message_id


class Finals:
    """Delivers complete messages.

    Args:
        worker_id: holds the intents of this process.
        targets: by connector_card_id.
        channels: their bindings.
        desk: the batched way to ledger, dead letters and streams.
        answers: the way back to xAgent.
        trail: who watches the steps.
        limits: attempts and ages.
        public_url: the root of the URLs that platforms fetch files from.
        clock: time.
        metrics: what is counted.
        traces: spans of the calls.
    """

    def __init__(
        self,
        worker_id: str,
        targets: dict[str, Target],
        channels: Channels,
        desk: Desk,
        answers: Answers,
        trail: Trail,
        limits: Limits,
        public_url: str,
        clock: Clock,
        metrics: DeliveryMetrics,
        traces: Traces,
    ) -> None:
        self._worker_id = worker_id
        self._targets = targets
        self._channels = channels
        self._desk = desk
        self._answers = answers
        self._trail = trail
        self._limits = limits
        self._public_url = public_url
        self._clock = clock
        self._metrics = metrics
        self._traces = traces
        self._conclusions: Batcher[Attempt, None] = Batcher(self._conclude)

    async def deliver(self, attempt: Attempt) -> Wait | None:
        """Sends and concludes; see both."""
        wait = await self.send(attempt)
        if wait is None:
            await self.conclude(attempt)
        return wait

    async def claim_ahead(self, attempts: Sequence[Attempt]) -> None:
        """Asks the ledger for several finals of a lane at once; what fails is asked again in its turn."""
        claims = [self._desk.claim(self._wish(attempt)) for attempt in attempts]
        for attempt, claimed in zip(attempts, await asyncio.gather(*claims, return_exceptions=True), strict=True):
            if isinstance(claimed, Claimed):
                attempt.claimed = claimed
            elif not isinstance(claimed, RecordsUnavailable):
                raise claimed

    async def send(self, attempt: Attempt) -> Wait | None:
        """Makes the calls of a final, or answers it, or says how long to wait before the next try.

        Where it has `landed`, `conclude` is still to come: the next final of the lane need not wait for that, since
        all of it is about what has happened already.
        """
        item = attempt.item
        known = await self._channels.get(item.channel)
        if known is None or not known.is_connected:
            return await self._not_connected(attempt, known)
        target = self._targets[item.card]
        traits = await target.traits(known.binding)
        claimed, attempt.claimed = attempt.claimed or await self._desk.claim(self._wish(attempt)), None
        match judge(claimed, attempt.print_, keyed=traits.keyed, forced=attempt.forced):
            case Repeat():
                return await self._ack(attempt, "duplicate")
            case Conflict():
                return await self._reject(attempt, "message_conflict", "another content had this message_id")
            case SameRefusal(code, detail):
                return await self._reject(attempt, code, detail)
            case Uncertain(receipts):
                attempt.receipts = list(receipts)
                detail = "the process died during the call, and the platform cannot be asked"
                return await self._end(attempt, known, GiveUp("delivery_uncertain", detail))
            case Go(receipts, preview):
                attempt.receipts, attempt.preview = list(receipts), preview
                if claimed.entry.state == "rejected":
                    await self._desk.reopen(item.channel, attempt.message_id)
        return await self._send_parts(attempt, known, target, traits)

    async def _send_parts(self, attempt: Attempt, known: Known, target: Target, traits: Traits) -> Wait | None:
        if self._clock.now() - attempt.item.at > self._limits.outbound_seconds and not attempt.forced:
            return await self._end(attempt, known, GiveUp("expired", "it waited too long"))
        files = await self._files(attempt)
        if files is None:
            return await self._end(attempt, known, GiveUp("file_not_found", "a file_ref is unknown or has expired"))
        try:
            parts = await target.plan(known.binding, attempt.packet.payload, files)
        except Refused as error:
            return await self._end(attempt, known, GiveUp("target_delivery_failed", str(error)))
        while len(attempt.receipts) < len(parts):
            part = parts[len(attempt.receipts)]
            known = await self._channels.get(attempt.item.channel) or known  # a call may have told of its new place
            verdict = await self._call(attempt, known, target, traits, part, last=part is parts[-1])
            match verdict:
                case GiveUp():
                    return await self._end(attempt, known, verdict)
                case Taken():
                    attempt.span.end("taken by another worker")
                    return None
                case Wait(seconds) if seconds > self._limits.park_after_seconds:
                    return verdict
                case Wait(seconds):
                    await self._clock.sleep(seconds)
                case None:
                    pass
        attempt.landed = True
        return None

    def conclude(self, attempt: Attempt) -> asyncio.Future[None]:
        """Makes the receipts of what has landed durable, then tells xAgent, then forgets the stream.

        Many at a time: it is all about what has happened already, and the order of acks is free.
        """
        return self._conclusions.put(attempt)

    async def _conclude(self, attempts: list[Attempt]) -> Sequence[None]:
        landed = [attempt for attempt in attempts if attempt.landed]
        await self._desk.write_all([self._update(attempt, "done") for attempt in landed])
        for attempt in landed:
            attempt.span.event("receipts durable")
            await self._step("after_receipt", attempt)
            await self._ack(attempt, "accepted")
            await self._step("before_settle", attempt)
        await self._desk.close_streams([(attempt.item.channel, attempt.message_id) for attempt in attempts])
        return [None] * len(attempts)

    def _wish(self, attempt: Attempt) -> Claim:
        return Claim(attempt.item.channel, attempt.message_id, attempt.print_, self._clock.now())

    async def _call(
        self, attempt: Attempt, known: Known, target: Target, traits: Traits, part: Part, *, last: bool
    ) -> Wait | GiveUp | Taken | None:
        shown = attempt.preview[part.ordinal] if part.ordinal < len(attempt.preview) else None
        repeatable = traits.keyed or shown is not None
        await self._step("before_call", attempt)
        if not repeatable and not await self._intend(attempt, part.ordinal):
            log.warning("another worker has got ahead: message=%s", attempt.message_id)
            return Taken()
        started = self._clock.monotonic()
        facts = Facts(card=attempt.item.card, part=part.ordinal, attempt=attempt.tries + 1)
        call = self._traces.child(attempt.span.trace, SpanName.CALL, facts)
        try:
            receipt = await target.edit(known.binding, shown, part) if shown else await target.send(known.binding, part)
        except Gone as error:
            call.end("Gone")
            self._metrics.failed(attempt.item.card, type(error).__name__)
            attempt.preview = attempt.preview[: part.ordinal]
            await self._write(attempt, "open")  # before the send: it is no edit that could be repeated
            return Wait(0.0, "the preview is gone")
        except TargetError as error:
            attempt.tries += 1
            call.end(type(error).__name__)
            self._metrics.failed(attempt.item.card, type(error).__name__)
            age = self._clock.now() - attempt.item.at if not attempt.forced else 0.0
            verdict = retry.after(error, attempt.tries, age, self._limits, repeatable=repeatable)
            if isinstance(verdict, Wait) and not repeatable:
                await self._write(attempt, "open")
            return verdict
        call.end("receipt")
        self._metrics.called(attempt.item.card, self._clock.monotonic() - started)
        await self._step("after_call", attempt)
        attempt.receipts.append(receipt)
        if not last:
            await self._write(attempt, "open")
            await self._step("after_receipt", attempt)
        return None

    async def _intend(self, attempt: Attempt, ordinal: int) -> bool:
        return await self._desk.intend(
            Intent(
                attempt.item.channel,
                attempt.message_id,
                ordinal,
                tuple(attempt.receipts),
                self._worker_id,
                self._clock.now(),
            )
        )

    async def _end(self, attempt: Attempt, known: Known, end: GiveUp) -> Wait | None:
        """The failed end of a message: stored, filed where an operator finds it, and told."""
        item = attempt.item
        detail = end.detail
        if attempt.receipts:
            detail = f"{detail} (part {len(attempt.receipts) + 1} failed; {len(attempt.receipts)} delivered)"
        letter = DeadLetter(
            id=f"out:{item.channel}:{attempt.message_id}",
            channel=item.channel,
            card=item.card,
            message_id=attempt.message_id,
            direction="out",
            code=end.code,
            detail=detail,
            body=item.raw,
            attempts=attempt.tries,
            at=self._clock.now(),
        )
        await self._desk.bury(letter)
        attempt.span.event("dead letter")
        await self._write(attempt, "rejected", code=end.code, detail=detail)
        self._metrics.dead(end.code)
        await self._remove_preview(attempt, known)
        if end.revoked:
            await self.revoke(known.channel, detail)
        return await self._reject(attempt, end.code, detail)

    async def revoke(self, channel: Channel, reason: str) -> None:
        """The account is gone: the channel says so, to xAgent too (connector-protocol.md, Descriptor)."""
        known = await self._channels.set_status(channel.channel_id, "revoked", reason)
        if known is not None:
            await self._answers.push(
                channel.card_id,
                channel.channel_id,
                known.channel.edge_id,
                self._desk.descriptor_push(self._targets[channel.card_id].card, known.channel),
            )

    async def _remove_preview(self, attempt: Attempt, known: Known) -> None:
        target = self._targets[attempt.item.card]
        for shown in attempt.preview:
            try:
                await target.remove(known.binding, shown)
            except TargetError as error:
                self._metrics.failed(attempt.item.card, type(error).__name__)

    async def _not_connected(self, attempt: Attempt, known: Known | None) -> Wait | None:
        entry = await self._desk.find(attempt.item.channel, attempt.message_id)
        if entry is not None and entry.state in ("done", "rejected"):
            match judge(Claimed(entry, fresh=False), attempt.print_, keyed=True):
                case Repeat():
                    return await self._ack(attempt, "duplicate")
                case SameRefusal(code, detail):
                    return await self._reject(attempt, code, detail)
                case _:
                    return await self._reject(attempt, "message_conflict", "another content had this message_id")
        if known is None:
            return await self._reject(attempt, "connector_channel_unavailable", "the channel is not registered")
        return await self._reject(attempt, "connection_not_authenticated", "sign in first")

    async def _files(self, attempt: Attempt) -> tuple[OutFile, ...] | None:
        files: list[OutFile] = []
        for file in attempt.packet.payload.files:
            row = await self._desk.file(file.file_ref)
            if row is None or row.channel != attempt.item.channel:
                return None
            row = msgspec.structs.replace(row, file_type=file.type)
            files.append(OutFile(row, f"{self._public_url}/{row.card}/files/refs/{row.ref}"))
        return tuple(files)

    async def _write(self, attempt: Attempt, state: LedgerState, *, code: str = "", detail: str = "") -> None:
        await self._desk.write(self._update(attempt, state, code, detail))

    def _update(self, attempt: Attempt, state: LedgerState, code: str = "", detail: str = "") -> LedgerUpdate:
        return LedgerUpdate(
            attempt.item.channel,
            attempt.message_id,
            state,
            tuple(attempt.receipts),
            -1,
            attempt.preview,
            0,
            code,
            detail,
            attempt.print_,
            self._clock.now(),
            self._worker_id,
        )

    async def _ack(self, attempt: Attempt, status: str) -> Wait | None:
        self._metrics.answered(attempt.item.card, status, "", self._clock.now() - attempt.item.at)
        if attempt.answered:
            item, packet = attempt.item, attempt.packet
            raw = replies.message_ack(
                item.channel, packet.packet_id, attempt.message_id, status, request_id=packet.request_id
            )
            await self._answers.reply(item, raw, attempt.span.trace)
        attempt.span.end(status)
        return None

    async def _reject(self, attempt: Attempt, code: str, detail: str) -> Wait | None:
        self._metrics.answered(attempt.item.card, "rejected", code, self._clock.now() - attempt.item.at)
        if attempt.answered:
            channel, packet_id = attempt.item.channel, attempt.packet.packet_id
            raw = replies.rejected(channel, packet_id, attempt.message_id, code, detail[:300], retryable=False)
            await self._answers.reply(attempt.item, raw, attempt.span.trace)
        attempt.span.end(code)
        return None

    async def _step(self, step: DeliveryStep, attempt: Attempt) -> None:
        await self._trail.reached(step, attempt.item.card, attempt.item.channel, attempt.message_id)
