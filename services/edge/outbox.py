"""The sender of persons' messages: in order, one in flight a channel, until xAgent has taken it (IM v2 §7, §9).

The rules (`verdict`, `backoff`) are pure; `ChannelSender` runs them for one channel while it has something to send.
"""

import asyncio
import random
from collections.abc import Callable
from typing import Any, Literal

import msgspec

from shared.clock import Clock
from shared.config import Limits
from shared.records.model import OutboxRow
from shared.records.records import Records
from shared.wire import replies
from shared.wire.packets import AckPayload

Verdict = Literal["accepted", "rejected", "again"]


def verdict(ack: AckPayload | None) -> Verdict:
    """What an answer, or its absence, means for the message (IM v2 §7)."""
    match ack:
        case AckPayload(status="accepted" | "duplicate"):
            return "accepted"
        case AckPayload(status="rejected", retryable=False):
            return "rejected"
        case _:
            return "again"


def backoff(attempt: int, limits: Limits, jitter: Callable[[], float] = random.random) -> float:
    """Seconds to wait after the given attempt (from 1): doubling, capped, with half of it jittered."""
    step = min(limits.retry_first_seconds * 2.0 ** min(attempt - 1, 30), limits.retry_most_seconds)
    return step * (0.5 + jitter() / 2)


class ChannelSender:
    """Sends what the outbox of one channel holds, until it is empty or the channel is closed.

    Args:
        channel: whose outbox.
        push: sends a frame on the socket that has the channel now; False when none has.
        records: where the outbox is.
        limits: lifetimes.
        clock: for waits.
    """

    def __init__(
        self, channel: str, push: Callable[[bytes], bool], records: Records, limits: Limits, clock: Clock
    ) -> None:
        self._channel = channel
        self._push = push
        self._records = records
        self._limits = limits
        self._clock = clock
        self._due = asyncio.Event()
        self._moved = asyncio.Event()
        self._in_flight = ""
        self._answer: asyncio.Future[AckPayload] | None = None

    def kick(self) -> None:
        """There may be something new to send."""
        self._due.set()

    def moved(self) -> None:
        """The channel is on another socket now, or on none: no answer will come on the old one, so no wait for it."""
        self._moved.set()

    def acked(self, reply_to: str, ack: AckPayload) -> None:
        """XAgent answered; an answer to an earlier transmission of the same message counts as well."""
        if self._answer is not None and not self._answer.done() and ack.message_id == self._in_flight:
            self._answer.set_result(ack)

    async def run(self) -> None:
        """Returns when there is nothing left to send."""
        while True:
            self._due.clear()
            rows = await self._records.outbox.pending(self._channel, self._clock.now(), 16)
            for row in rows:
                if not await self._send_until_settled(row):
                    return
            if not rows and not self._due.is_set():
                return

    async def _send_until_settled(self, row: OutboxRow) -> bool:
        attempt = 0
        while self._clock.now() < row.expires_at:
            attempt += 1
            self._moved.clear()
            answer = self._transmit(row)
            if answer is None:
                return False
            ack = await self._await(answer)
            match verdict(ack):
                case "accepted":
                    await self._records.outbox.settle(self._channel, row.message_id, "accepted")
                    return True
                case "rejected":
                    code = ack.code if ack else ""
                    await self._records.outbox.settle(self._channel, row.message_id, "rejected", code)
                    return True
                case "again":
                    await self._records.outbox.attempted(self._channel, row.message_id)
                    await self._pause(backoff(attempt, self._limits))
        return True

    def _transmit(self, row: OutboxRow) -> asyncio.Future[AckPayload] | None:
        """Sends the message in a new packet; None when no socket has the channel any more."""
        answer: asyncio.Future[AckPayload] = asyncio.get_running_loop().create_future()
        self._in_flight, self._answer = row.message_id, answer
        frame = replies.packet("chat.message", msgspec.Raw(row.payload), channel=self._channel)
        return answer if self._push(frame) else None

    async def _await(self, answer: asyncio.Future[AckPayload]) -> AckPayload | None:
        try:
            await self._pause(self._limits.inbound_ack_seconds, answer)
            return answer.result() if answer.done() else None
        finally:
            self._answer = None

    async def _pause(self, seconds: float, *until: asyncio.Future[AckPayload]) -> None:
        """Waits so long, or until the channel has moved, or one of these is done."""
        waits: list[asyncio.Future[Any]] = [
            asyncio.ensure_future(self._clock.sleep(seconds)),
            asyncio.ensure_future(self._moved.wait()),
        ]
        try:
            await asyncio.wait([*until, *waits], return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()
