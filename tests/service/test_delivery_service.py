"""A delivery worker on the bus in process, SQLite and a scripted platform: what it does with what goes wrong."""

import asyncio
import itertools
import json
from collections.abc import AsyncGenerator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry
from sqlalchemy.engine import URL
from sqlalchemy.ext.asyncio import AsyncConnection

from services.delivery.activity import ActivityBoard
from services.delivery.answers import Answers
from services.delivery.channels import Channels
from services.delivery.control import Control
from services.delivery.desk import Desk
from services.delivery.finals import Finals
from services.delivery.previews import Previews
from services.delivery.service import DeliveryService
from services.delivery.targets.port import Failed, Refused, Target, Throttled
from services.delivery.tools import Tools
from services.delivery.trail import NoTrail
from services.delivery.work import LaneWorker
from shared.bus.memory import MemoryBroker, MemoryBus
from shared.bus.outgoing import Outgoing
from shared.bus.port import Done, Message, Outcome, QueueKind
from shared.clock import ManualClock
from shared.config import Settings
from shared.crypto import Keyring
from shared.records import Records, migrate
from shared.records.database import Database, read_url
from shared.records.model import DeadLetter
from shared.state.client import open_state
from shared.state.streams import Streams
from shared.telemetry.metrics import DeliveryMetrics
from shared.telemetry.traces import NO_TRACES
from shared.wire.ids import DEAD_QUEUE, delivery_queue, edge_queue
from shared.wire.items import Item, pack, unpack
from shared.wire.packets import SCHEMA
from tests.support.fake_target import CARD, FakeTarget

EDGE = "e-1"
SETTINGS = Settings(partitions=1)
LIMITS = SETTINGS.limits
QUEUE = delivery_queue(0)
STUCK = 20.0


class WatchedDatabase(Database):
    """Knows how many are waiting for it."""

    def __init__(self, url: URL) -> None:
        super().__init__(url)
        self.busy = 0

    @asynccontextmanager
    async def writing(self) -> AsyncGenerator[AsyncConnection]:
        """See `Database.writing`."""
        self.busy += 1
        try:
            async with super().writing() as connection:
                yield connection
        finally:
            self.busy -= 1

    @asynccontextmanager
    async def reading(self) -> AsyncGenerator[AsyncConnection]:
        """See `Database.reading`."""
        self.busy += 1
        try:
            async with super().reading() as connection:
                yield connection
        finally:
            self.busy -= 1


class Fleet:
    """One partition, its records and its platform, an edge that hears the answers, and workers one after another."""

    def __init__(self, stack: AsyncExitStack, database: WatchedDatabase, streams: Streams) -> None:
        self.clock = ManualClock()
        self.broker = MemoryBroker()
        self.bus = MemoryBus(self.clock, self.broker)
        self.records = Records(database)
        self.target = FakeTarget(self.clock)
        self.answers: list[dict[str, Any]] = []
        self.dead: list[Message] = []
        self._stack = stack
        self._database = database
        self._streams = streams
        self._workers = 0

    async def listen(self) -> None:
        """The edge's inbox, and the dead queue."""

        async def hear(message: Message) -> Outcome:
            self.answers += [json.loads(item.raw) for item in unpack(message.body)]
            return Done()

        async def find(message: Message) -> Outcome:
            self.dead.append(message)
            return Done()

        await self.bus.declare(edge_queue(EDGE), QueueKind.INBOX)
        await self.bus.subscribe(edge_queue(EDGE), hear, prefetch=10)
        await self.bus.declare(QUEUE, QueueKind.PARTITION)
        await self.bus.subscribe(DEAD_QUEUE, find, prefetch=10)

    async def channel(self) -> str:
        """A new channel, signed in."""
        opened = await self.records.channels.open(
            CARD.card_id, "cn", "", EDGE, "s", self.clock.now(), status="connected"
        )
        return opened.channel.channel_id

    async def start_worker(self) -> DeliveryService:
        """A process of the delivery group, wired as `services.cli.roles` does; it has no partition yet."""
        self._workers += 1
        clock, records = self.clock, self.records
        bus = MemoryBus(clock, self.broker)
        outgoing, metrics = Outgoing(bus, clock), DeliveryMetrics(CollectorRegistry())
        targets: dict[str, Target] = {CARD.card_id: self.target}
        channels = Channels(records, Keyring.parse(Keyring.generate()))
        desk, answers = Desk(records, self._streams, clock), Answers(outgoing, records)
        name = f"w{self._workers}"
        finals = Finals(name, targets, channels, desk, answers, NoTrail(), LIMITS, "", clock, metrics, NO_TRACES)
        activity = ActivityBoard(LIMITS.activity_seconds, clock, metrics)
        worker = LaneWorker(
            LIMITS,
            records,
            desk,
            answers,
            finals,
            Previews(targets, channels, desk, activity, clock, metrics, NO_TRACES),
            activity,
            Control(targets, channels, records, answers, clock),
            Tools(targets, finals, desk, answers),
            clock,
            metrics,
            NO_TRACES,
        )
        service = DeliveryService(SETTINGS, bus, records, targets, channels, worker, activity, clock, metrics)
        await service.start()
        self._stack.push_async_callback(bus.close)
        self._stack.push_async_callback(service.stop)
        self._stack.push_async_callback(service.lost, 0)
        return service

    def item(self, channel: str, message_id: str, text: str = "", *, age: float = 0.0) -> Item:
        """A final, taken by the edge so many seconds ago."""
        payload = {"message_id": message_id, "text": text or message_id}
        packet = {"type": "chat.message", "schema": SCHEMA, "packet_id": f"p-{message_id}", "payload": payload}
        raw = json.dumps({**packet, "connector_channel_id": channel}).encode()
        return Item("packet", CARD.card_id, channel, raw, EDGE, self.clock.now() - age)

    async def publish(self, *items: Item) -> None:
        """One bus message."""
        await self.bus.publish(QUEUE, Message(pack(items)))

    async def until(self, holds: Callable[[], bool], *, step: float = 0.0, most: float = 0.0) -> None:
        """Lets everything run, and moves the clock on in steps, each when all is at rest, until it holds."""
        moved = 0.0
        while True:
            await self.rest()
            if holds():
                return
            assert moved < most
            await self.clock.advance(step)
            moved += step

    async def rest(self) -> None:
        """Until nobody waits for anything but the clock: the records answer from threads, all else in the loop."""
        idle = 0
        async with asyncio.timeout(STUCK):
            while idle < 3:
                await self.clock.settle()
                idle = 0 if self._database.busy else idle + 1
                await asyncio.sleep(0.001 if self._database.busy else 0)

    def acks(self) -> dict[str, tuple[str, str]]:
        """The first answer of each message: (status, code)."""
        found: dict[str, tuple[str, str]] = {}
        for answer in self.answers:
            payload = answer["payload"]
            found.setdefault(payload["message_id"], (payload["status"], payload.get("code", "")))
        return found

    def unsettled(self) -> int:
        """How many bus messages of the partition wait or are under way."""
        queue = self.broker.queue(QUEUE)
        return len(queue) + sum(len(consumer.taken) for consumer in queue.consumers)

    async def letters(self) -> dict[str, DeadLetter]:
        """The dead letters by message_id."""
        return {letter.message_id: letter for letter in await self.records.dead.find(100)}


@asynccontextmanager
async def a_fleet(folder: Path) -> AsyncGenerator[Fleet]:
    url = f"sqlite:///{folder / 'records.db'}"
    await migrate(url)
    async with AsyncExitStack() as stack:
        database = await stack.enter_async_context(WatchedDatabase(read_url(url)))
        state = await stack.enter_async_context(open_state("memory://"))
        fleet = Fleet(stack, database, Streams(state))
        stack.push_async_callback(fleet.bus.close)
        await fleet.listen()
        yield fleet
        await fleet.rest()  # so that no round trip is cut off


@pytest.fixture
async def fleet(tmp_path: Path) -> AsyncGenerator[Fleet]:
    """A fleet without a worker yet."""
    async with a_fleet(tmp_path) as fleet:
        yield fleet


@pytest.fixture
async def worker(fleet: Fleet) -> DeliveryService:
    """Its worker, which has the partition."""
    service = await fleet.start_worker()
    await service.acquired(0, 1)
    return service


@pytest.mark.usefixtures("worker")
async def test_poison_ends_as_dead_letters_and_its_neighbours_are_delivered_once(fleet: Fleet) -> None:
    """Field report 34: five bad ones among nine good; the tries are few and spread out, body and reason are kept."""
    channel, other = await fleet.channel(), await fleet.channel()
    fleet.target.bugs.add("bug")
    good = [f"good-{number}" for number in range(9)]
    for body in (b"\xff\xfe", b'{"type":', b"[]"):
        await fleet.bus.publish(QUEUE, Message(body))
    broken = [Item("packet", CARD.card_id, channel, raw, EDGE, fleet.clock.now()) for raw in (b'{"type":', b"[]")]
    await fleet.publish(
        *(fleet.item(channel, name) for name in good[:3]),
        broken[0],
        fleet.item(channel, "bug"),
        broken[1],
        *(fleet.item(channel, name) for name in good[3:6]),
    )
    await fleet.publish(*(fleet.item(other, name) for name in good[6:]))
    await fleet.until(lambda: len(fleet.acks()) == 10 and len(fleet.dead) == 3, step=0.25, most=120.0)
    assert fleet.unsettled() == 0
    assert [(message.body, message.headers["x-reason"]) for message in fleet.dead] == [
        (b"\xff\xfe", "bad_batch"),
        (b'{"type":', "bad_batch"),
        (b"[]", "bad_batch"),
    ]
    assert fleet.target.landed(channel) == good[:6]
    assert fleet.target.landed(other) == good[6:]
    assert {name: status for name, (status, _) in fleet.acks().items()} == {
        **dict.fromkeys(good, "accepted"),
        "bug": "rejected",
    }
    letters = await fleet.records.dead.find(100)
    assert sorted((letter.code, letter.body) for letter in letters) == sorted(
        [("bad_item", broken[0].raw), ("bad_item", broken[1].raw), ("handler_failed", fleet.item(channel, "bug").raw)]
    )
    tries = fleet.target.planned["bug"]
    assert len(tries) == LIMITS.poison_attempts
    assert all(later - earlier >= LIMITS.retry_first_seconds for earlier, later in itertools.pairwise(tries))


async def test_an_item_that_kills_its_workers_is_buried_and_the_batch_around_it_delivered_once(fleet: Fleet) -> None:
    """Field report 34: after some deaths the suspects go one by one, and only the killer is given up."""
    channel, other = await fleet.channel(), await fleet.channel()
    fleet.target.hangs.add("killer")
    await fleet.publish(
        fleet.item(other, "before"),
        fleet.item(channel, "killer"),
        fleet.item(channel, "behind"),
        fleet.item(other, "after"),
    )
    deaths = 0

    def is_hanging(tries: int) -> bool:
        hangs = len(fleet.target.planned.get("killer", [])) > tries
        return fleet.unsettled() == 0 or (hangs and {"before", "after"} <= fleet.acks().keys())

    while "killer" not in await fleet.letters():
        service = await fleet.start_worker()
        tries = len(fleet.target.planned.get("killer", []))
        await service.acquired(0, deaths)
        await fleet.until(partial(is_hanging, tries))
        await service.lost(0)
        deaths += 1
        assert deaths < 20
    assert deaths <= LIMITS.poison_deliveries + LIMITS.poison_attempts + 1
    service = await fleet.start_worker()
    await service.acquired(0, deaths)
    await fleet.until(lambda: fleet.unsettled() == 0)
    assert sorted(fleet.target.landed()) == ["after", "before", "behind"]
    assert (await fleet.letters())["killer"].code == "poison"
    assert fleet.acks()["killer"][0] == "rejected"


@pytest.mark.usefixtures("worker")
async def test_a_long_wait_parks_the_lane_in_order_and_frees_the_queue_and_the_others(fleet: Fleet) -> None:
    """Field reports 6 and 35: nothing of the channel is sent before its time, then all of it in order."""
    channel, other = await fleet.channel(), await fleet.channel()
    fleet.target.errors["a1"] = [Throttled(90.0)]
    began = fleet.clock.now()
    await fleet.publish(fleet.item(channel, "a1"), fleet.item(other, "b1"))
    await fleet.publish(fleet.item(channel, "a2"), fleet.item(channel, "a3"))
    for number in range(2, 21):
        await fleet.publish(fleet.item(other, f"b{number}"))
    await fleet.until(lambda: fleet.unsettled() == 0 and len(fleet.acks()) == 20)
    assert fleet.clock.now() == began
    assert fleet.target.landed() == [f"b{number}" for number in range(1, 21)]
    rows = await fleet.records.parked.find(10, channel)
    assert [json.loads(unpack(row.item)[0].raw)["payload"]["message_id"] for row in rows] == ["a1", "a2", "a3"]
    assert rows[0].due_at == began + 90.0
    assert rows[0].attempts == 1

    await fleet.clock.advance(60.0)
    await fleet.publish(fleet.item(channel, "a4"))
    await fleet.until(lambda: fleet.unsettled() == 0)
    await fleet.rest()
    assert fleet.target.landed(channel) == []

    await fleet.until(lambda: "a4" in fleet.acks(), step=0.25, most=35.0)
    assert fleet.target.landed(channel) == ["a1", "a2", "a3", "a4"]
    tries = [call for call in fleet.target.calls if call.message_id == "a1"]
    assert [call.landed for call in tries] == [False, True]
    assert 90.0 <= tries[1].at - began < 95.0
    assert {fleet.acks()[name] for name in ("a1", "a2", "a3", "a4")} == {("accepted", "")}
    await fleet.rest()
    assert await fleet.records.parked.count() == 0


async def spill_behind_first(fleet: Fleet, channel: str) -> None:
    """One message, two behind it, and time enough that those are put aside while it still runs."""
    await fleet.publish(*(fleet.item(channel, name) for name in ("first", "second", "third")))
    await fleet.until(lambda: "first" in fleet.target.planned)
    for _ in range(9):
        await fleet.rest()
        await fleet.clock.advance(0.5)
    await fleet.rest()
    assert await fleet.records.parked.count() == 2


@pytest.mark.usefixtures("worker")
async def test_a_running_message_that_has_to_wait_stays_ahead_of_what_was_put_aside_behind_it(fleet: Fleet) -> None:
    """Invariant 4: it fails for a while in its lane, the lane is spilled, and only then is its wait a long one."""
    channel = await fleet.channel()
    fleet.target.errors["first"] = [Throttled(2.5), Throttled(2.5), Throttled(30.0)]
    await spill_behind_first(fleet, channel)
    await fleet.until(lambda: len(fleet.acks()) == 3, step=0.25, most=60.0)
    assert fleet.target.landed() == ["first", "second", "third"]


@pytest.mark.usefixtures("worker")
async def test_a_running_message_that_is_tried_again_stays_ahead_of_what_was_put_aside_behind_it(fleet: Fleet) -> None:
    """Invariant 4: the lane was spilled while the first try of it, which met a fault, was over."""
    channel = await fleet.channel()
    fleet.target.bugs.add("first")
    await spill_behind_first(fleet, channel)
    assert fleet.target.landed() == []
    fleet.target.bugs.clear()
    await fleet.until(lambda: len(fleet.acks()) == 3, step=0.25, most=60.0)
    assert fleet.target.landed() == ["first", "second", "third"]


async def test_parked_work_goes_with_its_partition_and_nothing_overtakes_it(fleet: Fleet) -> None:
    """The next owner knows of it before it takes its first message."""
    channel = await fleet.channel()
    fleet.target.errors["a1"] = [Throttled(90.0)]
    first, second = await fleet.start_worker(), await fleet.start_worker()
    await first.acquired(0, 1)
    await fleet.publish(fleet.item(channel, "a1"), fleet.item(channel, "a2"))
    await fleet.until(lambda: fleet.unsettled() == 0)
    await first.released(0)
    await fleet.publish(fleet.item(channel, "a3"))
    await second.acquired(0, 2)
    await fleet.until(lambda: fleet.unsettled() == 0)
    assert fleet.target.landed() == []
    await fleet.until(lambda: "a3" in fleet.acks(), step=0.5, most=100.0)
    assert fleet.target.landed() == ["a1", "a2", "a3"]


@pytest.mark.usefixtures("worker")
async def test_a_short_wait_is_waited_for_in_the_lane(fleet: Fleet) -> None:
    """Field report 6: "second" is not before "first", another channel does not wait, nothing is parked."""
    channel, other = await fleet.channel(), await fleet.channel()
    fleet.target.errors["first"] = [Throttled(LIMITS.park_after_seconds)]
    began = fleet.clock.now()
    await fleet.publish(fleet.item(channel, "first"), fleet.item(channel, "second"), fleet.item(other, "third"))
    await fleet.until(lambda: "third" in fleet.acks())
    await fleet.rest()
    assert fleet.target.landed() == ["third"]
    assert await fleet.records.parked.count() == 0
    await fleet.until(lambda: "second" in fleet.acks(), step=0.25, most=6.0)
    assert fleet.target.landed(channel) == ["first", "second"]
    assert [call.at - began for call in fleet.target.calls if call.message_id == "first"] == [0.0, 3.0]


@pytest.mark.usefixtures("worker")
async def test_what_has_waited_too_long_is_never_sent(fleet: Fleet) -> None:
    """Field report 4c: rejected as expired, with a dead letter that keeps it; one just in time is sent."""
    channel = await fleet.channel()
    late = fleet.item(channel, "late", age=LIMITS.outbound_seconds + 1)
    await fleet.publish(late, fleet.item(channel, "in time", age=LIMITS.outbound_seconds - 1))
    await fleet.until(lambda: len(fleet.acks()) == 2)
    assert fleet.acks() == {"late": ("rejected", "expired"), "in time": ("accepted", "")}
    assert [call.message_id for call in fleet.target.calls] == ["in time"]
    letter = (await fleet.letters())["late"]
    assert (letter.code, letter.body, letter.direction) == ("expired", late.raw, "out")
    rejection = next(a["payload"] for a in fleet.answers if a["payload"]["message_id"] == "late")
    assert rejection["retryable"] is False


@pytest.mark.usefixtures("worker")
async def test_a_part_that_has_to_wait_is_sent_again_alone(fleet: Fleet) -> None:
    """Field report 5a: parts 1, 2, 3 land once each, in order."""
    channel = await fleet.channel()
    fleet.target.errors["2"] = [Throttled(1.0)]
    await fleet.publish(fleet.item(channel, "m", "1|2|3"))
    await fleet.until(lambda: "m" in fleet.acks(), step=0.25, most=5.0)
    assert fleet.target.landed() == ["1", "2", "3"]


@pytest.mark.usefixtures("worker")
async def test_a_refused_message_that_an_operator_retries_is_sent_once_more(fleet: Fleet) -> None:
    """It goes on after what has landed, on a platform that notices no repeat, and its letter is gone."""
    channel = await fleet.channel()
    fleet.target.errors["m"] = [Refused("blocked")]
    await fleet.publish(fleet.item(channel, "m"))
    await fleet.until(lambda: "m" in fleet.acks())
    letter = (await fleet.letters())["m"]
    assert await fleet.records.dead.retry(letter.id, lambda _: 0, fleet.clock.now())
    await fleet.until(lambda: fleet.target.landed() == ["m"], step=0.5, most=5.0)
    await fleet.publish(fleet.item(channel, "m"))
    await fleet.until(lambda: len(fleet.answers) == 2)
    assert [answer["payload"]["status"] for answer in fleet.answers] == ["rejected", "duplicate"]
    assert await fleet.letters() == {}


@pytest.mark.usefixtures("worker")
async def test_a_platform_that_keeps_failing_is_given_up_with_its_part_named(fleet: Fleet) -> None:
    """Field report 5b, with bounded tries: part 1 lands once, part 3 is never sent."""
    channel = await fleet.channel()
    fleet.target.errors["2"] = [Failed("500") for _ in range(1000)]
    await fleet.publish(fleet.item(channel, "m", "1|2|3"), fleet.item(channel, "next"))
    await fleet.until(lambda: "next" in fleet.acks(), step=5.0, most=LIMITS.outbound_seconds)
    assert fleet.target.landed() == ["1", "next"]
    texts = [call.text for call in fleet.target.calls]
    assert texts == ["1", *["2"] * LIMITS.outbound_attempts, "next"]
    assert fleet.acks()["m"] == ("rejected", "target_delivery_failed")
    assert "part 2 failed; 1 delivered" in (await fleet.letters())["m"].detail


@pytest.mark.usefixtures("worker")
async def test_parked_work_that_meets_a_bug_is_buried_after_as_many_tries(fleet: Fleet) -> None:
    """Field report 34, behind a park: it neither stops its lane for good nor is tried for ever."""
    channel = await fleet.channel()
    fleet.target.errors["first"] = [Throttled(10.0)]
    fleet.target.bugs.add("bug")
    await fleet.publish(fleet.item(channel, "first"), fleet.item(channel, "bug"), fleet.item(channel, "next"))
    await fleet.until(lambda: fleet.unsettled() == 0)
    await fleet.until(lambda: len(fleet.acks()) == 3, step=0.25, most=120.0)
    assert fleet.target.landed() == ["first", "next"]
    assert len(fleet.target.planned["bug"]) == LIMITS.poison_attempts
    assert (await fleet.letters())["bug"].code == "handler_failed"
    await fleet.rest()
    assert await fleet.records.parked.count() == 0
