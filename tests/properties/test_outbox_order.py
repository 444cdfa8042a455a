"""Invariant 4, inbound: whatever becomes of acks and sockets, xAgent first sees a channel's messages in their order."""

import asyncio
import json
from contextlib import AsyncExitStack
from itertools import count
from pathlib import Path
from typing import Literal

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule, run_state_machine_as_test
from msgspec import Struct

from services.edge.outbox import ChannelSender
from shared.clock import ManualClock
from shared.config import Limits
from shared.records import Records, migrate, open_records
from shared.wire.packets import AckPayload

CARD = "im.test"
LIMITS = Limits()
CAP = 1000
WITHIN_THE_HOUR = 3000.0
WHICH = st.integers(0, 1)

Status = Literal["accepted", "duplicate", "rejected"]


class Frame(Struct, frozen=True):
    """What xAgent gets of a message."""

    packet_id: str
    message_id: str


class Socket:
    """XAgent's side of a channel: every frame that reached it."""

    def __init__(self) -> None:
        self.open = True
        self.frames: list[Frame] = []

    def push(self, raw: bytes) -> bool:
        """See `ChannelSender`."""
        if self.open:
            packet = json.loads(raw)
            self.frames.append(Frame(packet["packet_id"], packet["payload"]["message_id"]))
        return self.open


class Channel:
    """One channel: what was accepted for it, its socket, its sender, and how often each message went out."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.accepted: list[str] = []
        self.sent_at_end: dict[str, int] = {}
        self.socket = Socket()
        self.earlier: list[Frame] = []
        self.sender: ChannelSender | None = None
        self.running: asyncio.Task[None] | None = None

    @property
    def frames(self) -> list[Frame]:
        """All that xAgent has ever seen of the channel."""
        return self.earlier + self.socket.frames

    @property
    def is_running(self) -> bool:
        """Whether a sender is at work."""
        return self.running is not None and not self.running.done()

    def first_seen(self) -> list[str]:
        """The message_ids in the order in which xAgent saw each of them first."""
        return list(dict.fromkeys(frame.message_id for frame in self.frames))

    def sent(self, message_id: str) -> int:
        """How often it went out."""
        return sum(frame.message_id == message_id for frame in self.frames)


class RestingClock(ManualClock):
    """A manual clock that knows how many wait for it: a sender at rest is one of them."""

    def __init__(self) -> None:
        super().__init__()
        self.waiting = 0

    async def sleep(self, seconds: float) -> None:
        """See `Clock.sleep`."""
        self.waiting += 1
        try:
            await super().sleep(seconds)
        finally:
            self.waiting -= 1


class Bench:
    """What lasts over the runs of a machine."""

    def __init__(self, runner: asyncio.Runner, records: Records, clock: RestingClock) -> None:
        self.runner = runner
        self.records = records
        self.clock = clock
        self.names = count()


class OutboxMachine(RuleBasedStateMachine):
    """Two channels; people write, xAgent answers or does not, sockets come and go."""

    def __init__(self, bench: Bench) -> None:
        super().__init__()
        self.bench = bench
        self.channels = [Channel(f"c{next(bench.names)}") for _ in range(2)]
        self.began = bench.clock.now()

    @rule(which=WHICH, again=st.booleans())
    def a_person_writes(self, which: int, *, again: bool) -> None:
        """A new message, or (a platform that delivers twice) the last one again."""
        channel = self.channels[which]
        repeat = again and bool(channel.accepted)
        name = channel.accepted[-1] if repeat else f"m{next(self.bench.names)}"
        payload = json.dumps({"message_id": name, "text": "x"}).encode()
        now, ttl = self.bench.clock.now(), LIMITS.inbound_seconds
        add = self.bench.records.outbox.add(channel.name, CARD, name, payload, now, ttl, CAP)
        assert self.bench.runner.run(add).status == ("duplicate" if repeat else "added")
        if not repeat:
            channel.accepted.append(name)
        self.send(channel)

    @rule(which=WHICH, status=st.sampled_from(["accepted", "accepted", "duplicate", "rejected"]))
    def xagent_ends_it(self, which: int, status: Status) -> None:
        """It took the newest message that it saw, knew it already, or will never take it."""
        self.answer(self.channels[which], status, retryable=False)

    @rule(which=WHICH)
    def xagent_wants_it_again_later(self, which: int) -> None:
        """A refusal that may be retried."""
        self.answer(self.channels[which], "rejected", retryable=True)

    @rule(which=WHICH, back=st.integers(1, 4))
    def an_ack_of_an_earlier_message_comes_late(self, which: int, back: int) -> None:
        """It ends nothing else."""
        channel = self.channels[which]
        frames = channel.frames
        if len(frames) > back and channel.sender is not None:
            late = frames[-1 - back]
            ended_before = self.ended(channel)
            channel.sender.acked(AckPayload(message_id=late.message_id, status="accepted"))
            self.rest()
            assert self.ended(channel) - ended_before <= {late.message_id}
            self.check(channel)

    @precondition(lambda self: self.bench.clock.now() < self.began + WITHIN_THE_HOUR)
    @rule(seconds=st.sampled_from([0.5, 5.0, 35.0, 70.0]))
    def time_passes(self, seconds: float) -> None:
        """Acks that were lost are missed, waits are over."""
        self.bench.runner.run(self.bench.clock.advance(seconds))
        self.rest()
        for channel in self.channels:
            self.check(channel)

    @rule(which=WHICH)
    def the_socket_goes(self, which: int) -> None:
        """What is in flight may have arrived; its ack never comes."""
        self.channels[which].socket.open = False

    @rule(which=WHICH)
    def xagent_opens_the_channel_again(self, which: int) -> None:
        """On a new socket, at this edge or another: the old sender ends, a new one starts."""
        channel = self.channels[which]
        if channel.running is not None:
            channel.running.cancel()
        self.rest()
        channel.earlier += channel.socket.frames
        channel.socket, channel.sender, channel.running = Socket(), None, None
        self.send(channel)

    def send(self, channel: Channel) -> None:
        """As the edge does: wakes the sender of the channel, or starts one."""

        async def start() -> None:
            push, records = channel.socket.push, self.bench.records
            channel.sender = ChannelSender(channel.name, push, records, LIMITS, self.bench.clock)
            channel.running = asyncio.create_task(channel.sender.run())

        if channel.is_running and channel.sender is not None:
            channel.sender.kick()
        else:
            self.bench.runner.run(start())
        self.rest()
        self.check(channel)

    def answer(self, channel: Channel, status: Status, *, retryable: bool) -> None:
        """An ack of the newest frame."""
        if channel.frames and channel.sender is not None:
            newest = channel.frames[-1]
            ack = AckPayload(message_id=newest.message_id, status=status, retryable=retryable)
            channel.sender.acked(ack)
            self.rest()
            self.check(channel)

    def rest(self) -> None:
        """Until every sender waits for the clock or has ended."""
        self.bench.runner.run(self._rest())

    async def _rest(self) -> None:
        async with asyncio.timeout(20):
            await self.bench.clock.settle()
            while self.bench.clock.waiting != sum(channel.is_running for channel in self.channels):  # noqa: ASYNC110 - the records answer from a thread
                await asyncio.sleep(0.0005)

    def ended(self, channel: Channel) -> set[str]:
        """What needs no sending any more."""
        pending = self.bench.records.outbox.pending(channel.name, self.bench.clock.now(), CAP)
        return set(channel.accepted) - {row.message_id for row in self.bench.runner.run(pending)}

    def check(self, channel: Channel) -> None:
        """First sights are in the order of acceptance, packets are new, and what has ended is not sent again."""
        if channel.running is not None and channel.running.done():
            channel.running.result()
        seen = channel.first_seen()
        assert seen == channel.accepted[: len(seen)]
        assert len({frame.packet_id for frame in channel.frames}) == len(channel.frames)
        places = [channel.accepted.index(frame.message_id) for frame in channel.frames]
        assert places == sorted(places)  # one in flight: what comes again comes before the next one
        for message_id in self.ended(channel):
            assert channel.sent_at_end.setdefault(message_id, channel.sent(message_id)) == channel.sent(message_id)

    def teardown(self) -> None:
        """Once xAgent is there and takes what it sees, it has seen everything, and the senders rest."""
        for which, channel in enumerate(self.channels):
            self.xagent_opens_the_channel_again(which)
            while channel.is_running:
                self.answer(channel, "accepted", retryable=False)
            assert channel.first_seen() == channel.accepted
            assert self.ended(channel) == set(channel.accepted)


def test_xagent_sees_messages_in_order_and_none_after_its_end(tmp_path: Path) -> None:
    """Under any interleaving of messages, acks, lost acks, refusals for now and new sockets."""
    url = f"sqlite:///{tmp_path / 'records.db'}"
    runs = settings(max_examples=25, stateful_step_count=30, deadline=None)
    with asyncio.Runner() as runner:
        runner.run(migrate(url))
        stack = AsyncExitStack()
        bench = Bench(runner, runner.run(stack.enter_async_context(open_records(url))), RestingClock())
        try:
            run_state_machine_as_test(lambda: OutboxMachine(bench), settings=runs)
        finally:
            runner.run(stack.aclose())
