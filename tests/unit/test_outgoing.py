"""Items offered to `Outgoing` travel many to a message, in order, and none is lost without a count."""

import asyncio
from collections.abc import Sequence

import pytest

from shared.bus.memory import MemoryBus
from shared.bus.outgoing import MAX_BATCH, MAX_BODY, MAX_WINDOW, Outgoing, next_window
from shared.bus.port import BusError, Full, Message, QueueKind, Unavailable, Unroutable
from shared.clock import ManualClock
from shared.wire.items import Item, unpack

QUEUE = "sluice.delivery.3"


class ScriptedBus(MemoryBus):
    """A bus that fails as scripted, may hold publishes at a gate, and keeps what it took."""

    def __init__(self, clock: ManualClock) -> None:
        super().__init__(clock)
        self.taken: list[tuple[str, Message]] = []
        self.failures: list[BusError] = []
        self.tries = 0
        self.gate = asyncio.Event()
        self.gate.set()
        self.in_flight: dict[str, int] = {}

    async def publish(self, queue: str, message: Message) -> None:
        """Takes the message, or fails as scripted."""
        self.tries += 1
        self.in_flight[queue] = self.in_flight.get(queue, 0) + 1
        assert self.in_flight[queue] == 1
        try:
            await self.gate.wait()
        finally:
            self.in_flight[queue] -= 1
        if self.failures:
            raise self.failures.pop(0)
        self.taken.append((queue, message))

    def batches(self, queue: str = QUEUE) -> list[list[bytes]]:
        """What each message to the queue carried."""
        return [[item.raw for item in unpack(message.body)] for name, message in self.taken if name == queue]


@pytest.fixture
def clock() -> ManualClock:
    """A clock that stands still."""
    return ManualClock()


@pytest.fixture
def bus(clock: ManualClock) -> ScriptedBus:
    """A bus that takes everything."""
    return ScriptedBus(clock)


def item(raw: bytes) -> Item:
    """An item with that content."""
    return Item("packet", "im.console", "c-1", raw)


def items(count: int) -> list[Item]:
    """Numbered items."""
    return [item(str(number).encode()) for number in range(count)]


@pytest.mark.parametrize(("last", "window"), [(0, 0.0), (1, 0.0), (7, 0.0), (8, 0.004), (16, 0.008), (512, MAX_WINDOW)])
def test_the_window_grows_with_the_load(last: int, window: float) -> None:
    assert next_window(last) == pytest.approx(window)


async def test_a_lone_item_leaves_at_once_with_the_headers(bus: ScriptedBus, clock: ManualClock) -> None:
    outgoing = Outgoing(bus, clock, {"x-role": "edge"})
    assert outgoing.offer(QUEUE, item(b"only"))
    await clock.settle()
    assert bus.batches() == [[b"only"]]
    assert bus.taken[0][1].headers == {"x-role": "edge"}
    assert (outgoing.published, outgoing.items, outgoing.lost) == (1, 1, 0)


async def test_what_arrives_while_a_publish_is_in_flight_travels_together(bus: ScriptedBus, clock: ManualClock) -> None:
    outgoing = Outgoing(bus, clock)
    bus.gate.clear()
    outgoing.offer(QUEUE, item(b"first"))
    await clock.settle()
    assert all(outgoing.offer(QUEUE, one) for one in items(30))
    bus.gate.set()
    await clock.settle()
    assert bus.batches() == [[b"first"], [one.raw for one in items(30)]]


async def test_after_a_large_batch_the_next_one_waits_for_its_window(bus: ScriptedBus, clock: ManualClock) -> None:
    outgoing = Outgoing(bus, clock)
    for one in items(50):
        outgoing.offer(QUEUE, one)
    await clock.settle()
    outgoing.offer(QUEUE, item(b"a"))
    await clock.advance(MAX_WINDOW - 0.001)
    outgoing.offer(QUEUE, item(b"b"))
    assert len(bus.taken) == 1
    await clock.advance(0.0011)
    assert bus.batches()[1:] == [[b"a", b"b"]]


async def test_a_batch_has_a_bound_in_items_and_in_bytes(bus: ScriptedBus, clock: ManualClock) -> None:
    outgoing = Outgoing(bus, clock)
    for one in items(MAX_BATCH + 1):
        outgoing.offer(QUEUE, one)
    for _ in range(3):
        outgoing.offer("large", item(bytes(400 * 1024)))
    outgoing.offer("huge", item(bytes(MAX_BODY * 2)))
    await clock.advance(1)
    assert [len(batch) for batch in bus.batches()] == [MAX_BATCH, 1]
    assert [len(batch) for batch in bus.batches("large")] == [2, 1]
    assert [len(batch) for batch in bus.batches("huge")] == [1]


async def test_queues_do_not_wait_for_one_another(bus: ScriptedBus, clock: ManualClock) -> None:
    outgoing = Outgoing(bus, clock)
    bus.gate.clear()
    outgoing.offer("a", item(b"1"))
    outgoing.offer("b", item(b"2"))
    await clock.settle()
    assert bus.in_flight == {"a": 1, "b": 1}
    bus.gate.set()
    await outgoing.close()


async def test_a_full_buffer_refuses_and_drain_waits_for_room(bus: ScriptedBus, clock: ManualClock) -> None:
    outgoing = Outgoing(bus, clock, max_items=3)
    bus.gate.clear()
    assert [outgoing.offer(QUEUE, one) for one in items(5)] == [True, True, True, False, False]
    assert outgoing.offer("another", item(b"x"))
    draining = asyncio.create_task(outgoing.drain(QUEUE))
    await clock.settle()
    assert not draining.done()
    bus.gate.set()
    await draining
    assert outgoing.offer(QUEUE, item(b"fits"))
    await outgoing.drain("a queue never used")


async def test_a_buffer_is_bounded_in_bytes_too(bus: ScriptedBus, clock: ManualClock) -> None:
    outgoing = Outgoing(bus, clock, max_bytes=1000)
    bus.gate.clear()
    assert outgoing.offer(QUEUE, item(bytes(900)))
    assert not outgoing.offer(QUEUE, item(b""))
    bus.gate.set()
    await clock.settle()
    assert outgoing.offer(QUEUE, item(b""))


@pytest.mark.parametrize("failure", [Unavailable("away"), Full("bound")])
async def test_what_the_bus_does_not_take_is_offered_again_in_order(
    bus: ScriptedBus, clock: ManualClock, failure: BusError
) -> None:
    outgoing = Outgoing(bus, clock)
    bus.failures = [failure] * 5
    for one in items(3):
        outgoing.offer(QUEUE, one)
    await clock.settle()
    assert bus.tries == 1  # no hammering: it waits before it tries again
    outgoing.offer(QUEUE, item(b"later"))
    await clock.advance(10)
    assert bus.batches() == [[b"0", b"1", b"2"], [b"later"]]
    assert bus.tries == 7
    assert outgoing.lost == 0


async def test_unroutable_items_are_handed_over_and_those_behind_them_too(bus: ScriptedBus, clock: ManualClock) -> None:
    outgoing = Outgoing(bus, clock)
    handed: list[tuple[str, list[bytes]]] = []

    async def hand_over(queue: str, batch: Sequence[Item]) -> None:
        handed.append((queue, [one.raw for one in batch]))

    outgoing.on_unroutable = hand_over
    bus.failures = [Unroutable("sluice.edge.gone")]
    bus.gate.clear()
    outgoing.offer("sluice.edge.gone", item(b"a"))
    await clock.settle()
    outgoing.offer("sluice.edge.gone", item(b"b"))
    bus.gate.set()
    await clock.settle()
    assert handed == [("sluice.edge.gone", [b"a", b"b"])]
    assert (outgoing.published, outgoing.lost) == (0, 0)


async def test_a_hand_over_that_fails_is_counted_as_lost(bus: ScriptedBus, clock: ManualClock) -> None:
    outgoing = Outgoing(bus, clock)

    async def fail(_queue: str, _items: Sequence[Item]) -> None:
        raise ConnectionError("no records")

    outgoing.on_unroutable = fail
    bus.failures = [Unroutable(QUEUE)]
    outgoing.offer(QUEUE, item(b"a"))
    await clock.settle()
    assert outgoing.lost == 1
    assert outgoing.offer(QUEUE, item(b"b"))
    await clock.settle()
    assert bus.batches() == [[b"b"]]


async def test_a_queue_gone_idle_leaves_nothing_behind(bus: ScriptedBus, clock: ManualClock) -> None:
    outgoing = Outgoing(bus, clock)
    for number in range(100):
        outgoing.offer(f"sluice.edge.{number}", item(b"x"))
    await clock.settle()
    assert len(bus.taken) == 100
    assert not outgoing._lanes


async def test_close_publishes_what_is_held_and_takes_no_more(bus: ScriptedBus, clock: ManualClock) -> None:
    outgoing = Outgoing(bus, clock)
    for one in items(MAX_BATCH * 2):
        outgoing.offer(QUEUE, one)
    await outgoing.close()
    assert sum(len(batch) for batch in bus.batches()) == MAX_BATCH * 2
    assert not outgoing.offer(QUEUE, item(b"late"))
    with pytest.raises(Unavailable):
        await outgoing.drain(QUEUE)


async def test_close_gives_up_on_a_broker_that_stays_away_and_counts_the_loss(
    bus: ScriptedBus, clock: ManualClock
) -> None:
    outgoing = Outgoing(bus, clock)
    bus.failures = [Unavailable("away")] * 1000
    for one in items(MAX_BATCH + 5):
        outgoing.offer(QUEUE, one)
    closing = asyncio.create_task(outgoing.close())
    await clock.advance(5)
    assert not closing.done()
    await clock.advance(10)
    await closing
    assert outgoing.lost == MAX_BATCH + 5


async def test_items_arrive_at_a_subscriber_of_the_bus_in_process(clock: ManualClock) -> None:
    bus = MemoryBus(clock)
    await bus.declare(QUEUE, QueueKind.PARTITION)
    outgoing = Outgoing(bus, clock)
    for one in items(10):
        outgoing.offer(QUEUE, one)
    await outgoing.close()
    assert await bus.depth(QUEUE) == 1
