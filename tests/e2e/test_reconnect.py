"""Agents that lose their edge and come back, many at once (field report 31, the server's side of it)."""

import asyncio
import contextlib
import re
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest

from shared.agent.client import AgentClient
from shared.agent.model import UserMessage
from tests.support.process import API_KEY, Process, Recording, embedded, started, until
from tests.support.raw import raw

AGENTS = 100
QUICK = {
    "SLUICE_LIMIT_INBOUND_ACK_SECONDS": "1",
    "SLUICE_LIMIT_RETRY_FIRST_SECONDS": "0.2",
    "SLUICE_LIMIT_RETRY_MOST_SECONDS": "0.5",
}
PATIENT = {"SLUICE_LIMIT_INBOUND_ACK_SECONDS": "60"}


@pytest.fixture
async def http() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession() as session:
        yield session


async def gauge(http: aiohttp.ClientSession, process: Process) -> int:
    """How many sockets the edge says are open."""
    async with http.get(f"{process.admin_url}/metrics") as answer:
        found = re.search(r"^sluice_edge_sockets (\S+)$", await answer.text(), re.MULTILINE)
    assert found is not None
    return int(float(found[1]))


def files_open(process: Process) -> int:
    return len(list(Path(f"/proc/{process.pid}/fd").iterdir()))


async def dial(stack: contextlib.AsyncExitStack, process: Process, connector_id: str = "") -> AgentClient:
    connecting = AgentClient.connect(f"{process.url}/im.recording", API_KEY, connector_id=connector_id, timeout=60)
    return await stack.enter_async_context(connecting)


async def next_of(agent: AgentClient, seconds: float = 30) -> UserMessage:
    return await asyncio.wait_for(agent.messages.get(), seconds)


def ids(messages: list[UserMessage]) -> list[str]:
    return [message.payload["message_id"] for message in messages]


@pytest.mark.timeout(240)
async def test_a_restart_closes_with_1012_and_brings_back_only_what_was_not_acked(
    tmp_path: Path, http: aiohttp.ClientSession
) -> None:
    """100 agents: 1012, back with their ids, each unacked message again until acked, none after its ack (report 31)."""
    process = embedded(tmp_path, **QUICK)
    known: list[tuple[str, str]] = []
    async with started(process), contextlib.AsyncExitStack() as stack:
        agents = [await dial(stack, process) for _ in range(AGENTS)]
        channels = [(await agent.open()).channel_id for agent in agents]
        known = [(agent.connector_id, channel) for agent, channel in zip(agents, channels, strict=True)]
        recording = Recording(http, process.url)
        for channel in channels:
            for n in range(3):
                assert await recording.says(channel, f"p{n}", f"text {n}") == 202

        async def take_one(agent: AgentClient) -> None:
            message = await next_of(agent)
            assert ids([message]) == ["p0"]
            await agent.ack(message)
            while ids([await next_of(agent)]) != ["p1"]:  # p0 may be on its way again; p1 says that its ack is in
                pass

        async with asyncio.timeout(60):
            await asyncio.gather(*(take_one(agent) for agent in agents))
        stopping = asyncio.create_task(process.stop())
        assert set(await asyncio.gather(*(agent.wait_closed() for agent in agents))) == {1012}
        assert await stopping == 0
    async with started(process), contextlib.AsyncExitStack() as stack:
        agents = await asyncio.gather(*(dial(stack, process, connector) for connector, _ in known))
        assert [agent.connector_id for agent in agents] == [connector for connector, _ in known]
        opened = await asyncio.gather(*(a.open(channel) for a, (_, channel) in zip(agents, known, strict=True)))
        assert [one.channel_id for one in opened] == [channel for _, channel in known]

        async def take_rest(agent: AgentClient) -> list[UserMessage]:
            """Lets p1 come twice, then accepts what comes; what comes after that is one too many."""
            first, again = await next_of(agent), await next_of(agent)
            assert ids([first, again]) == ["p1", "p1"]
            assert first.packet["packet_id"] != again.packet["packet_id"]
            assert first.payload["text"] == again.payload["text"] == "text 1"
            await agent.ack(again)
            message = await next_of(agent)
            while ids([message]) == ["p1"]:  # it crossed its ack on the way
                message = await next_of(agent)
            await agent.ack(message)
            return [message]

        async with asyncio.timeout(60):
            assert [ids(seen) for seen in await asyncio.gather(*map(take_rest, agents))] == [["p2"]] * AGENTS
        await asyncio.sleep(2.0)  # an ack timeout and a retry
        late = [ids([agent.messages._items.get_nowait()]) for agent in agents if not agent.messages.empty()]
        assert late == []
    assert "Traceback" not in process.log.read_text()


async def test_a_socket_that_takes_over_a_channel_gets_what_is_owed_at_once(
    tmp_path: Path, http: aiohttp.ClientSession
) -> None:
    """An impatient client's second socket: the message in flight goes there, without the first one's wait (31)."""
    async with started(embedded(tmp_path, **PATIENT)) as process, contextlib.AsyncExitStack() as stack:
        recording = Recording(http, process.url)
        first = await dial(stack, process)
        channel = (await first.open()).channel_id
        for n in range(3):
            assert await recording.says(channel, f"p{n}", f"text {n}") == 202
        assert ids([await next_of(first)]) == ["p0"]
        second = await dial(stack, process, first.connector_id)
        await second.open(channel)
        message = await next_of(second, 10)
        assert ids([message]) == ["p0"]
        ack = await first.send_message(channel, "on the old socket")
        assert (ack["status"], ack["code"], ack["retryable"]) == ("rejected", "channel_not_open", True)
        await first.close()  # its end must not take the channel from the second
        await second.ack(message)
        message = await next_of(second, 10)
        assert ids([message]) == ["p1"]
        await second.open(channel)  # once more on the same socket: nothing is in flight twice
        await asyncio.sleep(0.5)
        assert second.messages.empty()
        await second.close()
        third = await dial(stack, process, first.connector_id)
        await third.open(channel)
        seen = []
        for _ in range(2):
            seen.append(await next_of(third, 10))
            await third.ack(seen[-1])
        assert ids(seen) == ["p1", "p2"]
        assert (await third.send_message(channel, "hello"))["status"] == "accepted"


async def test_a_storm_of_short_sockets_leaves_nothing_behind(tmp_path: Path, http: aiohttp.ClientSession) -> None:
    """Five times 100 sockets that end at every stage, cleanly or not: both counts return to what they were (31)."""
    async with started(embedded(tmp_path)) as process, contextlib.AsyncExitStack() as stack:
        agent = await dial(stack, process)
        channel = (await agent.open()).channel_id
        recording = Recording(http, process.url)
        sockets, files = await gauge(http, process), files_open(process)
        authorized = {"Authorization": f"Bearer {API_KEY}"}

        async def visit(n: int) -> None:
            async with raw(process.url) as socket:
                if n % 5 == 0:
                    return  # TCP only
                await socket.upgrade("/im.recording/ws", authorized)
                if n % 5 == 1:
                    return  # gone without a close frame
                await socket.hello("im.recording")
                if n % 5 == 2:
                    await socket.send(b"\x03\xe8", 8)
                    return
                await socket.request("channel.open")
                if n % 5 == 3:
                    await socket.send(b'{"type":')  # in the middle of things

        for _ in range(5):
            await asyncio.gather(*(visit(n) for n in range(AGENTS)))

        async def settled() -> bool:
            return await gauge(http, process) == sockets and files_open(process) <= files + 5

        await until(settled)
        assert await recording.says(channel, "p1", "still here?") == 202
        message = await next_of(agent)
        await agent.ack(message)
        assert (await agent.send_message(channel, "yes"))["status"] == "accepted"
        assert "Traceback" not in process.log.read_text()
