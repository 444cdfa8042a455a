"""The agent's client against the scripted Connector."""

import asyncio

import pytest

from shared.agent.client import AgentClient
from shared.agent.errors import AnswerTimeout, ConnectionLost, HttpRefused, RequestFailed
from tests.support.scripted_connector import API_KEY, ScriptedConnector

FORM = {"flow_id": "login", "input": {"token": "t"}}


async def test_a_final_is_acked_and_its_repeat_is_a_duplicate() -> None:
    async with ScriptedConnector().serve() as url, AgentClient.connect(url, API_KEY) as agent:
        channel = (await agent.open()).channel_id
        await agent.request("auth.start", channel, FORM)
        statuses = [(await agent.send_message(channel, "hi", message_id="m1"))["status"] for _ in range(2)]
    assert statuses == ["accepted", "duplicate"]


async def test_refusals_are_told_apart() -> None:
    connector = ScriptedConnector()
    async with connector.serve() as url:
        with pytest.raises(HttpRefused, match="401"):
            async with AgentClient.connect(url, "wrong"):
                pass
        with pytest.raises(RequestFailed) as refused:
            async with AgentClient.connect(url, API_KEY, card_id="im.other"):
                pass
        assert refused.value.code == "connector_card_id_mismatch"


async def test_what_is_awaited_ends_with_its_timeout_or_its_socket() -> None:
    connector = ScriptedConnector()
    async with connector.serve() as url, AgentClient.connect(url, API_KEY) as agent:
        connector.spoil = lambda _received, _answer: []
        with pytest.raises(AnswerTimeout, match="the answer to ping"):
            await agent.request("ping", timeout=0.05)
        waiting = asyncio.create_task(agent.request("ping"))
        await asyncio.sleep(0)
        await agent.close()
        with pytest.raises(ConnectionLost):
            await waiting
        assert [message async for message in agent.messages] == []


async def test_a_persons_message_is_acked_by_itself() -> None:
    connector = ScriptedConnector()
    async with connector.serve() as url, AgentClient.connect(url, API_KEY, auto_ack=True, queue_size=2) as agent:
        channel = (await agent.open()).channel_id
        for text in ("one", "two"):
            await connector.speak(channel, text)
        got = [(await agent.messages.get()).payload["text"] for _ in range(2)]
        await agent.request("ping")
        assert got == ["one", "two"]
        assert connector.channels[channel].outbox == {}


async def test_an_error_that_nobody_awaits_is_kept() -> None:
    async with ScriptedConnector().serve() as url, AgentClient.connect(url, API_KEY) as agent:
        channel = (await agent.open()).channel_id
        packet_id = await agent.send_delta(channel, "m1", 2, "too early")
        error = await agent.errors.get()
    assert (error["reply_to"], error["error"]["code"]) == (packet_id, "sequence_gap")
