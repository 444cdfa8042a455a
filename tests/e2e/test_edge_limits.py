"""What the edge does about the silent, the slow and the malformed: each pays for itself and for nobody else."""

import asyncio
import contextlib
import json
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import pytest_asyncio

from shared.agent.client import AgentClient
from shared.agent.model import UserMessage
from shared.wire.packets import SCHEMA, SUBPROTOCOL
from tests.support.process import API_KEY, Process, Recording, embedded, started, until
from tests.support.raw import BINARY, PING, PONG, TEXT, RawSocket, raw

pytestmark = pytest.mark.asyncio(loop_scope="module")

DEADLINE_SECONDS = 4.0
PING_SECONDS = 3.0
BUFFER_BYTES = 1024 * 1024
MANY = 200
AUTHORIZED = {"Authorization": f"Bearer {API_KEY}"}
WS = "/im.recording/ws"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def up(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Process]:
    settings = {
        "SLUICE_LIMIT_HANDSHAKE_SECONDS": str(DEADLINE_SECONDS),
        "SLUICE_LIMIT_HELLO_SECONDS": str(DEADLINE_SECONDS),
        "SLUICE_LIMIT_IDLE_SECONDS": str(DEADLINE_SECONDS),
        "SLUICE_LIMIT_PING_SECONDS": str(PING_SECONDS),
        "SLUICE_LIMIT_SEND_BUFFER_BYTES": str(BUFFER_BYTES),
    }
    async with started(embedded(tmp_path_factory.mktemp("edge"), **settings)) as process:
        yield process


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def http() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession() as session:
        yield session


@pytest_asyncio.fixture(loop_scope="module")
async def agent(up: Process) -> AsyncIterator[AgentClient]:
    async with AgentClient.connect(f"{up.url}/im.recording", API_KEY, timeout=30) as agent:
        yield agent


async def sockets(http: aiohttp.ClientSession, process: Process) -> int:
    """How many sockets the edge says are open."""
    async with http.get(f"{process.admin_url}/metrics") as answer:
        found = re.search(r"^sluice_edge_sockets (\S+)$", await answer.text(), re.MULTILINE)
    assert found is not None
    return int(float(found[1]))


def resident(process: Process) -> int:
    """Bytes of memory that the process holds."""
    found = re.search(r"^VmRSS:\s+(\d+) kB$", Path(f"/proc/{process.pid}/status").read_text(), re.MULTILINE)
    assert found is not None
    return int(found[1]) * 1024


async def many(stack: contextlib.AsyncExitStack, process: Process, count: int) -> list[RawSocket]:
    return [await stack.enter_async_context(raw(process.url)) for _ in range(count)]


async def works(process: Process) -> None:
    """A client like any other is served."""
    async with AgentClient.connect(f"{process.url}/im.recording", API_KEY, timeout=30) as agent:
        channel = (await agent.open()).channel_id
        assert (await agent.send_message(channel, "hello"))["status"] == "accepted"


# Report 45: the silent


async def gone(socket: RawSocket) -> None:
    """Reads until the other side is gone."""
    while await socket.read():
        pass


@pytest.mark.parametrize(
    "first", [b"", b"GET /healthz HTTP/1.1\r\nHost: test\r\n\r\n"], ids=["new", "after one request"]
)
async def test_connections_that_dribble_a_request_are_cut_and_hold_up_nobody(up: Process, first: bytes) -> None:
    """200 sockets that send a header byte by byte are gone by the deadline; meanwhile a client is served (45)."""
    async with contextlib.AsyncExitStack() as stack:
        dribblers = await many(stack, up, MANY)

        async def dribble(socket: RawSocket) -> None:
            reading = asyncio.create_task(gone(socket))
            with contextlib.suppress(ConnectionError):
                await socket.write(first)
                for byte in b"GET /im.recording/ws HTTP/1.1\r\nHost: " + b"x" * 500:
                    await socket.write(bytes([byte]))
                    done, _ = await asyncio.wait([reading], timeout=0.5)
                    if done:
                        break
            await reading

        dribbling = [asyncio.create_task(dribble(socket)) for socket in dribblers]
        await works(up)
        assert not any(task.done() for task in dribbling)
        await asyncio.wait_for(asyncio.gather(*dribbling), 5 * DEADLINE_SECONDS)


async def test_sockets_that_never_say_hello_are_closed_with_1008(up: Process, http: aiohttp.ClientSession) -> None:
    """200 upgraded and silent; one that only sends pings is as silent as they are (field report 45)."""
    before = await sockets(http, up)
    async with contextlib.AsyncExitStack() as stack:
        silent = await many(stack, up, MANY)
        await asyncio.gather(*(socket.upgrade(WS, AUTHORIZED) for socket in silent))

        async def keep_pinging(socket: RawSocket) -> None:
            with contextlib.suppress(ConnectionError):
                for _ in range(100):
                    await socket.send(b"", PING)
                    await asyncio.sleep(0.5)

        pinging = asyncio.create_task(keep_pinging(silent[0]))
        assert await sockets(http, up) == before + MANY
        await works(up)
        codes = await asyncio.wait_for(asyncio.gather(*(s.close_code() for s in silent)), 5 * DEADLINE_SECONDS)
        pinging.cancel()
    assert set(codes) == {1008}

    async def back() -> bool:
        return await sockets(http, up) == before

    await until(back)


@pytest.mark.parametrize("opcode", [TEXT, BINARY], ids=["text", "binary"])
@pytest.mark.parametrize("pieces", [1, 8])
async def test_a_large_frame_before_hello_is_closed_with_1009(up: Process, opcode: int, pieces: int) -> None:
    """512 KiB, whole or in fragments, is not even parsed (field report 45)."""
    async with raw(up.url) as socket:
        await socket.upgrade(WS, AUTHORIZED)
        piece = b"[" * (512 * 1024 // pieces)
        for n in range(pieces):
            await socket.send(piece, opcode if n == 0 else 0, fin=n == pieces - 1)
        assert await asyncio.wait_for(socket.close_code(), 30) == 1009


async def test_a_packet_over_the_limit_is_closed_with_1009(up: Process) -> None:
    """After hello a packet may have 1 MiB (contract.md, Refusals)."""
    async with AgentClient.connect(f"{up.url}/im.recording", API_KEY) as agent:
        await agent.send_raw("x" * (1024 * 1024))
        assert (await asyncio.wait_for(agent.errors.get(), 30))["error"]["code"] == "invalid_packet"
        await agent.send_raw("x" * (1024 * 1024 + 2))
        assert await agent.wait_closed() == 1009


@pytest.mark.parametrize(
    ("offered", "chosen"),
    [
        (f"{SUBPROTOCOL}, bearer.TOK_FIRST", SUBPROTOCOL),
        (f"bearer.TOK_SECOND, {SUBPROTOCOL}", SUBPROTOCOL),
        ("other", None),
        ("other, bearer.TOK_THIRD", None),
        (None, None),
    ],
)
async def test_only_our_subprotocol_is_echoed_and_no_token_is_logged(
    up: Process, offered: str | None, chosen: str | None
) -> None:
    """Whatever else is offered, a token among it: not chosen, and not in the log either (field report 45)."""
    async with raw(up.url) as socket:
        await socket.upgrade(WS, AUTHORIZED | ({} if offered is None else {"Sec-WebSocket-Protocol": offered}))
        assert socket.status == 101
        assert socket.headers.get("sec-websocket-protocol") == chosen
        assert await socket.hello("im.recording")
    assert "TOK_" not in up.log.read_text()


@pytest.mark.parametrize("header", ["", "Bearer", "Bearer TOK_WRONG", f"Basic {API_KEY}", f"Bearer {API_KEY} TOK_TAIL"])
async def test_a_wrong_key_gets_no_socket(up: Process, header: str) -> None:
    """401 before the upgrade; what was tried is not in the log (field report 45)."""
    async with raw(up.url) as socket:
        await socket.upgrade(f"{WS}?key={API_KEY}", {"Authorization": header} if header else {})
        assert socket.status == 401
    assert "TOK_" not in up.log.read_text()


# Reports 42 and 43: the malformed


def packet(kind: str, channel: str, payload: str, extra: str = "") -> str:
    """A packet written by hand, so that it may hold what no encoder writes."""
    return (
        f'{{"schema":"{SCHEMA}","packet_id":"pkt_raw","type":"{kind}","connector_channel_id":"{channel}",'
        f'"payload":{payload}{extra}}}'
    )


async def answered(agent: AgentClient, channel: str) -> None:
    """A good message on the same socket is accepted, and nothing but its ack has come."""
    assert (await agent.send_message(channel, "good"))["status"] == "accepted"
    assert agent.errors.empty()
    assert agent.notices.empty()


NO_PACKETS = [
    *("", " ", "null", "[]", "{}", "7", '"text"', "{", '{"type":', "\ufeff{}"),
    *('{"seq":1,"seq":9}', '{"x":NaN}', '{"x":1e999}', "7" * 5_000, '{"x":' + "7" * 5_000 + "}"),
    *("[" * 20_000 + "]" * 20_000, '{"a":' * 20_000 + "1" + "}" * 20_000),
    *(packet("connector.unheard_of", "", "{}"), packet("chat.message", "", "{}", ',"type":7')),
]


@pytest.mark.parametrize("frame", NO_PACKETS, ids=lambda frame: frame[:24] or "empty")
async def test_a_frame_that_is_no_packet_gets_one_error_and_the_socket_lives(agent: AgentClient, frame: str) -> None:
    """One typed error, then a good message on the same socket is accepted; never 1011 (field reports 42, 43)."""
    channel = (await agent.open()).channel_id
    await agent.send_raw(frame)
    error = await asyncio.wait_for(agent.errors.get(), 30)
    expected = "unsupported_packet" if "unheard_of" in frame else "invalid_packet"
    assert error["error"]["code"] == expected
    await answered(agent, channel)


async def test_a_binary_frame_gets_one_error_and_the_socket_lives(agent: AgentClient) -> None:
    """Valid JSON in it or not (field report 43)."""
    channel = (await agent.open()).channel_id
    for frame in (packet("ping", "", "{}").encode(), b"\xff\xfe", b""):
        await agent.send_raw(frame)
        assert (await asyncio.wait_for(agent.errors.get(), 30))["error"]["code"] == "invalid_packet"
    await answered(agent, channel)


async def test_text_that_is_not_utf8_is_closed_with_1007_and_others_go_on(up: Process, agent: AgentClient) -> None:
    """The one frame that ends its socket; another agent of the process does not notice (field reports 42, 43)."""
    channel = (await agent.open()).channel_id
    for data in (b"\xff\xfe", b'{"type":"\xc3"}', b"\xed\xa0\x80", b"\xf4\x90\x80\x80"):
        async with AgentClient.connect(f"{up.url}/im.recording", API_KEY) as other:
            await other.send_as_text(data)
            assert await other.wait_closed() == 1007, data
    await answered(agent, channel)


async def test_a_ping_is_ponged_with_its_own_payload(up: Process) -> None:
    """125 bytes, between the fragments of a packet too (field report 43)."""
    async with raw(up.url) as socket:
        await socket.upgrade(WS, AUTHORIZED)
        await socket.hello("im.recording")
        payload = bytes(range(125))
        await socket.send(payload, PING)
        assert await socket.frame() == (PONG, payload)
        body = packet("ping", "", "{}").encode()
        await socket.send(body[:20], fin=False)
        await socket.send(b"between", PING)
        await socket.send(body[20:], 0)
        assert await socket.frame() == (PONG, b"between")
        answer = await socket.frame()
        assert answer is not None
        assert json.loads(answer[1])["type"] == "pong"


DEEP = "[" * 600 + "]" * 600
DEEPER = "[" * 20_000 + "]" * 20_000
HUGE = "9" * 40
ENDLESS = "9" * 5_000


@pytest.mark.parametrize("extra", [DEEP, DEEPER, HUGE, ENDLESS, "1e999", "NaN", '{"a":1,"a":2}'], ids=lambda e: e[:16])
@pytest.mark.parametrize("text", ["plain", "with \\u0000", "with \\ud800"])
async def test_a_strange_value_in_a_field_nobody_reads_ends_no_socket(
    agent: AgentClient, extra: str, text: str
) -> None:
    """Ignored or refused, in so many words: exactly one ack, and the socket lives (field report 42)."""
    channel = (await agent.open()).channel_id
    body = f'{{"message_id":"m1","text":"{text}","new_field":{extra}}}'
    for frame in (packet("chat.message", channel, body, f',"newer":{extra}'), packet("chat.message", channel, body)):
        await agent.send_raw(frame)
        answer = await asyncio.wait_for(first_of(agent), 30)
        if answer["type"] == "error":
            assert answer["error"]["code"] == "invalid_packet"
        else:
            assert answer["type"] == "chat.message.ack"
            assert answer["payload"]["status"] in ("accepted", "duplicate", "rejected")
            assert answer["payload"].get("code", "") in ("", "invalid_packet")
    await answered(agent, channel)


async def first_of(agent: AgentClient) -> dict[str, Any]:
    """The next error or notice, whichever comes."""
    waiting = [asyncio.create_task(inbox.get()) for inbox in (agent.errors, agent.notices)]
    done, rest = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
    for task in rest:
        task.cancel()
    return done.pop().result()


@pytest.mark.parametrize("number", [HUGE, "-" + HUGE, "1e999", "1.5", "NaN", ENDLESS, "true", '"7"'])
@pytest.mark.parametrize("field", ["created_at", "byte_size", "expires_at", "time", "sequence"])
async def test_a_number_that_is_none_is_refused_at_the_door(agent: AgentClient, field: str, number: str) -> None:
    """No integer of a sane size: invalid_packet at once, and not a worker's failure later (field report 42)."""
    channel = (await agent.open()).channel_id
    file = f'{{"type":"file","file_ref":"r","{field}":{number}}}'
    match field:
        case "created_at":
            frame = packet("chat.message", channel, f'{{"message_id":"m1","text":"x","created_at":{number}}}')
        case "time":
            frame = packet("chat.message", channel, '{"message_id":"m1","text":"x"}', f',"time":{number}')
        case "sequence":
            frame = packet("chat.message.delta", channel, f'{{"message_id":"m1","text":"x","sequence":{number}}}')
        case _:
            frame = packet("chat.message", channel, f'{{"message_id":"m1","text":"x","files":[{file}]}}')
    await agent.send_raw(frame)
    answer = await asyncio.wait_for(first_of(agent), 30)
    refused = answer["error"] if answer["type"] == "error" else answer["payload"]
    assert refused["code"] == "invalid_packet"
    await answered(agent, channel)


async def test_a_long_number_as_an_id_stays_the_string_it_is(up: Process, http: aiohttp.ClientSession) -> None:
    """1035342667379599058 from the page to xAgent and back, not …104 (field report 42)."""
    number = "1035342667379599058"
    async with AgentClient.connect(f"{up.url}/im.console", API_KEY) as agent:
        channel = (await agent.open()).channel_id
        async with http.ws_connect(f"{up.url}/im.console/chat/{channel}", headers=AUTHORIZED) as page:
            await page.send_json({"text": "hello", "message_id": number})
            assert (await page.receive_json(timeout=30))["message_id"] == number
            message = await asyncio.wait_for(agent.messages.get(), 30)
            assert message.payload["message_id"] == number
            await agent.ack(message)
            assert (await agent.send_message(channel, "back", message_id=number + "0"))["status"] == "accepted"
            assert (await page.receive_json(timeout=30))["message_id"] == number + "0"


# Report 32: the slow


TEXT_OF_A_PERSON = "x" * 200_000


async def test_a_reader_that_stops_is_closed_at_the_cap_and_gets_all_when_it_returns(
    up: Process, http: aiohttp.ClientSession, agent: AgentClient
) -> None:
    """80 MB are due to it: bounded memory, others are served, and its return brings each message once (report 32)."""
    recording, size = Recording(http, up.url), 400
    mine = (await agent.open()).channel_id
    before = await sockets(http, up)
    async with raw(up.url, receive_buffer=4096) as slow:
        await slow.upgrade(WS, AUTHORIZED)
        connector = await slow.hello("im.recording")
        channels = [(await slow.request("channel.open"))["connector_channel_id"] for _ in range(size)]
        held = resident(up)
        peak = 0
        for n, channel in enumerate(channels):
            assert await recording.says(channel, f"p{n}", TEXT_OF_A_PERSON) == 202
            peak = max(peak, resident(up))
            if n % 20 == 0:
                assert (await agent.send_message(mine, f"{n}", timeout=10))["status"] == "accepted"

        async def closed() -> bool:
            return await sockets(http, up) == before

        await until(closed)
        assert "stopped reading" in up.log.read_text()
    assert peak - held < 64 * 1024 * 1024
    seen: list[str] = []
    async with AgentClient.connect(f"{up.url}/im.recording", API_KEY, connector_id=connector, timeout=30) as back:

        async def take() -> None:
            async for message in back.messages:
                seen.append(message.payload["message_id"])
                await back.ack(message)

        taking = asyncio.create_task(take())
        for channel in channels:
            await back.open(channel)

        async def all_seen() -> bool:
            return len(seen) >= size

        await until(all_seen, 60)
        await asyncio.sleep(0.5)
        taking.cancel()
    assert sorted(seen) == sorted(f"p{n}" for n in range(size))


async def test_a_viewer_that_stops_reading_holds_up_no_answer(up: Process, http: aiohttp.ClientSession) -> None:
    """A page that shows a channel and stops reading: finals are acked as ever, another viewer sees all (report 32)."""
    async with AgentClient.connect(f"{up.url}/im.console", API_KEY, timeout=30) as agent:
        channel = (await agent.open()).channel_id
        chat = f"/im.console/chat/{channel}"
        async with (
            contextlib.AsyncExitStack() as stack,
            http.ws_connect(f"{up.url}{chat}", headers=AUTHORIZED) as page,
        ):
            slow = [await stack.enter_async_context(raw(up.url, receive_buffer=4096)) for _ in range(5)]
            await asyncio.gather(*(socket.upgrade(chat, AUTHORIZED) for socket in slow))
            await asyncio.sleep(0.2)  # all are viewers by then
            for n in range(60):
                ack = await agent.send_message(channel, TEXT_OF_A_PERSON, message_id=f"m{n}", timeout=4)
                assert ack["status"] == "accepted"
                event = await page.receive_json(timeout=4)
                assert (event["event"], event["message_id"]) == ("message", f"m{n}")
            codes = await asyncio.wait_for(asyncio.gather(*(socket.close_code() for socket in slow)), 30)
            assert set(codes) <= {1013, 1006}  # the close itself may not have got through


async def test_a_peer_that_vanished_is_dropped_and_one_that_answers_is_not(
    up: Process, http: aiohttp.ClientSession, agent: AgentClient
) -> None:
    """No pong for two ping periods: gone, and what is owed waits for its return (field report 32)."""
    recording = Recording(http, up.url)
    mine = (await agent.open()).channel_id
    before = await sockets(http, up)
    async with raw(up.url) as vanished:
        await vanished.upgrade(WS, AUTHORIZED)
        connector = await vanished.hello("im.recording")
        channel = (await vanished.request("channel.open"))["connector_channel_id"]
        assert await sockets(http, up) == before + 1
        assert await recording.says(channel, "p1", "are you there?") == 202

        async def dropped() -> bool:
            return await sockets(http, up) == before

        await until(dropped, 5 * PING_SECONDS)
    await asyncio.sleep(PING_SECONDS)  # the agent says nothing all the while, its library pongs
    assert (await agent.send_message(mine, "still here"))["status"] == "accepted"
    async with AgentClient.connect(f"{up.url}/im.recording", API_KEY, connector_id=connector) as back:
        await back.open(channel)
        message: UserMessage = await asyncio.wait_for(back.messages.get(), 15)
        assert message.payload["message_id"] == "p1"
        await back.ack(message)


async def test_nothing_of_this_broke_anything(up: Process) -> None:
    """After all of the above: no traceback in the log, and a client is served as at the start (field report 43)."""
    assert "Traceback" not in up.log.read_text()
    await works(up)
