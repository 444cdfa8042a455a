"""The sender of persons' messages: in order, one in flight a channel, until xAgent has taken it (IM v2 §7, §9).

The rules (`verdict`, `backoff`) are pure; `ChannelSender` runs them for one channel while it has something to send.
"""

import asyncio
import random
from collections.abc import Callable
from typing import Literal

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
        self._woken = asyncio.Event()
        self._in_flight = ""
        self._ack: AckPayload | None = None
        self._pausing = False
        self._has_moved = False

    def kick(self) -> None:
        """There may be something new to send."""
        self._due.set()

    def moved(self) -> None:
        """The channel is on another socket now, or on none: no answer will come on the old one, so no wait for it."""
        self._has_moved = True
        self._woken.set()

    def acked(self, ack: AckPayload) -> None:
        """XAgent answered; an answer to an earlier transmission of the same message counts as well.

        So does one that comes in the pause between two transmissions, unless it only asks for another.
        """
        if ack.message_id == self._in_flight and not (self._pausing and verdict(ack) == "again"):
            self._ack = ack
            self._woken.set()

    async def run(self) -> None:
        """Returns when there is nothing left to send; holds one message at a time, however many channels wait."""
        while True:
            self._due.clear()
            rows = await self._records.outbox.pending(self._channel, self._clock.now(), 1)
            if rows and not await self._send_until_settled(rows[0]):
                return
            if not rows and not self._due.is_set():
                return

    async def _send_until_settled(self, row: OutboxRow) -> bool:
        attempt = 0
        while self._clock.now() < row.expires_at:
            attempt += 1
            if not self._transmit(row):
                return False
            if await self._settle(row, await self._answer(self._limits.inbound_ack_seconds)):
                return True
            self._pausing = True
            await self._records.outbox.attempted(self._channel, row.message_id)
            if await self._settle(row, await self._answer(backoff(attempt, self._limits))):
                return True
        return True

    def _transmit(self, row: OutboxRow) -> bool:
        """Sends the message in a new packet; False when no socket has the channel any more."""
        self._in_flight, self._ack, self._pausing, self._has_moved = row.message_id, None, False, False
        return self._push(replies.packet("chat.message", msgspec.Raw(row.payload), channel=self._channel))

    async def _answer(self, seconds: float) -> AckPayload | None:
        """What xAgent says within that time; nothing when the channel moves first."""
        if self._ack is None and not self._has_moved:
            self._woken.clear()
            either = [asyncio.ensure_future(self._clock.sleep(seconds)), asyncio.ensure_future(self._wake())]
            try:
                await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for one in either:
                    one.cancel()
        ack, self._ack = self._ack, None
        return ack

    async def _wake(self) -> None:
        await self._woken.wait()

    async def _settle(self, row: OutboxRow, ack: AckPayload | None) -> bool:
        match verdict(ack):
            case "accepted":
                await self._records.outbox.settle(self._channel, row.message_id, "accepted")
            case "rejected":
                code = ack.code if ack else ""
                await self._records.outbox.settle(self._channel, row.message_id, "rejected", code)
            case "again":
                return False
        return True
