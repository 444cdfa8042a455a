"""The fleet on real servers: conformance, two workers, and processes killed at each step of a delivery."""

import asyncio
import secrets
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest

from services.conformance import Options, check
from shared.agent.client import AgentClient
from tests.e2e.fleets import fleet_of
from tests.support.process import API_KEY, Fleet, Recording, until
from tests.support.redis import RedisServer


@pytest.fixture
async def fleet(
    tmp_path: Path, rabbitmq_url: str, redis_server: RedisServer, postgres_url: str
) -> AsyncIterator[Fleet]:
    quick = {"SLUICE_LIMIT_INBOUND_ACK_SECONDS": "2"}  # the checker waits for a redelivery
    async with fleet_of(tmp_path, rabbitmq_url, redis_server.url, postgres_url, **quick) as fleet:
        yield fleet


@pytest.fixture
async def http() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession() as session:
        yield session


async def test_the_fleet_conforms(fleet: Fleet, http: aiohttp.ClientSession) -> None:
    """The same rules as embedded, with every role in a process of its own; secrets stay out of all logs."""
    edge = await fleet.add("edge")
    for role in ("delivery", "aggregator", "listener"):
        await fleet.add(role)
    recording = Recording(http, edge.url)

    async def shown(channel: str) -> list[str]:
        return [str(call["text"]) for call in await recording.calls("send") if call["channel"] == channel]

    async def speak(channel: str, text: str) -> None:
        assert await recording.says(channel, "p" + secrets.token_hex(6), text) == 202

    report = await check(f"{edge.url}/im.recording", API_KEY, Options(shown=shown, speak=speak))
    assert [(r.rule_id, r.detail) for r in report.failed] == []
    assert {r.rule_id for r in report.skipped} <= {
        "auth.wrong_form",
        "auth.required",
        "upload.too_large",
        "whole.files",
        "stream.limits",
    }
    assert API_KEY not in fleet.logs()


@pytest.mark.parametrize("step", ["before_call", "after_call", "after_receipt", "before_settle"])
@pytest.mark.parametrize("keyed", [True, False])
async def test_a_worker_killed_at_a_step_sends_nothing_twice_and_loses_nothing(
    fleet: Fleet,
    http: aiohttp.ClientSession,
    step: str,
    keyed: bool,  # noqa: FBT001
) -> None:
    """Kill -9 by the script; another worker ends it. Uncertain only after an unkeyed call (field reports 1, 4)."""
    edge = await fleet.add("edge")
    doomed = await fleet.add("delivery")
    recording = Recording(http, edge.url)
    await recording.script(keyed=keyed, steps=[{"crash": step}])
    async with AgentClient.connect(f"{edge.url}/im.recording", API_KEY, timeout=60) as agent:
        channel = (await agent.open()).channel_id
        sending = asyncio.create_task(agent.send_message(channel, "pay 30", message_id="m1", timeout=60))
        await doomed.wait_dead()
        await fleet.add("delivery")
        ack = await sending
        again = await agent.send_message(channel, "pay 30", message_id="m1", timeout=60)
    sends = await recording.calls("send")
    assert len(sends) == 1, sends
    if step == "after_call" and not keyed:
        assert (ack["status"], ack["code"], ack["retryable"]) == ("rejected", "delivery_uncertain", False)
        assert again["code"] == "delivery_uncertain"
    else:
        assert ack["status"] in ("accepted", "duplicate")
        assert again["status"] == "duplicate"


async def test_two_workers_share_the_partitions_and_one_takes_over_all(
    fleet: Fleet, http: aiohttp.ClientSession
) -> None:
    """200 finals over 20 channels, a worker killed in the middle: each once, in order (invariants 1 and 4)."""
    edge = await fleet.add("edge")
    first = await fleet.add("delivery")
    await fleet.add("delivery")
    recording = Recording(http, edge.url)
    async with AgentClient.connect(f"{edge.url}/im.recording", API_KEY, timeout=60) as agent:
        channels = [(await agent.open()).channel_id for _ in range(20)]

        async def talk(channel: str) -> list[str]:
            acks = [await agent.send_message(channel, f"{n}", message_id=f"m{n}", timeout=60) for n in range(10)]
            return [str(ack["status"]) for ack in acks]

        talks = [asyncio.create_task(talk(channel)) for channel in channels]

        async def some() -> bool:
            return len(await recording.calls("send")) > 40

        await until(some)
        await first.kill()
        statuses = await asyncio.gather(*talks)
    assert all(status in ("accepted", "duplicate") for row in statuses for status in row)
    sends = await recording.calls("send")
    assert len(sends) == 200
    for channel in channels:
        assert [c["text"] for c in sends if c["channel"] == channel] == [str(n) for n in range(10)]


async def test_a_flushed_state_loses_no_stream_and_repeats_no_final(
    fleet: Fleet, http: aiohttp.ClientSession, redis_server: RedisServer
) -> None:
    """FLUSHALL in mid-stream: the receipts are in SQL, the stream is hot in its aggregator (field report 37)."""
    edge = await fleet.add("edge")
    await fleet.add("delivery")
    await fleet.add("aggregator")
    recording = Recording(http, edge.url)
    async with AgentClient.connect(f"{edge.url}/im.recording", API_KEY, timeout=60) as agent:
        channel = (await agent.open()).channel_id
        assert (await agent.send_message(channel, "before", message_id="m0"))["status"] == "accepted"
        for n in range(1, 11):
            await agent.send_delta(channel, "m1", n, f"{n} ")

        async def previewed() -> bool:
            return any(call["message_id"] == "m1" for call in await recording.calls("send"))

        await until(previewed)
        await flush(redis_server)
        for n in range(11, 21):
            await agent.send_delta(channel, "m1", n, f"{n} ")
        text = "".join(f"{n} " for n in range(1, 21))
        assert (await agent.send_message(channel, text, message_id="m1"))["status"] == "accepted"
        assert (await agent.send_message(channel, "before", message_id="m0"))["status"] == "duplicate"
        assert agent.errors.empty()
    calls = [c for c in await recording.calls() if c["message_id"] == "m1"]
    assert calls[-1]["text"] == text
    assert [c["kind"] for c in calls].count("send") <= 1


async def test_sigterm_ends_every_role_cleanly(fleet: Fleet) -> None:
    """Exit code 0, the socket closed with 1012."""
    edge = await fleet.add("edge")
    roles = [await fleet.add(role) for role in ("delivery", "aggregator", "listener")]
    async with AgentClient.connect(f"{edge.url}/im.recording", API_KEY) as agent:
        stopping = asyncio.create_task(edge.stop())
        assert await agent.wait_closed() == 1012
        assert await stopping == 0
    assert [await role.stop() for role in roles] == [0, 0, 0]


async def flush(server: RedisServer) -> None:
    """FLUSHALL, as an operator would."""
    port = server.url.rsplit(":", 1)[1].split("/")[0]
    process = await asyncio.create_subprocess_exec(
        "redis-cli", "-p", port, "FLUSHALL", stdout=asyncio.subprocess.DEVNULL
    )
    assert await process.wait() == 0
