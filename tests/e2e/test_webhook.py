"""`im.webhook` both ways, with a receiver on loopback: what is signed, what is tried again, what is refused."""

import asyncio
import base64
import json
import time
import unicodedata
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from email.utils import format_datetime
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import pytest
import pytest_asyncio
from standardwebhooks import Webhook

from shared.agent.client import AgentClient
from shared.records import open_records
from shared.wire.ids import namer
from tests.support.process import API_KEY, Process, embedded, started, until
from tests.support.sink import Answer, Received, Sink, sinking

pytestmark = pytest.mark.asyncio(loop_scope="module")

SECRET = "whsec_" + base64.b64encode(bytes(range(32))).decode()
OTHER_SECRET = "whsec_" + base64.b64encode(bytes(range(1, 33))).decode()
CALL_SECONDS = 2.0
UPLOAD_BYTES = 256 * 1024
TEXT_BYTES = 64 * 1024
NAMES = [
    "../../x",
    "..\\..\\a.txt",
    "a\u0000.png",
    "CON.txt",
    "é" * 300 + ".pdf",
    "报告 (终版)“1”.pdf",
    "e\u0301.txt",
    ".env",
    "",
    "a/b.txt",
    "x\r\nContent-Type: text/html",
]
new_name = namer("hook")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def up(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Process]:
    settings = {
        "SLUICE_ALLOW_PRIVATE_TARGETS": "127.0.0.0/8",
        "SLUICE_LIMIT_RETRY_FIRST_SECONDS": "0.2",
        "SLUICE_LIMIT_PARK_AFTER_SECONDS": "0.8",
        "SLUICE_LIMIT_CALL_SECONDS": str(CALL_SECONDS),
        "SLUICE_LIMIT_UPLOAD_BYTES": str(UPLOAD_BYTES),
        "SLUICE_LIMIT_TEXT_BYTES": str(TEXT_BYTES),
        "SLUICE_LIMIT_INBOUND_PER_CHANNEL": "5",
    }
    async with started(embedded(tmp_path_factory.mktemp("webhook"), **settings)) as process:
        yield process


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def sink() -> AsyncIterator[Sink]:
    async with sinking() as sink:
        yield sink


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def http() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession() as session:
        yield session


@pytest_asyncio.fixture(loop_scope="module")
async def agent(up: Process) -> AsyncIterator[AgentClient]:
    async with AgentClient.connect(f"{up.url}/im.webhook", API_KEY, timeout=30) as agent:
        yield agent


async def sign_in(agent: AgentClient, channel: str, **form: Any) -> dict[str, Any]:
    """The payload of the ack."""
    answer = await agent.request("auth.start", channel, {"flow_id": "webhook", "input": form})
    payload: dict[str, Any] = answer["payload"]
    return payload


async def bound(agent: AgentClient, url: str) -> str:
    """A channel that posts to the URL."""
    channel = (await agent.open()).channel_id
    assert (await sign_in(agent, channel, url=url, secret=SECRET))["status"] == "authenticated"
    return channel


def verified(received: Received, secret: str = SECRET) -> dict[str, Any]:
    """The body, once the library has verified the signature; raises where it does not."""
    body: dict[str, Any] = Webhook(secret).verify(received.raw, received.headers)
    return body


def data_folder(process: Process) -> Path:
    return Path(process.arguments[-1])


async def dead_letters(process: Process, channel: str) -> list[tuple[str, str, int]]:
    """Code, message_id and attempts of each, as an operator finds them."""
    async with open_records(f"sqlite:///{data_folder(process) / 'sluice.db'}") as records:
        return [(row.code, row.message_id, row.attempts) for row in await records.dead.find(100, channel)]


def signed(body: bytes, secret: str = SECRET, at: float | None = None, message_id: str = "in_1") -> dict[str, str]:
    """The headers of a signed POST."""
    now = datetime.fromtimestamp(time.time() if at is None else at, UTC)
    return {
        "content-type": "application/json",
        "webhook-id": message_id,
        "webhook-timestamp": str(int(now.timestamp())),
        "webhook-signature": Webhook(secret).sign(message_id, now, body.decode()),
    }


async def post(
    http: aiohttp.ClientSession, process: Process, channel: str, body: bytes, headers: dict[str, str] | None = None
) -> tuple[int, dict[str, Any]]:
    """A POST to the channel's inbound URL, signed unless headers are given."""
    url = f"{process.url}/im.webhook/in/{channel}"
    async with http.post(url, data=body, headers=signed(body) if headers is None else headers) as answer:
        return answer.status, await answer.json()


def says(message_id: str, text: str, *files: dict[str, str]) -> bytes:
    """The body of a person's message."""
    return json.dumps({"message_id": message_id, "text": text, "files": files}, ensure_ascii=False).encode()


async def heard(agent: AgentClient) -> dict[str, Any]:
    """The payload of the next message of a person, accepted."""
    message = await asyncio.wait_for(agent.messages.get(), 30)
    await agent.ack(message)
    return message.payload


# Signing in


@pytest.mark.parametrize(
    ("form", "field"),
    [
        ({"secret": SECRET}, "url"),
        ({"url": "", "secret": SECRET}, "url"),
        ({"url": "ftp://127.0.0.1/x", "secret": SECRET}, "url"),
        ({"url": "http://user:hunter2@127.0.0.1/x", "secret": SECRET}, "url"),
        ({"url": "http://127.1/x", "secret": SECRET}, "url"),
        ({"url": 7, "secret": SECRET}, "url"),
        ({"url": "http://127.0.0.1:9/x"}, "secret"),
        ({"url": "http://127.0.0.1:9/x", "secret": "hunter2"}, "secret"),
        ({"url": "http://127.0.0.1:9/x", "secret": "whsec_" + base64.b64encode(b"x" * 23).decode()}, "secret"),
        ({"url": "http://127.0.0.1:9/x", "secret": "whsec_" + base64.b64encode(b"x" * 65).decode()}, "secret"),
        ({"url": "http://127.0.0.1:9/x", "secret": "whsec_!!!"}, "secret"),
    ],
)
async def test_a_wrong_form_fails_and_names_the_field(agent: AgentClient, form: dict[str, Any], field: str) -> None:
    """Status failed, a message that names the field and repeats no value; a final is then refused (contract.md)."""
    channel = (await agent.open()).channel_id
    answer = await sign_in(agent, channel, **form)
    assert answer["status"] == "failed"
    assert answer["message"].startswith(f"{field}:")
    assert "hunter2" not in answer["message"]
    assert answer["connection_descriptor"]["connection"]["status"] == "created"
    ack = await agent.send_message(channel, "hello")
    assert (ack["status"], ack["code"]) == ("rejected", "connection_not_authenticated")


async def test_a_right_form_connects_and_shows_no_secret(agent: AgentClient, sink: Sink) -> None:
    """The Descriptor names the host; neither it nor the ack holds the secret or the path (invariant 7)."""
    channel = (await agent.open()).channel_id
    answer = await sign_in(agent, channel, url=sink.hook("very-private-path"), secret=SECRET)
    assert answer["status"] == "authenticated"
    assert answer["connection_descriptor"]["connection"]["status"] == "connected"
    told = json.dumps([answer, (await agent.open(channel)).descriptor])
    assert SECRET not in told
    assert "very-private-path" not in told


async def test_a_private_url_is_blocked_unless_the_operator_allows_it(
    tmp_path: Path, sink: Sink, http: aiohttp.ClientSession
) -> None:
    """Without SLUICE_ALLOW_PRIVATE_TARGETS: blocked_url at sign-in, and for a file that a webhook offers."""
    sink.files["private"] = b"private"
    async with (
        started(embedded(tmp_path)) as process,
        AgentClient.connect(f"{process.url}/im.webhook", API_KEY) as agent,
    ):
        channel = (await agent.open()).channel_id
        for url in (sink.hook("private"), "http://localhost:9/", "http://[::1]:9/", "http://169.254.169.254/latest"):
            answer = await sign_in(agent, channel, url=url, secret=SECRET)
            assert answer["status"] == "failed"
            assert answer["message"].startswith("url: blocked_url")
        assert (await sign_in(agent, channel, url="http://1.1.1.1/", secret=SECRET))["status"] == "authenticated"
        body = says("p1", "see", {"url": f"{sink.url}/files/private", "filename": "a.txt"})
        assert (await post(http, process, channel, body))[0] == 202
        payload = await heard(agent)
    assert payload["text"] == "see\n[file a.txt unavailable: blocked_url]"
    assert not payload.get("files")
    assert sink.received("private") == []
    assert "private" not in sink.served


# Outbound


async def test_a_final_is_a_signed_post_whose_file_can_be_fetched(
    agent: AgentClient, sink: Sink, http: aiohttp.ClientSession
) -> None:
    """Standard Webhooks: verified by its library and by no other secret; the body is that of contract.md."""
    name = new_name()
    channel = await bound(agent, sink.hook(name))
    ref = await agent.upload(channel, b"\x89PNG\r\n\x1a\n" + bytes(100), "图.png", "image/png")
    file = {"type": "image", "file_ref": ref, "filename": "图.png", "mime_type": "image/png", "byte_size": 108}
    ack = await agent.send_message(channel, "héllo ✓", files=[file], message_id="m1")
    assert ack["status"] == "accepted"
    (received,) = sink.received(name)
    body = verified(received)
    with pytest.raises(Exception, match="signature"):
        verified(received, OTHER_SECRET)
    created_at = body.pop("created_at")
    assert abs(created_at / 1000 - time.time()) < 60
    (sent,) = body.pop("files")
    url = sent.pop("url")
    assert sent == {"type": "image", "filename": "图.png", "mime_type": "image/png", "byte_size": 108}
    assert body == {"type": "message", "channel_id": channel, "message_id": "m1", "text": "héllo ✓"}
    async with http.get(url) as answer:
        assert (answer.status, await answer.read()) == (200, b"\x89PNG\r\n\x1a\n" + bytes(100))
        assert answer.headers["X-Content-Type-Options"] == "nosniff"
    assert received.headers["content-type"] == "application/json"
    assert (await agent.send_message(channel, "héllo ✓", files=[file], message_id="m1"))["status"] == "duplicate"
    assert len(sink.received(name)) == 1


@pytest.mark.parametrize(
    "answer",
    [Answer(status=503), Answer(status=500), Answer(status=408), Answer(status=425), Answer(cut=True)],
    ids=["503", "500", "408", "425", "cut"],
)
async def test_what_may_pass_is_tried_again_under_the_same_webhook_id(
    agent: AgentClient, sink: Sink, answer: Answer
) -> None:
    """Three POSTs with one webhook-id and one body, each signed anew, then accepted once (field report 25d)."""
    name = new_name()
    channel = await bound(agent, sink.hook(name, answer, answer))
    assert (await agent.send_message(channel, "again"))["status"] == "accepted"
    received = sink.received(name)
    assert len(received) == 3
    assert len({one.webhook_id for one in received}) == 1
    assert len({one.raw for one in received}) == 1
    for one in received:
        verified(one)


async def test_a_stored_answer_that_never_comes_is_tried_again_under_the_same_webhook_id(
    agent: AgentClient, sink: Sink
) -> None:
    """The receiver stores and stalls: the repeat can be told by its webhook-id, another message has another (1)."""
    name = new_name()
    channel = await bound(agent, sink.hook(name, Answer(stall=10 * CALL_SECONDS)))
    assert (await agent.send_message(channel, "pay 30"))["status"] == "accepted"
    assert (await agent.send_message(channel, "pay 30"))["status"] == "accepted"
    ids = [one.webhook_id for one in sink.received(name)]
    assert len(ids) == 3
    assert ids[0] == ids[1] != ids[2]


@pytest.mark.parametrize("seconds", [0.5, 2.0], ids=["within the lane", "parked"])
async def test_retry_after_is_waited_for_and_keeps_the_order(agent: AgentClient, sink: Sink, seconds: float) -> None:
    """429 with seconds: not before, and the next final of the channel not before the first (field reports 6, 22)."""
    name, other = new_name(), new_name()
    slow_down = Answer(status=429, headers={"Retry-After": str(seconds)})
    channel, free = await bound(agent, sink.hook(name, slow_down)), await bound(agent, sink.hook(other))
    acks = await asyncio.gather(
        agent.send_message(channel, "first"), agent.send_message(channel, "second"), agent.send_message(free, "free")
    )
    assert [ack["status"] for ack in acks] == ["accepted"] * 3
    received = sink.received(name)
    assert [verified(one)["text"] for one in received] == ["first", "first", "second"]
    assert received[1].at - received[0].at >= seconds
    assert sink.received(other)[0].at < received[1].at


@pytest.mark.parametrize("header", ["", "abc", "-1", "nan"])
async def test_a_retry_after_without_sense_means_the_usual_wait(agent: AgentClient, sink: Sink, header: str) -> None:
    """Absent, a word, negative, not a number: tried again soon, not at once and not never (field report 22)."""
    name = new_name()
    headers = {"Retry-After": header} if header else {}
    channel = await bound(agent, sink.hook(name, Answer(status=429, headers=headers)))
    assert (await agent.send_message(channel, "soon"))["status"] == "accepted"
    first, second = sink.received(name)
    assert second.at - first.at >= 0.1


async def test_a_retry_after_may_be_a_date(agent: AgentClient, sink: Sink) -> None:
    """An HTTP date two seconds ahead is waited for, to the second that the format has (field report 22)."""
    name = new_name()
    when = format_datetime(datetime.fromtimestamp(int(time.time()) + 3, UTC), usegmt=True)
    channel = await bound(agent, sink.hook(name, Answer(status=429, headers={"Retry-After": when})))
    assert (await agent.send_message(channel, "later"))["status"] == "accepted"
    first, second = sink.received(name)
    assert second.at - first.at >= 1.0


async def test_a_wait_beyond_the_lifetime_ends_at_once_and_is_filed(
    up: Process, agent: AgentClient, sink: Sink
) -> None:
    """Retry-After of 1e9 seconds is not slept on: rejected, and an operator finds it (field report 22)."""
    name = new_name()
    channel = await bound(agent, sink.hook(name, Answer(status=429, headers={"Retry-After": "1e9"})))
    ack = await agent.send_message(channel, "never", message_id="m1")
    assert (ack["status"], ack["code"], ack["retryable"]) == ("rejected", "target_rate_limited", False)
    assert await dead_letters(up, channel) == [("target_rate_limited", "m1", 1)]


@pytest.mark.parametrize(
    "answer",
    [Answer(status=400), Answer(status=401), Answer(status=404), Answer(status=301), Answer(status=307)],
    ids=lambda answer: str(answer.status),
)
async def test_what_will_not_pass_ends_after_one_try(
    up: Process, agent: AgentClient, sink: Sink, answer: Answer
) -> None:
    """Another 4xx and every redirect: one POST, rejected, a dead letter; a redirect is not followed (25, 30)."""
    name, elsewhere = new_name(), new_name()
    if answer.status < 400:
        answer = msgspec.structs.replace(answer, headers={"Location": sink.hook(elsewhere)})
    channel = await bound(agent, sink.hook(name, answer))
    ack = await agent.send_message(channel, "no", message_id="m1")
    assert (ack["status"], ack["code"], ack["retryable"]) == ("rejected", "target_delivery_failed", False)
    again = await agent.send_message(channel, "no", message_id="m1")
    assert (again["status"], again["code"]) == ("rejected", "target_delivery_failed")
    assert len(sink.received(name)) == 1
    assert sink.received(elsewhere) == []
    assert await dead_letters(up, channel) == [("target_delivery_failed", "m1", 1)]
    assert (await agent.send_message(channel, "next"))["status"] == "accepted"


async def test_gone_revokes_the_channel(up: Process, agent: AgentClient, sink: Sink) -> None:
    """410: a dead letter, a Descriptor push that says revoked, and the next final asks for a sign-in (contract.md)."""
    name = new_name()
    channel = await bound(agent, sink.hook(name, Answer(status=410)))
    ack = await agent.send_message(channel, "gone", message_id="m1")
    assert (ack["status"], ack["code"], ack["retryable"]) == ("rejected", "target_delivery_failed", False)
    push = await asyncio.wait_for(agent.notices.get(), 30)
    assert (push["type"], push["connector_channel_id"]) == ("connection.descriptor.push", channel)
    assert push["payload"]["connection_descriptor"]["connection"]["status"] == "revoked"
    assert await dead_letters(up, channel) == [("target_delivery_failed", "m1", 1)]
    assert (await agent.send_message(channel, "next"))["code"] == "connection_not_authenticated"
    assert len(sink.received(name)) == 1
    assert (await sign_in(agent, channel, url=sink.hook(name), secret=SECRET))["status"] == "authenticated"
    assert (await agent.send_message(channel, "back"))["status"] == "accepted"


# Inbound


async def test_a_signed_post_reaches_the_agent_once(
    up: Process, agent: AgentClient, sink: Sink, http: aiohttp.ClientSession
) -> None:
    """202 accepted, then 202 duplicate, also after the agent has taken it (contract.md)."""
    channel = await bound(agent, sink.hook(new_name()))
    assert await post(http, up, channel, says("p1", "héllo ✓")) == (202, {"status": "accepted"})
    assert await post(http, up, channel, says("p1", "héllo ✓")) == (202, {"status": "duplicate"})
    payload = await heard(agent)
    assert (payload["message_id"], payload["text"]) == ("p1", "héllo ✓")
    assert await post(http, up, channel, says("p1", "héllo ✓")) == (202, {"status": "duplicate"})
    assert await post(http, up, channel, says("p2", "next")) == (202, {"status": "accepted"})
    assert (await heard(agent))["message_id"] == "p2"
    assert agent.messages.empty()


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"null",
        b"[]",
        b"{}",
        b'{"message_id":"","text":"x"}',
        b'{"message_id":7,"text":"x"}',
        b'{"message_id":"p1"}',
        b'{"message_id":"p1","text":"  \\n"}',
        b'{"message_id":"p1","text":"x","files":[{"filename":"no url"}]}',
        b'{"message_id":"p1","text":"x","files":' + json.dumps([{"url": "http://127.0.0.1:9/"}] * 11).encode() + b"}",
        b'{"message_id":"' + b"i" * 257 + b'","text":"x"}',
        b'{"message_id":"p1","text":"' + b"x" * (TEXT_BYTES + 1) + b'"}',
        b'{"message_id":"p1","text":"x","extra":NaN}',
        b"[" * 20_000 + b"]" * 20_000,
        b'\xef\xbb\xbf{"message_id":"p1","text":"x"}',
    ],
    ids=[
        "empty", "cut", "null", "list", "nothing", "empty id", "id no text", "no text", "blank", "no url", "11 files",
        "long id", "long text", "NaN", "deep", "BOM",
    ],
)  # fmt: skip
async def test_a_signed_body_that_is_no_message_is_400(
    up: Process, agent: AgentClient, sink: Sink, http: aiohttp.ClientSession, body: bytes
) -> None:
    """What is signed well and means nothing says so; it is not called unsigned, and nothing breaks (report 42)."""
    channel = await bound(agent, sink.hook(new_name()))
    status, answer = await post(http, up, channel, body)
    assert (status, answer["error"]["code"]) == (400, "invalid_packet")
    assert await post(http, up, channel, says("p1", "fine")) == (202, {"status": "accepted"})
    assert (await heard(agent))["text"] == "fine"


async def test_only_the_secret_and_the_moment_let_a_post_in(
    up: Process, agent: AgentClient, sink: Sink, http: aiohttp.ClientSession
) -> None:
    """401: no signature, another secret or body, stamped ten minutes off either way, or in ms (field report 40)."""
    channel = await bound(agent, sink.hook(new_name()))
    body = says("p1", "text")
    good = signed(body)
    in_ms = str(int(time.time() * 1000))
    far = datetime.fromtimestamp(int(in_ms) / 1000, UTC)
    ms_signature = Webhook(SECRET).sign("in_1", far, body.decode())
    wrong = [
        {},
        {"webhook-id": "in_1"},
        good | {"webhook-signature": "v1,AAAA"},
        good | {"webhook-signature": ""},
        good | {"webhook-signature": "v2," + good["webhook-signature"].removeprefix("v1,")},
        good | {"webhook-id": "in_2"},
        good | {"webhook-timestamp": "soon"},
        good | {"webhook-timestamp": in_ms, "webhook-signature": ms_signature},
        signed(body, OTHER_SECRET),
        signed(says("p1", "other text")),
        signed(body, at=time.time() - 600),
        signed(body, at=time.time() + 600),
    ]
    for headers in wrong:
        status, answer = await post(http, up, channel, body, headers)
        assert (status, answer["error"]["code"]) == (401, "unauthorized"), headers
    for skew in (-200, 200):  # a clock that is a little off is no reason to lose a message
        assert (await post(http, up, channel, body, signed(body, at=time.time() + skew)))[0] == 202
    assert (await heard(agent))["text"] == "text"
    assert agent.messages.empty()


async def test_an_unknown_or_unbound_channel_takes_nothing(
    up: Process, agent: AgentClient, http: aiohttp.ClientSession
) -> None:
    """404 for no such channel or one of another Card; 401 where nobody has signed in yet."""
    body = says("p1", "text")
    async with AgentClient.connect(f"{up.url}/im.recording", API_KEY) as other:
        foreign = (await other.open()).channel_id
    assert (await post(http, up, "chan_nowhere", body))[0] == 404
    assert (await post(http, up, foreign, body))[0] == 404
    assert (await post(http, up, (await agent.open()).channel_id, body))[0] == 401


async def test_a_body_too_large_is_413(
    up: Process, agent: AgentClient, sink: Sink, http: aiohttp.ClientSession
) -> None:
    """With a length or in chunks without one: 413, and the channel goes on (field report 28)."""
    channel = await bound(agent, sink.hook(new_name()))
    huge = b"x" * (TEXT_BYTES + 600 * 1024)

    async def chunks() -> AsyncIterator[bytes]:
        for start in range(0, len(huge), 4096):
            yield huge[start : start + 4096]

    assert (await post(http, up, channel, huge))[0] == 413
    async with http.post(f"{up.url}/im.webhook/in/{channel}", data=chunks(), headers=signed(huge)) as answer:
        assert answer.status == 413
    assert (await post(http, up, channel, says("p1", "fine")))[0] == 202
    assert (await heard(agent))["text"] == "fine"


async def test_a_full_outbox_tells_the_sender(
    up: Process, agent: AgentClient, sink: Sink, http: aiohttp.ClientSession
) -> None:
    """429 at the cap, so the message stays the sender's; a repeat of what is owed is still a duplicate."""
    channel = await bound(agent, sink.hook(new_name()))
    for n in range(5):
        assert (await post(http, up, channel, says(f"p{n}", "text")))[0] == 202
    status, answer = await post(http, up, channel, says("p5", "text"))
    assert (status, answer["error"]["code"]) == (429, "busy")
    assert await post(http, up, channel, says("p3", "text")) == (202, {"status": "duplicate"})
    assert [(await heard(agent))["message_id"] for _ in range(5)] == [f"p{n}" for n in range(5)]

    async def taken() -> bool:
        return (await post(http, up, channel, says("p5", "text")))[0] == 202

    await until(taken)
    assert (await heard(agent))["message_id"] == "p5"


async def test_a_file_comes_with_its_text(
    up: Process, agent: AgentClient, sink: Sink, http: aiohttp.ClientSession
) -> None:
    """Fetched at once and served by a short-lived ref; its type is told by its bytes (field report 28c)."""
    channel = await bound(agent, sink.hook(new_name()))
    sink.files |= {"cat": b"\x89PNG\r\n\x1a\n" + bytes(64), "page": b"<!doctype html><script>alert(1)</script>"}
    body = says(
        "p1",
        "see",
        {"url": f"{sink.url}/files/cat", "filename": "cat.png", "mime_type": "image/png"},
        {"url": f"{sink.url}/files/page", "filename": "dog.png", "mime_type": "image/png"},
    )
    assert (await post(http, up, channel, body))[0] == 202
    payload = await heard(agent)
    cat, page = payload["files"]
    assert (payload["text"], cat["type"], cat["mime_type"]) == ("see", "image", "image/png")
    assert (page["type"], page["mime_type"]) == ("file", "text/html")
    for file, data in ((cat, sink.files["cat"]), (page, sink.files["page"])):
        async with http.get(f"{agent.base_url}{file['download_url']}") as answer:
            assert (answer.status, await answer.read()) == (200, data)
            inline = answer.headers["Content-Disposition"].startswith("inline")
            assert inline == (file is cat)


async def test_a_file_that_cannot_be_had_loses_no_text(
    up: Process, agent: AgentClient, sink: Sink, http: aiohttp.ClientSession
) -> None:
    """Too large, gone, or nobody there: the text says so and comes in its order, then the next (field report 28d)."""
    channel = await bound(agent, sink.hook(new_name()))
    sink.files["big"] = bytes(40 * UPLOAD_BYTES)
    offers = [
        {"url": f"{sink.url}/files/big", "filename": "big.pdf"},
        {"url": f"{sink.url}/files/none", "filename": "none.pdf"},
        {"url": "http://127.0.0.1:9/", "filename": "nobody.pdf"},
    ]
    stored = set(files_in(up))
    assert (await post(http, up, channel, says("p1", "see", *offers)))[0] == 202
    assert (await post(http, up, channel, says("p2", "next")))[0] == 202
    payload = await heard(agent)
    assert payload["text"].splitlines() == [
        "see",
        "[file big.pdf unavailable: file_too_large]",
        "[file none.pdf unavailable: download_failed]",
        "[file nobody.pdf unavailable: download_failed]",
    ]
    assert not payload.get("files")
    assert (await heard(agent))["text"] == "next"
    assert set(files_in(up)) == stored
    assert sink.served["big"] < len(sink.files["big"])


async def test_a_slow_file_is_not_overtaken_by_the_text_after_it(
    up: Process, agent: AgentClient, sink: Sink, http: aiohttp.ClientSession
) -> None:
    """A file that takes a second, then "use it" 100 ms later: in that order; another channel waits for neither (6)."""
    channel, other = await bound(agent, sink.hook(new_name())), await bound(agent, sink.hook(new_name()))
    sink.files["slow"], sink.stalls["slow"] = bytes(100_000), 1.0
    offer = {"url": f"{sink.url}/files/slow", "filename": "slow.bin"}
    with_file = asyncio.create_task(post(http, up, channel, says("p1", "", offer)))
    await asyncio.sleep(0.1)
    use_it = asyncio.create_task(post(http, up, channel, says("p2", "use it")))
    await asyncio.sleep(0.1)
    assert (await post(http, up, other, says("p3", "free")))[0] == 202
    assert (await heard(agent))["text"] == "free"
    assert await with_file == await use_it == (202, {"status": "accepted"})
    first, second = await heard(agent), await heard(agent)
    assert [file["filename"] for file in first["files"]] == ["slow.bin"]
    assert (first["message_id"], second["text"]) == ("p1", "use it")
    assert await post(http, up, channel, says("p1", "", offer)) == (202, {"status": "duplicate"})
    assert sink.fetched.count("slow") == 1


def files_in(process: Process) -> list[str]:
    return sorted(str(path.relative_to(data_folder(process))) for path in data_folder(process).rglob("*"))


def is_clean(name: str) -> bool:
    """Whether a name is only a name."""
    return (
        0 < len(name.encode()) <= 255
        and not any(char in "/\\" or unicodedata.category(char) in ("Cc", "Cs") for char in name)
        and not name.startswith(".")
        and name.partition(".")[0].upper() != "CON"
        and name == unicodedata.normalize("NFC", name)
    )


def expect(name: str, given: str) -> None:
    """What report 29 asks of one name."""
    assert is_clean(name), (given, name)
    if given.startswith("é"):
        assert name.startswith("é" * 100)
        assert name.endswith(".pdf")
    if given.startswith("报"):
        assert name == given


async def test_names_of_inbound_files_are_only_names(
    up: Process, agent: AgentClient, sink: Sink, http: aiohttp.ClientSession
) -> None:
    """No path, no control, no reserved name, at most 255 bytes; a Chinese name stays as it is (field report 29)."""
    channel = await bound(agent, sink.hook(new_name()))
    sink.files["plain"] = b"plain"
    before = files_in(up)
    for given in NAMES:
        body = says(new_name(), "see", {"url": f"{sink.url}/files/plain", "filename": given})
        assert (await post(http, up, channel, body))[0] == 202
        (file,) = (await heard(agent))["files"]
        expect(file["filename"], given)
        async with http.get(f"{agent.base_url}{file['download_url']}") as answer:
            assert await answer.read() == b"plain"
            assert answer.headers["Content-Type"] == file["mime_type"]
    grown = set(files_in(up)) - set(before)
    assert len(grown) == len(NAMES)
    assert all(Path(path).parent == Path("files") for path in grown)


async def upload_raw(http: aiohttp.ClientSession, agent: AgentClient, channel: str, name: str) -> tuple[int, str]:
    """Uploads as a browser does (RFC 7578): the name in UTF-8, quote and line ends escaped. Status and ref."""
    written = name.replace('"', "%22").replace("\r", "%0D").replace("\n", "%0A")
    part = f'--b\r\nContent-Disposition: form-data; name="file"; filename="{written}"\r\nContent-Type: text/plain'
    headers = {
        "Content-Type": "multipart/form-data; boundary=b",
        "Authorization": f"Bearer {API_KEY}",
        "X-XAgent-Connector-Channel-ID": channel,
    }
    body = f"{part}\r\n\r\nplain\r\n--b--\r\n".encode()
    async with http.post(f"{agent.base_url}/files/uploads", data=body, headers=headers) as answer:
        return answer.status, str((await answer.json()).get("file_ref"))


async def test_names_of_uploads_are_only_names(
    up: Process, agent: AgentClient, sink: Sink, http: aiohttp.ClientSession
) -> None:
    """The same for what an agent uploads, as the receiver and the one who fetches it see it (field report 29)."""
    name = new_name()
    channel = await bound(agent, sink.hook(name))
    before = files_in(up)
    for given in NAMES:
        status, ref = await upload_raw(http, agent, channel, given)
        if "\0" in given:  # no header can hold it, so no such name comes in
            assert status == 400
            continue
        assert status == 200
        file = {"type": "file", "file_ref": ref, "filename": "x", "mime_type": "text/plain", "byte_size": 5}
        assert (await agent.send_message(channel, "", files=[file]))["status"] == "accepted"
        (sent,) = verified(sink.received(name)[-1])["files"]
        expect(sent["filename"], given)
        assert sent["mime_type"] == "text/plain"
        async with http.get(sent["url"]) as answer:
            assert await answer.read() == b"plain"
            assert answer.headers["Content-Type"].startswith("text/plain")
    grown = set(files_in(up)) - set(before)
    assert all(Path(path).parent == Path("files") for path in grown)


async def test_no_secret_is_in_the_log(up: Process, sink: Sink) -> None:
    """After all of the above: neither a signing secret nor a whole hook is in the output (invariant 7)."""
    log = up.log.read_text()
    assert SECRET not in log
    assert f"{sink.url}/hook/" not in log
    assert "Traceback" not in log
