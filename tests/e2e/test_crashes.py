"""Processes and servers that die under load: nothing lost, nothing doubled, in order (invariants 1 and 4).

The platform is keyed here, as most are; what an unkeyed one leads to is in test_fleet.py, step by step.
"""

import asyncio
import signal
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import aiohttp
import pytest

from tests.e2e.fleets import fleet_of
from tests.support.persistent import PersistentAgent, persistent
from tests.support.process import Fleet, Process, Recording, until
from tests.support.rabbitmq import RabbitServer
from tests.support.redis import RedisServer

CHANNELS = 8
EACH = 12


@pytest.fixture
async def fleet(
    tmp_path: Path, rabbitmq_server: RabbitServer, redis_server: RedisServer, postgres_url: str
) -> AsyncIterator[Fleet]:
    async with fleet_of(tmp_path, rabbitmq_server.url, redis_server.url, postgres_url) as fleet:
        yield fleet


@pytest.fixture
async def http() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession() as session:
        yield session


async def under_load(
    http: aiohttp.ClientSession, edge: Process, meanwhile: Callable[[Recording], Awaitable[object]]
) -> Counter[str]:
    """Sends finals on several channels, has something happen in their midst, and counts what came of all."""
    recording = Recording(http, edge.url)
    await recording.script(keyed=True, steps=[{"kind": "send", "latency_ms": 40, "times": 0}])
    async with persistent(lambda: edge.url, CHANNELS) as agent:
        talks = [asyncio.create_task(talk(agent, channel)) for channel in agent.channels]

        async def some() -> bool:
            return sum(agent.acks.values()) >= CHANNELS

        await until(some)
        await meanwhile(recording)
        await asyncio.gather(*talks)
        calls = await Recording(http, edge.url).calls("send")
        counts = Counter(agent.acks)
        sends = Counter((call["channel"], call["message_id"]) for call in calls)
        counts["lost"] = CHANNELS * EACH - len(sends)
        counts["doubled"] = sum(sends.values()) - len(sends)
        counts["disordered"] = sum(
            [call["text"] for call in calls if call["channel"] == channel] != [f"{n}" for n in range(EACH)]
            for channel in agent.channels
        )
        print(f"counts: {dict(counts)} sockets: {agent.sockets}")  # noqa: T201 - the figures of the issue
    return counts


async def talk(agent: PersistentAgent, channel: str) -> None:
    for n in range(EACH):
        await agent.send(channel, f"m{n}", f"{n}")


def require_whole(counts: Counter[str]) -> None:
    assert (counts["lost"], counts["doubled"], counts["disordered"]) == (0, 0, 0), counts
    assert counts["accepted"] + counts["duplicate"] == CHANNELS * EACH, counts


async def test_an_edge_killed_under_load_loses_and_doubles_nothing(fleet: Fleet, http: aiohttp.ClientSession) -> None:
    """Kill -9 of the edge; the agent finds another, opens its channels again and sends what is not acked."""
    edge = await fleet.add("edge")
    await fleet.add("delivery")

    async def kill(recording: Recording) -> None:
        del recording
        await edge.kill()
        await edge.start()

    require_whole(await under_load(http, edge, kill))


async def test_a_broker_restarted_under_load_loses_and_doubles_nothing(
    fleet: Fleet, http: aiohttp.ClientSession, rabbitmq_server: RabbitServer
) -> None:
    """RabbitMQ goes in order and comes back with its data; every role mends its links."""
    edge = await fleet.add("edge")
    await fleet.add("delivery")

    async def restart(recording: Recording) -> None:
        del recording
        await asyncio.to_thread(rabbitmq_server.restart)

    require_whole(await under_load(http, edge, restart))


async def test_a_state_restarted_empty_under_load_loses_and_doubles_nothing(
    fleet: Fleet, http: aiohttp.ClientSession, redis_server: RedisServer
) -> None:
    """Redis dies and comes back with nothing: leases are taken anew, the ledger is in SQL.

    The recording target's own book is in that Redis too, so only acks and order can be counted here.
    """
    edge = await fleet.add("edge")
    await fleet.add("delivery")

    async def restart(recording: Recording) -> None:
        del recording
        await asyncio.to_thread(redis_server.restart)

    counts = await under_load(http, edge, restart)
    assert counts["accepted"] + counts["duplicate"] == CHANNELS * EACH, counts
    assert counts["doubled"] == 0


async def test_a_worker_stopped_past_its_lease_sends_nothing_again_when_it_wakes(
    fleet: Fleet, http: aiohttp.ClientSession
) -> None:
    """SIGSTOP for longer than the lease, another takes over, SIGCONT: the platform is unkeyed and sees each once."""
    edge = await fleet.add("edge")
    sleeper = await fleet.add("delivery")
    recording = Recording(http, edge.url)
    await recording.script(keyed=False, steps=[{"kind": "send", "latency_ms": 40, "times": 0}])
    async with persistent(lambda: edge.url, CHANNELS, patience=60) as agent:
        talks = [asyncio.create_task(talk(agent, channel)) for channel in agent.channels]

        async def some() -> bool:
            return sum(agent.acks.values()) >= CHANNELS

        await until(some)
        sleeper.signal(signal.SIGSTOP)
        try:
            await fleet.add("delivery")
            await asyncio.wait(talks, timeout=90)
        finally:
            sleeper.signal(signal.SIGCONT)
        await asyncio.gather(*talks)
        sends = Counter((call["channel"], call["message_id"]) for call in await recording.calls("send"))
        print(f"counts: {dict(agent.acks)}")  # noqa: T201 - the figures of the issue
    assert max(sends.values()) == 1
    uncertain = agent.acks["rejected delivery_uncertain"]
    assert agent.acks["accepted"] + agent.acks["duplicate"] + uncertain == CHANNELS * EACH
    assert len(sends) >= CHANNELS * EACH - uncertain


async def test_an_aggregator_killed_in_mid_stream_is_succeeded_without_a_gap(
    fleet: Fleet, http: aiohttp.ClientSession
) -> None:
    """Kill -9; the next one goes on from what was stored, the preview reaches the whole text, the final edits it."""
    edge = await fleet.add("edge")
    await fleet.add("delivery")
    first = await fleet.add("aggregator")
    recording = Recording(http, edge.url)
    async with persistent(lambda: edge.url, 1) as agent:
        (channel,) = agent.channels
        words = [f"w{n} " for n in range(1, 61)]
        for n, word in enumerate(words[:30], 1):
            await agent.delta(channel, "m1", n, word)

        async def shows(count: int) -> bool:
            calls = await recording.calls("")
            return any(call["message_id"] == "m1" and call["text"] == "".join(words[:count]) for call in calls)

        await until(lambda: shows(30))
        await first.kill()
        for n, word in enumerate(words[30:], 31):
            await agent.delta(channel, "m1", n, word)
        await fleet.add("aggregator")
        await until(lambda: shows(60), 60)
        assert (await agent.send(channel, "m1", "".join(words)))["status"] == "accepted"
    calls = [call for call in await recording.calls() if call["message_id"] == "m1"]
    assert [call["kind"] for call in calls].count("send") == 1
    assert calls[-1]["text"] == "".join(words)
    shown = [len(str(call["text"])) for call in calls]
    assert shown == sorted(shown), "a preview went back"


async def test_a_storm_of_reconnects_loses_and_doubles_nothing(fleet: Fleet, http: aiohttp.ClientSession) -> None:
    """The edge is stopped in order three times in a row under load; the agent comes back each time."""
    edge = await fleet.add("edge")
    await fleet.add("delivery")

    async def storm(recording: Recording) -> None:
        del recording
        for _ in range(3):
            assert await edge.stop() == 0
            await edge.start()
            await asyncio.sleep(0.5)

    require_whole(await under_load(http, edge, storm))
