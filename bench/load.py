"""The loads: closed loops of deltas and of finals, and an open loop of streams with their finals.

A final is done when its ack is there. A delta has no ack (IM v2 §6), so it is done when the shared state shows its
sequence: the observer reads the sequences of all streams in one call, of either system alike.
"""

import asyncio
import itertools
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field

import msgspec

from bench.client import LoadSocket

SCHEMA = b'"schema":"xagent.connector.packet/v1"'
TOKEN = " token"
STREAM_DELTAS = 1000
BURST = 4
FINAL_TEXT = "The quick brown fox jumps over the lazy dog. " * 4

_numbers = itertools.count()

Observe = Callable[[Sequence[tuple[str, str]]], Awaitable[list[int]]]
"""Gives the last stored sequence of each (channel, message_id); 0 where there is none."""


class _Payload(msgspec.Struct):
    message_id: str = ""
    status: str = ""
    connector_id: str = ""
    connector_channel_id: str = ""


class _Packet(msgspec.Struct):
    type: str
    payload: _Payload | None = None


_decode = msgspec.json.Decoder(_Packet).decode


def packet(kind: str, channel: str, payload: str) -> bytes:
    """A packet of xAgent's."""
    return b'{%s,"type":"%s","packet_id":"p%d","connector_channel_id":"%s","payload":%s}' % (
        SCHEMA,
        kind.encode(),
        next(_numbers),
        channel.encode(),
        payload.encode(),
    )


def final(channel: str, message_id: str, text: str) -> bytes:
    """A complete message."""
    return packet("chat.message", channel, f'{{"message_id":"{message_id}","text":"{text}"}}')


def deltas(channel: str, message_id: str, numbers: Iterable[int]) -> list[bytes]:
    """Pieces of one: whole packets, made from one pattern, for the client shares the machine with what it measures."""
    payload = f'{{"message_id":"{message_id}","sequence":%d,"text":"{TOKEN}"}}'
    pattern = packet("chat.message.delta", channel, payload).replace(b'"packet_id":"p', b'"packet_id":"p%d.')
    return [pattern % (number, number) for number in numbers]


@dataclass
class Result:
    """What came of a load."""

    sent: int = 0
    done: int = 0
    seconds: float = 0.0
    statuses: Counter[str] = field(default_factory=Counter)
    latencies: list[float] = field(default_factory=list)
    finals: list[tuple[str, str]] = field(default_factory=list)

    @property
    def rate(self) -> float:
        """Done per second."""
        return self.done / self.seconds if self.seconds else 0.0

    def quantile(self, share: float) -> float:
        """Seconds; of the latencies."""
        ordered = sorted(self.latencies)
        return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else float("nan")


class Talker:
    """One socket with one channel, and what it has under way."""

    def __init__(self, url: str, headers: dict[str, str], result: Result) -> None:
        self.socket = LoadSocket(url, headers, self._receive)
        self.result = result
        self.channel = ""
        self.stream = ""
        self.sent = self.seen = 0
        self.pending: dict[str, float] = {}
        self.on_ack: Callable[[Talker], None] = lambda _: None
        self._answers: asyncio.Queue[_Packet] = asyncio.Queue()

    async def open(self, card: str) -> None:
        """Says hello and opens a channel."""
        await self.socket.open()
        hello = f'{{"connector_card_id":"{card}","protocol_version":"3.0","supported_profiles":["xagent.im.v2"]}}'
        self.socket.send(packet("connector.hello", "", hello))
        await self._answers.get()
        self.socket.send(packet("channel.open", "", "{}"))
        answer = await self._answers.get()
        assert answer.payload is not None
        self.channel = answer.payload.connector_channel_id
        assert self.channel, answer

    def new_id(self) -> str:
        """A message_id."""
        return f"m{next(_numbers)}"

    def send_final(self, message_id: str, text: str, at: float) -> None:
        """Sends a final that counts from `at` on."""
        self.pending[message_id] = at
        self.result.finals.append((self.channel, message_id))
        self.socket.send(final(self.channel, message_id, text))

    def _receive(self, body: bytes) -> None:
        answer = _decode(body)
        if answer.type != "chat.message.ack" or answer.payload is None:
            if answer.type == "error":
                self.result.statuses["error"] += 1
            self._answers.put_nowait(answer)
            return
        sent_at = self.pending.pop(answer.payload.message_id, None)
        self.result.statuses[answer.payload.status if sent_at is not None else "unasked"] += 1
        if sent_at is not None:
            self.result.latencies.append(time.perf_counter() - sent_at)
        self.on_ack(self)


async def talkers(url: str, headers: dict[str, str], card: str, count: int, result: Result) -> list[Talker]:
    """Sockets, each with its channel."""
    made = [Talker(url, headers, result) for _ in range(count)]
    for some in itertools.batched(made, 50) if hasattr(itertools, "batched") else _chunks(made, 50):
        await asyncio.gather(*(talker.open(card) for talker in some))
    return made


def _chunks(items: list[Talker], size: int) -> list[list[Talker]]:
    return [items[i : i + size] for i in range(0, len(items), size)]


async def closed_finals(all_: list[Talker], result: Result, window: int, seconds: float) -> None:
    """Every socket keeps `window` finals in flight."""
    end = time.perf_counter() + seconds

    def refill(talker: Talker) -> None:
        now = time.perf_counter()
        while len(talker.pending) < window and now < end:
            talker.send_final(talker.new_id(), FINAL_TEXT, now)
            result.sent += 1

    started = time.perf_counter()
    for talker in all_:
        talker.on_ack = refill
        refill(talker)
    await _quiet(all_, seconds + 30)
    result.done = len(result.latencies)
    result.seconds = time.perf_counter() - started


async def closed_deltas(all_: list[Talker], result: Result, window: int, seconds: float, observe: Observe) -> None:
    """Every socket keeps `window` deltas of a stream in flight; `STREAM_DELTAS` of them, the final, the next stream."""
    started = time.perf_counter()
    end = started + seconds
    for talker in all_:
        talker.stream, talker.sent, talker.seen = talker.new_id(), 0, 0
    streaming = list(all_)
    while streaming and time.perf_counter() < end + 30:
        now = time.perf_counter()
        for talker in streaming:
            if talker.sent and talker.seen == talker.sent and (talker.sent >= STREAM_DELTAS or now >= end):
                talker.send_final(talker.stream, TOKEN * talker.sent, now)
                talker.stream, talker.sent, talker.seen = talker.new_id(), 0, 0
            room = min(window - (talker.sent - talker.seen), STREAM_DELTAS - talker.sent)
            if room > 0 and now < end and not talker.pending:
                first = talker.sent + 1
                talker.socket.send(*deltas(talker.channel, talker.stream, range(first, first + room)))
                talker.sent += room
                result.sent += room
        if now >= end:
            streaming = [talker for talker in streaming if talker.sent or talker.pending]
        await asyncio.sleep(0.002)
        for talker, seen in zip(all_, await observe([(t.channel, t.stream) for t in all_]), strict=True):
            if seen > talker.seen:
                result.done += seen - talker.seen
                talker.seen = seen
    result.seconds = time.perf_counter() - started


async def open_loop(all_: list[Talker], result: Result, rate: float, seconds: float, length: int) -> None:
    """Packets at a fixed rate whatever comes back: on every channel streams of so many deltas and their final.

    A socket sends `BURST` deltas at a time, as an agent does that reads its model's answer in chunks.

    The latency of a final counts from the time at which it was due, so that a stalled system cannot hide it.
    """
    started = time.perf_counter()
    total = int(rate * seconds)
    places = [0] * len(all_)
    lengths = [length * (n + 1) // len(all_) for n in range(len(all_))]  # the first streams end one after the other
    for talker in all_:
        talker.stream = talker.new_id()
    while result.sent < total:
        now = time.perf_counter()
        while result.sent < total and started + result.sent / rate <= now:
            n = result.sent // BURST % len(all_)
            talker, first = all_[n], places[n] + 1
            count = min(BURST, total - result.sent)
            if pieces := deltas(talker.channel, talker.stream, range(first, min(first + count, lengths[n] + 1))):
                talker.socket.send(*pieces)
            places[n] += len(pieces)
            if len(pieces) < count:
                text = TOKEN * lengths[n] or FINAL_TEXT
                talker.send_final(talker.stream, text, started + result.sent / rate)
                talker.stream, places[n], lengths[n] = talker.new_id(), 0, length
            result.sent += len(pieces) + (len(pieces) < count)
        await asyncio.sleep(0.001)
    result.seconds = time.perf_counter() - started
    await _quiet(all_, 60)
    result.done = len(result.latencies)


async def _quiet(all_: list[Talker], seconds: float) -> None:
    end = time.perf_counter() + seconds
    while any(talker.pending for talker in all_) and time.perf_counter() < end:  # noqa: ASYNC110 - polled on purpose
        await asyncio.sleep(0.01)
