"""What only a real broker can do to a bus: go away, come back, and delete queues under a consumer."""

import asyncio
import secrets
from collections.abc import AsyncIterator

import pytest

from shared.bus.amqp import AmqpBus
from shared.bus.port import BusError, Message, QueueKind, Unavailable, Unroutable
from tests.contract.buses import FastClock, Taker, until
from tests.support.rabbitmq import RabbitServer


@pytest.fixture
async def bus(rabbitmq_server: RabbitServer) -> AsyncIterator[AmqpBus]:
    """A client of a broker that may be broken."""
    bus = AmqpBus(rabbitmq_server.url, FastClock())
    await bus.start()
    yield bus
    await bus.close()


@pytest.fixture
async def queue(bus: AmqpBus) -> str:
    """A partition queue of the test's own."""
    name = f"sluice.test.{secrets.token_hex(4)}"
    await bus.declare(name, QueueKind.PARTITION)
    return name


async def _insist(bus: AmqpBus, queue: str, body: bytes) -> None:
    """Publishes until the broker has it, as whoever owes a message does."""

    async def taken() -> bool:
        try:
            await bus.publish(queue, Message(body))
        except BusError:
            return False
        return True

    await until(taken)


async def test_a_closed_connection_is_mended_and_what_was_under_way_comes_again(
    rabbitmq_server: RabbitServer, bus: AmqpBus, queue: str
) -> None:
    taker, lost = Taker(open_gate=False), asyncio.Event()
    await bus.subscribe(queue, taker, prefetch=2, on_lost=lost.set)
    for body in (b"a", b"b", b"c"):
        await bus.publish(queue, Message(body))
    await until(lambda: taker.running == 2)
    await asyncio.to_thread(rabbitmq_server.close_connections)
    await asyncio.wait_for(lost.wait(), 20)
    await until(lambda: len(taker.cancelled) == 2)
    taker.gate.set()
    await until(lambda: taker.finished == [b"a", b"b", b"c"])
    assert sorted(taker.cancelled) == [b"a", b"b"]
    assert [message.deliveries for message in taker.got] == [0, 0, 1, 1, 0]
    await until(bus.ready)


async def test_nothing_is_lost_when_the_broker_goes_down_and_publishes_in_flight_are_told_at_once(
    rabbitmq_server: RabbitServer, bus: AmqpBus, queue: str
) -> None:
    taker, confirmed = Taker(), [f"before-{number}".encode() for number in range(20)]
    await bus.subscribe(queue, taker, prefetch=10)
    for body in confirmed:
        await bus.publish(queue, Message(body))
    flood = [asyncio.create_task(bus.publish(queue, Message(bytes(100_000)))) for _ in range(50)]
    await asyncio.sleep(0)
    await asyncio.to_thread(rabbitmq_server.stop)
    results = await asyncio.wait_for(asyncio.gather(*flood, return_exceptions=True), 10)
    assert {type(result) for result in results} <= {Unavailable, type(None)}
    await until(lambda: not bus.ready())
    with pytest.raises(Unavailable):
        await bus.publish(queue, Message(b"away"))
    await asyncio.to_thread(rabbitmq_server.start)
    await _insist(bus, queue, b"after")
    await until(lambda: b"after" in taker.finished)
    await until(bus.ready)
    assert set(confirmed) <= set(taker.finished)


async def test_a_queue_deleted_under_its_consumer_is_noticed_and_made_again(
    rabbitmq_server: RabbitServer, bus: AmqpBus, queue: str
) -> None:
    taker, lost = Taker(), asyncio.Event()
    await bus.subscribe(queue, taker, prefetch=10, on_lost=lost.set)
    await asyncio.to_thread(rabbitmq_server.control, "delete_queue", queue)
    await asyncio.wait_for(lost.wait(), 20)
    await until(bus.ready)
    await _insist(bus, queue, b"again")
    await until(lambda: taker.finished == [b"again"])


async def test_an_inbox_is_made_again_with_the_connection(rabbitmq_server: RabbitServer, bus: AmqpBus) -> None:
    inbox, taker, lost = f"sluice.edge.{secrets.token_hex(4)}", Taker(), asyncio.Event()
    await bus.declare(inbox, QueueKind.INBOX)
    await bus.subscribe(inbox, taker, prefetch=10, on_lost=lost.set)
    await asyncio.to_thread(rabbitmq_server.close_connections)
    await asyncio.wait_for(lost.wait(), 20)
    await _insist(bus, inbox, b"answer")
    await until(lambda: taker.finished == [b"answer"])


async def test_a_stop_while_the_broker_is_lost_returns(rabbitmq_server: RabbitServer, bus: AmqpBus, queue: str) -> None:
    taker = Taker(open_gate=False)
    subscription = await bus.subscribe(queue, taker, prefetch=10)
    await bus.publish(queue, Message(b"under way"))
    await until(lambda: taker.running == 1)
    stopping = asyncio.create_task(subscription.stop())
    await asyncio.to_thread(rabbitmq_server.close_connections)
    await asyncio.wait_for(stopping, 20)
    assert taker.cancelled == [b"under way"]
    await until(bus.ready)
    rest = Taker()
    await bus.subscribe(queue, rest, prefetch=10)
    await until(lambda: rest.finished == [b"under way"])


async def test_a_broker_that_is_not_there_is_unavailable(rabbitmq_server: RabbitServer) -> None:
    bus = AmqpBus(rabbitmq_server.url.replace(str(rabbitmq_server.port), "1"), FastClock())
    with pytest.raises(Unavailable):
        await bus.start()
    assert not bus.ready()
    await bus.close()


async def test_each_vhost_is_a_bus_of_its_own(rabbitmq_server: RabbitServer, bus: AmqpBus, queue: str) -> None:
    other = AmqpBus(await asyncio.to_thread(rabbitmq_server.add_vhost), FastClock())
    await other.start()
    with pytest.raises(Unroutable):
        await other.publish(queue, Message(b"elsewhere"))
    await bus.publish(queue, Message(b"here"))
    await other.close()
