"""What every bus promises, shown on the one in process and on RabbitMQ."""

import asyncio
import secrets
from collections.abc import AsyncIterator

import pytest

from shared.bus.port import (
    INBOX_MAX_BYTES,
    Bus,
    Done,
    Full,
    Message,
    Outcome,
    QueueKind,
    Reject,
    Retry,
    Unavailable,
    Unroutable,
)
from shared.wire.ids import DEAD_QUEUE
from tests.contract.buses import Broker, Taker, broker_at, until

POISON = [b"\xff\xfe", b'{"type":', b"[]"]


@pytest.fixture(params=["memory", "rabbitmq"])
async def broker(request: pytest.FixtureRequest) -> AsyncIterator[Broker]:
    """A broker of either kind, with nothing in its dead queue."""
    url = None if request.param == "memory" else request.getfixturevalue("rabbitmq_url")
    async with broker_at(url) as broker:
        await _empty_dead_queue(broker)
        yield broker


@pytest.fixture
async def bus(broker: Broker) -> Bus:
    """A client of the broker."""
    return await broker.bus()


@pytest.fixture
async def queue(bus: Bus) -> str:
    """A partition queue of the test's own."""
    name = f"sluice.test.{secrets.token_hex(4)}"
    await bus.declare(name, QueueKind.PARTITION)
    return name


async def _empty_dead_queue(broker: Broker) -> None:
    bus = await broker.bus()
    await bus.declare(DEAD_QUEUE, QueueKind.DEAD)
    subscription = await bus.subscribe(DEAD_QUEUE, Taker(), prefetch=100)
    await until(lambda: _is_empty(bus, DEAD_QUEUE))
    await subscription.stop()


async def _is_empty(bus: Bus, queue: str) -> bool:
    return await bus.depth(queue) == 0


async def _publish(bus: Bus, queue: str, *bodies: bytes) -> None:
    for body in bodies:
        await bus.publish(queue, Message(body))


async def _dead(bus: Bus, count: int) -> list[Message]:
    """The dead letters, which have to be that many."""
    taker = Taker()
    subscription = await bus.subscribe(DEAD_QUEUE, taker, prefetch=100)
    await until(lambda: len(taker.got) >= count)
    await subscription.stop()
    assert len(taker.got) == count
    return taker.got


def _numbered(count: int) -> list[bytes]:
    return [str(number).encode() for number in range(count)]


async def test_messages_arrive_in_order_with_their_headers_and_name(bus: Bus, queue: str) -> None:
    taker = Taker()
    await bus.publish(queue, Message(b"first", {"traceparent": "00-aa-bb-01", "x-name": "報告"}, "m-1"))
    await _publish(bus, queue, *_numbered(50))
    await bus.subscribe(queue, taker, prefetch=10)
    await until(lambda: len(taker.finished) == 51)
    assert taker.bodies == [b"first", *_numbered(50)]
    assert taker.got[0] == Message(b"first", {"traceparent": "00-aa-bb-01", "x-name": "報告"}, "m-1")


async def test_handlers_run_side_by_side_up_to_prefetch(bus: Bus, queue: str) -> None:
    taker = Taker(open_gate=False)
    await _publish(bus, queue, *_numbered(10))
    await bus.subscribe(queue, taker, prefetch=4)
    await until(lambda: taker.running == 4)
    assert await bus.depth(queue) == 6
    taker.gate.set()
    await until(lambda: len(taker.finished) == 10)
    assert taker.most_running == 4
    assert taker.bodies == _numbered(10)


async def test_many_publishes_are_in_flight_at_once_and_keep_their_order(bus: Bus, queue: str) -> None:
    taker = Taker()
    await asyncio.gather(*(bus.publish(queue, Message(body)) for body in _numbered(500)))
    await bus.subscribe(queue, taker, prefetch=100)
    await until(lambda: len(taker.finished) == 500)
    assert taker.bodies == _numbered(500)


async def test_a_publish_to_a_queue_that_does_not_exist_is_unroutable(bus: Bus, queue: str) -> None:
    results = await asyncio.gather(
        *(bus.publish("sluice.nobody", Message(b"lost", message_id="same")) for _ in range(20)),
        bus.publish(queue, Message(b"kept", message_id="same")),
        return_exceptions=True,
    )
    assert [type(result) for result in results] == [Unroutable] * 20 + [type(None)]
    with pytest.raises(Unroutable):
        await bus.depth("sluice.nobody")
    with pytest.raises(Unroutable):
        await bus.subscribe("sluice.nobody", Taker(), prefetch=1)


async def test_a_body_that_no_broker_takes_is_refused(bus: Bus, queue: str) -> None:
    with pytest.raises(ValueError, match="the most is"):
        await bus.publish(queue, Message(bytes(16 * 1024 * 1024 + 1)))
    await bus.publish(queue, Message(b"the channel is still there"))


async def test_done_is_settled_for_good(broker: Broker, bus: Bus, queue: str) -> None:
    taker = Taker()
    await _publish(bus, queue, b"once")
    subscription = await bus.subscribe(queue, taker, prefetch=10)
    await until(lambda: len(taker.finished) == 1)
    await subscription.stop()
    other = await broker.bus()
    assert await other.depth(queue) == 0


async def test_retry_gives_the_same_message_again_after_the_wait(broker: Broker, bus: Bus, queue: str) -> None:
    taker = Taker(Retry(7.0), Retry(8.0))
    await _publish(bus, queue, b"stubborn")
    await bus.subscribe(queue, taker, prefetch=1)
    await until(lambda: len(taker.finished) == 3)
    assert taker.bodies == [b"stubborn"] * 3
    assert broker.clock.waits == [7.0, 8.0]


async def test_while_one_message_waits_for_its_retry_the_others_go_on(bus: Bus, queue: str) -> None:
    taker = Taker(Retry(50.0))
    await _publish(bus, queue, b"slow", b"second", b"third")
    await bus.subscribe(queue, taker, prefetch=2)
    await until(lambda: len(taker.finished) == 4)
    assert taker.bodies == [b"slow", b"second", b"third", b"slow"]


async def test_a_reject_lands_in_the_dead_queue_with_body_and_reason(bus: Bus, queue: str) -> None:
    taker = Taker(Reject("bad_batch", "no items \udc80" + "x" * 2000))
    await bus.publish(queue, Message(b"\xff\xfe", {"traceparent": "t"}, "m-9"))
    subscription = await bus.subscribe(queue, taker, prefetch=1)
    [letter] = await _dead(bus, 1)
    await subscription.stop()
    assert (letter.body, letter.message_id) == (b"\xff\xfe", "m-9")
    assert letter.headers["x-reason"] == "bad_batch"
    assert letter.headers["x-queue"] == queue
    assert letter.headers["x-detail"].startswith("no items ?x")
    assert letter.headers["traceparent"] == "t"
    assert await bus.depth(queue) == 0


async def test_poison_is_tried_with_pauses_and_given_up_and_innocents_go_through(  # field report 34
    broker: Broker, bus: Bus, queue: str
) -> None:
    tries: list[bytes] = []

    async def handler(message: Message) -> Outcome:
        tries.append(message.body)
        if message.body in POISON:
            raise ValueError("cannot read it")
        return Done()

    await _publish(bus, queue, *POISON, *_numbered(9))
    subscription = await bus.subscribe(queue, handler, prefetch=10)
    letters = await _dead(bus, 3)
    await subscription.stop()
    assert sorted(letter.body for letter in letters) == sorted(POISON)
    assert {letter.headers["x-reason"] for letter in letters} == {"handler_failed"}
    assert {letter.headers["x-detail"] for letter in letters} == {"ValueError: cannot read it"}
    assert [body for body in tries if body not in POISON] == _numbered(9)
    assert all(tries.count(body) == 5 for body in POISON)
    assert sorted(broker.clock.waits) == [1.0] * 3 + [2.0] * 3 + [4.0] * 3 + [8.0] * 3


async def test_a_handler_that_is_cancelled_from_within_counts_as_failed(bus: Bus, queue: str) -> None:
    async def handler(_: Message) -> Outcome:
        raise asyncio.CancelledError

    await _publish(bus, queue, b"unlucky")
    await bus.subscribe(queue, handler, prefetch=1)
    [letter] = await _dead(bus, 1)
    assert letter.headers["x-reason"] == "handler_failed"


async def test_a_dead_letter_that_fails_again_keeps_its_reason(bus: Bus, queue: str) -> None:
    first = await bus.subscribe(queue, Taker(Reject("too_old")), prefetch=1)
    await _publish(bus, queue, b"old")
    await until(lambda: _has(bus, DEAD_QUEUE, 1))
    await first.stop()
    again = Taker(Reject("disk_full"))
    second = await bus.subscribe(DEAD_QUEUE, again, prefetch=1)
    await until(lambda: len(again.finished) == 2)
    await second.stop()
    assert [message.headers["x-reason"] for message in again.got] == ["too_old", "too_old"]


async def _has(bus: Bus, queue: str, count: int) -> bool:
    return await bus.depth(queue) == count


async def test_stop_returns_when_everything_taken_is_settled(broker: Broker, bus: Bus, queue: str) -> None:
    taker = Taker(open_gate=False)
    await _publish(bus, queue, *_numbered(8))
    subscription = await bus.subscribe(queue, taker, prefetch=5)
    await until(lambda: taker.running == 5)
    stopping = asyncio.create_task(subscription.stop())
    await _publish(bus, queue, b"late")
    assert not stopping.done()
    taker.gate.set()
    await stopping
    assert taker.finished == _numbered(5)
    other, rest = await broker.bus(), Taker()
    await other.subscribe(queue, rest, prefetch=10)
    await until(lambda: len(rest.finished) == 4)
    assert rest.bodies == [b"5", b"6", b"7", b"late"]
    assert all(message.deliveries == 0 for message in rest.got)


async def test_abandon_puts_messages_back_in_order_and_counts_the_delivery(
    broker: Broker, bus: Bus, queue: str
) -> None:
    taker = Taker(open_gate=False)
    await _publish(bus, queue, *_numbered(60))
    subscription = await bus.subscribe(queue, taker, prefetch=50)
    await until(lambda: taker.running == 50)
    await subscription.abandon()
    assert sorted(taker.cancelled) == sorted(_numbered(50))
    other, rest = await broker.bus(), Taker()
    await other.subscribe(queue, rest, prefetch=10)
    await until(lambda: len(rest.finished) == 60)
    assert rest.bodies == _numbered(60)
    assert [message.deliveries for message in rest.got] == [1] * 50 + [0] * 10


async def test_closing_a_bus_gives_its_messages_back(broker: Broker, bus: Bus, queue: str) -> None:
    other, taker = await broker.bus(), Taker(open_gate=False)
    await _publish(bus, queue, *_numbered(3))
    await other.subscribe(queue, taker, prefetch=2)
    await until(lambda: taker.running == 2)
    await other.close()
    assert not other.ready()
    with pytest.raises(Unavailable):
        await other.publish(queue, Message(b"too late"))
    rest = Taker()
    await bus.subscribe(queue, rest, prefetch=1)
    await until(lambda: len(rest.finished) == 3)
    assert rest.bodies == _numbered(3)


async def test_the_second_subscriber_of_a_partition_is_idle_until_the_first_stops(
    broker: Broker, bus: Bus, queue: str
) -> None:
    first, second = Taker(), Taker()
    subscription = await bus.subscribe(queue, first, prefetch=2)
    await (await broker.bus()).subscribe(queue, second, prefetch=2)
    await _publish(bus, queue, *_numbered(10))
    await until(lambda: len(first.finished) == 10)
    assert second.got == []
    await subscription.stop()
    await _publish(bus, queue, b"after")
    await until(lambda: second.finished == [b"after"])
    assert first.bodies == _numbered(10)


async def test_an_inbox_belongs_to_the_bus_that_declared_it_and_goes_with_it(broker: Broker, bus: Bus) -> None:
    inbox = f"sluice.edge.{secrets.token_hex(4)}"
    owner, taker = await broker.bus(), Taker()
    await owner.declare(inbox, QueueKind.INBOX)
    await owner.subscribe(inbox, taker, prefetch=10)
    with pytest.raises(Unavailable):
        await bus.declare(inbox, QueueKind.INBOX)
    with pytest.raises(Unavailable):
        await bus.subscribe(inbox, Taker(), prefetch=1)
    await bus.publish(inbox, Message(b"answer"))
    await until(lambda: taker.bodies == [b"answer"])
    await owner.close()
    await until(lambda: _is_gone(bus, inbox))


async def _is_gone(bus: Bus, queue: str) -> bool:
    try:
        await bus.publish(queue, Message(b""))
    except Unroutable:
        return True
    return False


async def test_an_inbox_goes_with_its_last_subscription(bus: Bus) -> None:
    inbox = f"sluice.edge.{secrets.token_hex(4)}"
    await bus.declare(inbox, QueueKind.INBOX)
    subscription = await bus.subscribe(inbox, Taker(), prefetch=10)
    await subscription.stop()
    await until(lambda: _is_gone(bus, inbox))


async def test_an_inbox_that_nobody_reads_is_full_at_its_bound(bus: Bus) -> None:
    inbox = f"sluice.edge.{secrets.token_hex(4)}"
    await bus.declare(inbox, QueueKind.INBOX)
    body = bytes(8 * 1024 * 1024)
    with pytest.raises(Full):
        await _publish(bus, inbox, *[body] * (INBOX_MAX_BYTES // len(body) + 2))


async def test_a_bus_is_ready_once_it_is_open(bus: Bus, queue: str) -> None:
    await bus.subscribe(queue, Taker(), prefetch=1)
    assert bus.ready()
