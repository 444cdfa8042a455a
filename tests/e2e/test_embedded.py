"""One process, nothing installed: the main job, as an agent and a person see it."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest

from services.conformance import Options, check
from shared.agent.client import AgentClient
from tests.support.process import API_KEY, Process, Recording, embedded, started, until


@pytest.fixture
async def up(tmp_path: Path) -> AsyncIterator[Process]:
    async with started(embedded(tmp_path)) as process:
        yield process


@pytest.fixture
async def http() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession() as session:
        yield session


@pytest.mark.parametrize("card", ["im.recording", "im.console"])
async def test_it_conforms(up: Process, card: str) -> None:
    """No rule of `sluice conformance` fails; the fleet's test looks at the target as well."""
    report = await check(f"{up.url}/{card}", API_KEY, Options())
    assert [(r.rule_id, r.detail) for r in report.failed] == []
    assert len(report.passed) >= 120


async def test_a_final_is_sent_once_and_a_repeat_is_a_duplicate(up: Process, http: aiohttp.ClientSession) -> None:
    """Invariant 1, and message_conflict for other content."""
    recording = Recording(http, up.url)
    async with AgentClient.connect(f"{up.url}/im.recording", API_KEY) as agent:
        channel = (await agent.open()).channel_id
        first = await agent.send_message(channel, "hello", message_id="m1")
        again = await agent.send_message(channel, "hello", message_id="m1")
        other = await agent.send_message(channel, "other", message_id="m1")
    assert [first["status"], again["status"], other["status"]] == ["accepted", "duplicate", "rejected"]
    assert (other["code"], other["retryable"]) == ("message_conflict", False)
    assert [call["text"] for call in await recording.calls()] == ["hello"]


async def test_a_stream_ends_as_one_message_with_the_text_of_its_final(
    up: Process, http: aiohttp.ClientSession
) -> None:
    """The preview is finished by an edit; nothing is sent twice (field report 8)."""
    recording = Recording(http, up.url)
    async with AgentClient.connect(f"{up.url}/im.recording", API_KEY) as agent:
        channel = (await agent.open()).channel_id
        for sequence, text in enumerate(["Alpha ", "Beta ", "Gam"], start=1):
            await agent.send_delta(channel, "m1", sequence, text)

        async def previewed() -> list[dict[str, object]]:
            return await recording.calls("send")

        await until(previewed)
        assert (await agent.send_message(channel, "Alpha Beta Gamma.", message_id="m1"))["status"] == "accepted"
        await agent.send_delta(channel, "m1", 4, "late")
        assert (await agent.send_message(channel, "next", message_id="m2"))["status"] == "accepted"
    messages = [c for c in await recording.calls() if c["message_id"] == "m1" and c["kind"] in ("send", "edit")]
    assert [c["kind"] for c in messages].count("send") == 1
    assert messages[-1]["text"] == "Alpha Beta Gamma."


async def test_it_keeps_finals_once_over_a_kill(tmp_path: Path, http: aiohttp.ClientSession) -> None:
    """The ledger survives the process: the repeat after SIGKILL is a duplicate (records in SQLite)."""
    process = embedded(tmp_path)
    async with started(process):
        async with AgentClient.connect(f"{process.url}/im.recording", API_KEY) as agent:
            channel = (await agent.open()).channel_id
            connector = agent.connector_id
            assert (await agent.send_message(channel, "once", message_id="m1"))["status"] == "accepted"
        await process.kill()
    async with started(process):
        async with AgentClient.connect(f"{process.url}/im.recording", API_KEY, connector_id=connector) as agent:
            assert (await agent.open(channel)).channel_id == channel
            assert (await agent.send_message(channel, "once", message_id="m1"))["status"] == "duplicate"
        assert await Recording(http, process.url).calls() == []


async def test_a_persons_messages_come_in_order_and_again_until_acked(up: Process, http: aiohttp.ClientSession) -> None:
    """Same message_id, new packet_id; a reconnect brings what is unfinished only (field report 6)."""
    recording = Recording(http, up.url)
    async with AgentClient.connect(f"{up.url}/im.recording", API_KEY) as agent:
        channel, connector = (await agent.open()).channel_id, agent.connector_id
        for n in range(3):
            assert await recording.says(channel, f"p{n}", f"text {n}") == 202
        first = await anext(aiter(agent.messages))
        await agent.ack(first)
        second = await anext(aiter(agent.messages))
        assert [first.payload["message_id"], second.payload["message_id"]] == ["p0", "p1"]
    async with AgentClient.connect(f"{up.url}/im.recording", API_KEY, connector_id=connector) as agent:
        await agent.open(channel)
        seen = []
        for _ in range(2):
            message = await anext(aiter(agent.messages))
            seen.append(message.payload["message_id"])
            await agent.ack(message)
        assert seen == ["p1", "p2"]
    assert await recording.says(channel, "p1", "text 1") == 202


async def test_the_demo_agent_answers_a_line(tmp_path: Path, http: aiohttp.ClientSession) -> None:
    """`sluice up --demo` without a terminal: a typed line travels inbound, the reply streams and lands."""
    process = embedded(tmp_path)
    process.arguments = (*process.arguments, "--demo")
    async with started(process):

        async def channel_line() -> str:
            lines = process.log.read_text().splitlines()
            return next((line.split()[-1] for line in lines if line.startswith("demo agent")), "")

        channel = await until(channel_line)
        headers = {"Authorization": f"Bearer {API_KEY}"}
        async with http.ws_connect(f"{process.url}/im.console/chat/{channel}", headers=headers) as socket:
            await socket.send_json({"text": "hello out there"})
            events = []
            async with asyncio.timeout(30):
                async for frame in socket:
                    events.append(frame.json())
                    if events[-1]["event"] == "message" and events[-1].get("author", "agent") == "agent":
                        break
        kinds = [event["event"] for event in events]
        assert "preview" in kinds
        assert events[-1]["text"].startswith("You said “hello out there”. That is 3 words")
    assert API_KEY not in process.log.read_text().replace(f"API key       {API_KEY}", "")
