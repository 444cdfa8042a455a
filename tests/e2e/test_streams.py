"""Streams, long replies and uploads against the scripted platform: what a person sees in the end, and how often."""

import asyncio
import gzip
import re
import zlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import pytest_asyncio

from shared.agent.client import AgentClient
from shared.records import open_records
from tests.support.process import API_KEY, Process, Recording, embedded, started, until
from tests.support.raw import raw

pytestmark = pytest.mark.asyncio(loop_scope="module")

QUICK = {
    "SLUICE_LIMIT_RETRY_FIRST_SECONDS": "0.2",
    "SLUICE_LIMIT_PARK_AFTER_SECONDS": "0.8",
    "SLUICE_LIMIT_OUTBOUND_ATTEMPTS": "4",
    "SLUICE_LIMIT_UPLOAD_BYTES": str(1024 * 1024),
}
IN_LANE, PARKED = 0.5, 1.5
AUTHORIZED = {"Authorization": f"Bearer {API_KEY}"}
Call = dict[str, Any]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def up(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Process]:
    async with started(embedded(tmp_path_factory.mktemp("streams"), **QUICK)) as process:
        yield process


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def http() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession() as session:
        yield session


@pytest_asyncio.fixture(loop_scope="module")
async def agent(up: Process) -> AsyncIterator[AgentClient]:
    async with AgentClient.connect(f"{up.url}/im.recording", API_KEY, timeout=30) as agent:
        yield agent


@pytest.fixture
def recording(up: Process, http: aiohttp.ClientSession) -> Recording:
    return Recording(http, up.url)


async def calls_of(recording: Recording, channel: str, outcome: str = "stored") -> list[Call]:
    """What the platform of a channel was asked, in order, activity left out."""
    calls = await recording.calls(outcome=outcome)
    return [call for call in calls if call["channel"] == channel and call["kind"] != "activity"]


async def previewed(recording: Recording, channel: str, text: str) -> None:
    """Waits until a text is shown."""

    async def shown() -> bool:
        return any(call["text"] == text for call in await calls_of(recording, channel))

    await until(shown)


def messages(calls: list[Call]) -> list[str]:
    """The texts that a person sees in the end: each message as it was last edited."""
    seen: dict[str, str] = {}
    for call in calls:
        if call["kind"] == "remove":
            del seen[str(call["handle"])]
        else:
            seen[str(call["handle"] or f"{call['chat']}/{call['key']}")] = str(call["text"])
    return list(seen.values())


async def dead_letters(process: Process, channel: str) -> list[tuple[str, str, int]]:
    """Code, message_id and attempts of each, as an operator finds them."""
    database = Path(process.arguments[-1]) / "sluice.db"
    async with open_records(f"sqlite:///{database}") as records:
        return [(row.code, row.message_id, row.attempts) for row in await records.dead.find(100, channel)]


# Report 8: the tail


@pytest.mark.parametrize("slow", [{"latency_ms": 2000}, {"stall_ms": 2000}], ids=["late", "stored then lost"])
@pytest.mark.parametrize("final", ["Alpha Beta Gamma.", "Alpha Beta Gamma, corrected."])
async def test_a_final_behind_a_slow_edit_lands_as_one_message(
    agent: AgentClient, recording: Recording, slow: dict[str, int], final: str
) -> None:
    """The preview's edit is in flight when the last delta and the final come: one message, exact text (report 8)."""
    channel = (await agent.open()).channel_id
    await recording.script(steps=[{"kind": "edit", "chat": channel, **slow}])
    await agent.send_delta(channel, "m1", 1, "Alpha ")
    await previewed(recording, channel, "Alpha ")
    await agent.send_delta(channel, "m1", 2, "Beta ")
    await asyncio.sleep(0.6)  # the edit is under way
    await agent.send_delta(channel, "m1", 3, "Gamma.")
    await asyncio.sleep(0.1)
    assert (await agent.send_message(channel, final, message_id="m1"))["status"] == "accepted"
    await agent.send_delta(channel, "m1", 4, " late")
    await asyncio.sleep(0.6)
    calls = await calls_of(recording, channel)
    assert [call["kind"] for call in calls].count("send") == 1
    assert messages(calls) == [final]
    assert calls[-1]["text"] == final
    assert agent.errors.empty()


async def test_the_same_message_id_on_two_channels_is_two_messages(agent: AgentClient, recording: Recording) -> None:
    """Ids are a channel's own: on a platform that dedupes by key neither stream swallows the other (reports 1, 8)."""
    channels = [(await agent.open()).channel_id for _ in range(2)]
    await recording.script(keyed=True)
    for channel in channels:
        await agent.send_delta(channel, "same", 1, f"begin {channel}")
        await previewed(recording, channel, f"begin {channel}")
    for channel in channels:
        assert (await agent.send_message(channel, f"all of {channel}", message_id="same"))["status"] == "accepted"
        calls = await calls_of(recording, channel)
        assert [call["kind"] for call in calls] == ["send", "edit"]
        assert messages(calls) == [f"all of {channel}"]


# Report 11: sequences


async def test_sequences_restart_with_each_message_and_a_late_delta_is_ignored(
    agent: AgentClient, recording: Recording
) -> None:
    """A new message begins at 1 again at once; a delta of a finished one is neither shown nor answered (report 11)."""
    channel = (await agent.open()).channel_id
    for message_id, count in (("a", 10), ("b", 5)):
        pieces = [f"{message_id}{n} " for n in range(count)]
        for sequence, piece in enumerate(pieces, start=1):
            await agent.send_delta(channel, message_id, sequence, piece)
        await previewed(recording, channel, "".join(pieces))
        assert (await agent.send_message(channel, "".join(pieces), message_id=message_id))["status"] == "accepted"
    before = await calls_of(recording, channel)
    for late in (10, 11, 99):
        await agent.send_delta(channel, "a", late, "late")
    assert (await agent.send_message(channel, "c", message_id="c"))["status"] == "accepted"
    await asyncio.sleep(0.6)
    assert (await calls_of(recording, channel))[len(before) :] == [(await calls_of(recording, channel))[-1]]
    assert messages(await calls_of(recording, channel)) == ["a0 a1 a2 a3 a4 a5 a6 a7 a8 a9 ", "b0 b1 b2 b3 b4 ", "c"]
    assert agent.errors.empty()


async def test_a_producer_that_starts_over_repeats_nothing(up: Process, recording: Recording) -> None:
    """It sends the same deltas again on a new socket and goes on: repeats are ignored, the rest joined (report 11)."""
    async with AgentClient.connect(f"{up.url}/im.recording", API_KEY) as first:
        channel, connector = (await first.open()).channel_id, first.connector_id
        for n in range(1, 6):
            await first.send_delta(channel, "m1", n, f"{n} ")
        await previewed(recording, channel, "1 2 3 4 5 ")
    async with AgentClient.connect(f"{up.url}/im.recording", API_KEY, connector_id=connector) as second:
        await second.open(channel)
        for n in range(1, 9):
            await second.send_delta(channel, "m1", n, f"{n} ")
        await previewed(recording, channel, "1 2 3 4 5 6 7 8 ")
        assert (await second.send_message(channel, "1 2 3 4 5 6 7 8 ", message_id="m1"))["status"] == "accepted"
        assert second.errors.empty()
    assert messages(await calls_of(recording, channel)) == ["1 2 3 4 5 6 7 8 "]


async def test_a_viewer_that_attaches_in_mid_stream_sees_the_whole_text(
    up: Process, http: aiohttp.ClientSession
) -> None:
    """At 300 of 400 deltas: every preview begins at the beginning, the message has the full text once (report 11)."""
    pieces = [f"{n} " for n in range(400)]
    text = "".join(pieces)
    async with AgentClient.connect(f"{up.url}/im.console", API_KEY, timeout=30) as agent:
        channel = (await agent.open()).channel_id
        for sequence, piece in enumerate(pieces[:300], start=1):
            await agent.send_delta(channel, "m1", sequence, piece)
        async with http.ws_connect(f"{up.url}/im.console/chat/{channel}", headers=AUTHORIZED) as page:
            await asyncio.sleep(0.3)
            for sequence, piece in enumerate(pieces[300:], start=301):
                await agent.send_delta(channel, "m1", sequence, piece)
                await asyncio.sleep(0.01)
            assert (await agent.send_message(channel, text, message_id="m1"))["status"] == "accepted"
            events = [await page.receive_json(timeout=30)]
            while events[-1]["event"] != "message":
                events.append(await page.receive_json(timeout=30))
        async with http.ws_connect(f"{up.url}/im.console/chat/{channel}", headers=AUTHORIZED) as page:
            again = await page.receive_json(timeout=30)
    previews = [event["text"] for event in events if event["event"] == "preview"]
    assert previews
    assert all(text.startswith(preview) for preview in previews)
    assert min(map(len, previews)) >= len("".join(pieces[:300]))
    assert previews == sorted(previews, key=len)
    assert (events[-1]["text"], again["text"]) == (text, text)
    assert {event.get("message_id") for event in events} == {"m1"}


# Report 37: what is lost is never passed off as whole


async def test_a_gap_is_refused_and_the_final_says_it_all(agent: AgentClient, recording: Recording) -> None:
    """The error names the expected sequence; only a final with its text ends the message, never a short one (37)."""
    channel = (await agent.open()).channel_id
    await agent.send_delta(channel, "m1", 1, "one ")
    packet_id = await agent.send_delta(channel, "m1", 3, "three ")
    error = await asyncio.wait_for(agent.errors.get(), 30)
    assert (error["error"]["code"], error["reply_to"]) == ("sequence_gap", packet_id)
    assert (error["payload"]["message_id"], error["payload"]["expected_sequence"]) == ("m1", 2)
    empty = await agent.send_message(channel, "", message_id="m1")
    assert (empty["status"], empty["code"]) == ("rejected", "invalid_packet")
    await agent.send_delta(channel, "m1", 2, "two ")
    await agent.send_delta(channel, "m1", 3, "three ")
    await previewed(recording, channel, "one two three ")
    assert (await agent.send_message(channel, "one two three four", message_id="m1"))["status"] == "accepted"
    assert messages(await calls_of(recording, channel)) == ["one two three four"]


# Report 5: many parts

PARTS = ["a" * 1999 + " ", "b" * 1999 + " ", "c" * 100]
LONG = "".join(PARTS)


@pytest.mark.parametrize("keyed", [True, False])
@pytest.mark.parametrize("seconds", [IN_LANE, PARKED])
async def test_a_part_that_is_throttled_is_sent_once_in_its_place(
    agent: AgentClient,
    recording: Recording,
    keyed: bool,  # noqa: FBT001
    seconds: float,
) -> None:
    """Three parts, the second refused once: 1, 2, 3, each accepted once, and the wait is kept (report 5a)."""
    channel = (await agent.open()).channel_id
    step = {"kind": "send", "chat": channel, "ordinal": 2, "refusal": "throttled", "retry_after": seconds}
    await recording.script(keyed=keyed, text_limit=2000, steps=[step])
    assert (await agent.send_message(channel, LONG, message_id="m1"))["status"] == "accepted"
    calls = await calls_of(recording, channel)
    assert [call["part"] for call in calls] == [0, 1, 2]
    assert "".join(str(call["text"]) for call in calls).replace(" ", "") == LONG.replace(" ", "")
    (refused,) = await calls_of(recording, channel, "throttled")
    assert calls[1]["at"] - refused["at"] >= seconds - 0.01


@pytest.mark.parametrize("keyed", [True, False])
async def test_a_part_that_never_lands_ends_the_message_and_is_named(
    up: Process,
    agent: AgentClient,
    recording: Recording,
    keyed: bool,  # noqa: FBT001
) -> None:
    """The second always fails: the first accepted once ever, the third never sent, the ack names it (report 5b)."""
    channel = (await agent.open()).channel_id
    step = {"kind": "send", "chat": channel, "ordinal": 2, "times": 0, "refusal": "failed"}
    await recording.script(keyed=keyed, text_limit=2000, steps=[step])
    for _ in range(2):
        ack = await agent.send_message(channel, LONG, message_id="m1")
        assert (ack["status"], ack["code"], ack["retryable"]) == ("rejected", "target_delivery_failed", False)
        assert "part 2" in ack["message"]
    calls = await calls_of(recording, channel)
    assert [call["part"] for call in calls] == [0]
    assert {call["part"] for call in await calls_of(recording, channel, "failed")} == {1}
    assert len(await calls_of(recording, channel, "failed")) == 4
    assert await dead_letters(up, channel) == [("target_delivery_failed", "m1", 4)]


async def test_a_part_whose_fate_is_unknown_is_never_sent_twice(
    up: Process, agent: AgentClient, recording: Recording
) -> None:
    """No key, stored, no answer: delivery_uncertain that names the part; not even a repeat sends (reports 1, 5)."""
    channel = (await agent.open()).channel_id
    step = {"kind": "send", "chat": channel, "ordinal": 2, "stall_ms": 100}
    await recording.script(keyed=False, text_limit=2000, steps=[step])
    for _ in range(2):
        ack = await agent.send_message(channel, LONG, message_id="m1")
        assert (ack["status"], ack["code"], ack["retryable"]) == ("rejected", "delivery_uncertain", False)
        assert "part 2" in ack["message"]
    assert [call["part"] for call in await calls_of(recording, channel)] == [0, 1]
    assert [code for code, _, _ in await dead_letters(up, channel)] == ["delivery_uncertain"]


async def test_no_preview_is_longer_than_the_platform_takes(agent: AgentClient, recording: Recording) -> None:
    """A stream that grows beyond one message: each call within the limit, the final whole and once (reports 5, 24)."""
    channel = (await agent.open()).channel_id
    await recording.script(text_limit=2000)
    for sequence, piece in enumerate(PARTS, start=1):
        await agent.send_delta(channel, "m1", sequence, piece)
        await asyncio.sleep(0.5)
    assert (await agent.send_message(channel, LONG, message_id="m1"))["status"] == "accepted"
    calls = await calls_of(recording, channel)
    assert len(calls) > 3
    assert max(len(str(call["text"])) for call in calls) <= 2000
    assert "".join(messages(calls)).replace(" ", "") == LONG.replace(" ", "")


# Report 6: order


@pytest.mark.parametrize("seconds", [IN_LANE, PARKED])
async def test_a_throttled_first_holds_back_its_own_channel_only(
    agent: AgentClient, recording: Recording, seconds: float
) -> None:
    """First, second, third in order, none before the time; another channel is not delayed (report 6)."""
    slow, free = (await agent.open()).channel_id, (await agent.open()).channel_id
    step = {"kind": "send", "chat": slow, "refusal": "throttled", "retry_after": seconds}
    await recording.script(steps=[step])
    sending = [asyncio.create_task(agent.send_message(slow, text)) for text in ("first", "second")]
    assert (await agent.send_message(free, "free"))["status"] == "accepted"
    assert not any(task.done() for task in sending)
    await asyncio.sleep(0.2)
    sending.append(asyncio.create_task(agent.send_message(slow, "third")))
    assert [ack["status"] for ack in await asyncio.gather(*sending)] == ["accepted"] * 3
    calls = await calls_of(recording, slow)
    assert [call["text"] for call in calls] == ["first", "second", "third"]
    (refused,) = await calls_of(recording, slow, "throttled")
    assert calls[0]["at"] - refused["at"] >= seconds - 0.01


@pytest.mark.parametrize("seconds", [IN_LANE, PARKED])
async def test_a_throttled_final_edit_waits_and_is_never_a_second_message(
    agent: AgentClient, recording: Recording, seconds: float
) -> None:
    """The final edit is told to wait: it does, is refused once, and no copy is sent beside the preview (report 23)."""
    channel, free = (await agent.open()).channel_id, (await agent.open()).channel_id
    step = {"kind": "edit", "chat": channel, "refusal": "throttled", "retry_after": seconds}
    await recording.script(steps=[step])
    await agent.send_delta(channel, "m1", 1, "half ")
    await previewed(recording, channel, "half ")
    sending = asyncio.create_task(agent.send_message(channel, "half and half", message_id="m1"))
    assert (await agent.send_message(free, "free"))["status"] == "accepted"
    assert not sending.done()
    assert (await sending)["status"] == "accepted"
    calls = await calls_of(recording, channel)
    assert [call["kind"] for call in calls] == ["send", "edit"]
    assert messages(calls) == ["half and half"]
    (refused,) = await calls_of(recording, channel, "throttled")
    assert calls[-1]["at"] - refused["at"] >= seconds - 0.01


# Reports 24 and 25: what passes and what does not


async def test_edits_that_fail_on_the_way_cost_no_text(agent: AgentClient, recording: Recording) -> None:
    """Previews are refused in mid-stream, then edits work again: the final has it all, as one message (report 24)."""
    channel = (await agent.open()).channel_id
    step = {"kind": "edit", "chat": channel, "ordinal": 2, "times": 2, "refusal": "failed"}
    await recording.script(steps=[step])
    pieces = [f"{n} " for n in range(1, 13)]
    for sequence, piece in enumerate(pieces, start=1):
        await agent.send_delta(channel, "m1", sequence, piece)
        await asyncio.sleep(0.15)
    assert (await agent.send_message(channel, "".join(pieces), message_id="m1"))["status"] == "accepted"
    assert messages(await calls_of(recording, channel)) == ["".join(pieces)]


async def test_a_preview_that_can_be_edited_no_more_is_not_called_delivered(
    up: Process, agent: AgentClient, recording: Recording
) -> None:
    """The final edit is refused for good: rejected and filed, and the half of a text goes (report 24, contract.md)."""
    channel = (await agent.open()).channel_id
    await recording.script(steps=[{"kind": "edit", "chat": channel, "times": 0, "refusal": "permanent"}])
    await agent.send_delta(channel, "m1", 1, "half ")
    await previewed(recording, channel, "half ")
    ack = await agent.send_message(channel, "half and half", message_id="m1")
    assert (ack["status"], ack["code"]) == ("rejected", "target_delivery_failed")
    assert messages(await calls_of(recording, channel)) == []
    assert await dead_letters(up, channel) == [("target_delivery_failed", "m1", 1)]


@pytest.mark.timeout(180)
async def test_what_passes_is_tried_again_what_does_not_is_not_and_a_restart_sends_nothing(
    tmp_path: Path, http: aiohttp.ClientSession
) -> None:
    """Permanent: one try. Failed or never left twice: three. After a restart: no call, the same answers (report 25)."""
    process = embedded(tmp_path, **QUICK)
    wanted = {"permanent": "rejected", "revoked": "rejected", "failed": "accepted", "never_left": "accepted"}
    async with started(process), AgentClient.connect(f"{process.url}/im.recording", API_KEY, timeout=30) as agent:
        recording, connector = Recording(http, process.url), agent.connector_id
        channels = {refusal: (await agent.open()).channel_id for refusal in wanted}
        steps = [{"kind": "send", "chat": c, "refusal": r, "times": 2} for r, c in channels.items()]
        await recording.script(steps=steps)
        for refusal, status in wanted.items():
            ack = await agent.send_message(channels[refusal], "text", message_id="m1")
            assert ack["status"] == status, ack
            tries = await calls_of(recording, channels[refusal], "")
            outcomes = [refusal] if status == "rejected" else [refusal, refusal, "stored"]
            assert [call["outcome"] for call in tries] == outcomes
            letters = await dead_letters(process, channels[refusal])
            assert letters == ([("target_delivery_failed", "m1", 1)] if status == "rejected" else [])
    async with (
        started(process),
        AgentClient.connect(f"{process.url}/im.recording", API_KEY, connector_id=connector, timeout=30) as agent,
    ):
        recording = Recording(http, process.url)
        for refusal, status in wanted.items():
            await agent.open(channels[refusal])
            ack = await agent.send_message(channels[refusal], "text", message_id="m1")
            assert ack["status"] == ("rejected" if status == "rejected" else "duplicate")
        await asyncio.sleep(1.5)  # the owner of the partitions has looked at what is parked
        assert await recording.calls(outcome="") == []


# Report 28: uploads


def resident(process: Process) -> int:
    """Bytes of memory that the process holds."""
    found = re.search(r"^VmRSS:\s+(\d+) kB$", Path(f"/proc/{process.pid}/status").read_text(), re.MULTILINE)
    assert found is not None
    return int(found[1]) * 1024


def stored(process: Process) -> list[str]:
    return sorted(path.name for path in (Path(process.arguments[-1]) / "files").iterdir())


def upload_headers(channel: str, **more: str) -> dict[str, str]:
    return {
        **AUTHORIZED,
        "X-XAgent-Connector-Channel-ID": channel,
        "Content-Type": "multipart/form-data; boundary=b",
        **more,
    }


BEGIN = b'--b\r\nContent-Disposition: form-data; name="file"; filename="a.bin"\r\nContent-Type: image/png\r\n\r\n'
END = b"\r\n--b--\r\n"


@pytest.mark.parametrize("encoding", ["identity", "gzip", "deflate"])
async def test_an_upload_without_a_length_is_cut_at_the_cap(
    up: Process, agent: AgentClient, http: aiohttp.ClientSession, encoding: str
) -> None:
    """Chunked 64 MiB, or a few KiB that unpack to as much: 413, memory bounded, no file left (report 28a, b)."""
    channel = (await agent.open()).channel_id
    plain, chunk = [BEGIN, *[bytes(64 * 1024)] * 1024, END], 64 * 1024
    if encoding == "gzip":
        plain = [gzip.compress(b"".join(plain))]
    elif encoding == "deflate":
        plain = [zlib.compress(b"".join(plain))]

    async def body() -> AsyncIterator[bytes]:
        for piece in plain:
            for start in range(0, len(piece), chunk):
                yield piece[start : start + chunk]

    before, held = stored(up), resident(up)
    url = f"{agent.base_url}/files/uploads"
    headers = upload_headers(channel, **({} if encoding == "identity" else {"Content-Encoding": encoding}))
    async with http.post(url, data=body(), headers=headers, skip_auto_headers=["Accept-Encoding"]) as answer:
        assert (answer.status, (await answer.json())["error"]["code"]) == (413, "file_too_large")
    assert resident(up) - held < 40 * 1024 * 1024
    assert stored(up) == before
    assert await agent.upload(channel, b"small", "a.txt", "text/plain")


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"--b\r\n",
        BEGIN,
        BEGIN + b"half",
        BEGIN.replace(b"image/png", b"image/png\r\nContent-Length: 1000") + b"half" + END,
        BEGIN.replace(b"image/png", b"image/png\r\nContent-Length: soon") + b"half" + END,
        BEGIN.replace(b'name="file"', b'name="other"') + b"whole" + END,
    ],
    ids=["empty", "boundary", "headers", "half", "short of its length", "no length", "no file"],
)
async def test_an_upload_that_is_no_whole_file_is_400_and_leaves_nothing(
    up: Process, agent: AgentClient, http: aiohttp.ClientSession, body: bytes
) -> None:
    """Malformed or cut short: never stored as if it were whole, never 500 (report 28)."""
    channel = (await agent.open()).channel_id
    before = stored(up)
    async with http.post(f"{agent.base_url}/files/uploads", data=body, headers=upload_headers(channel)) as answer:
        assert (answer.status, (await answer.json())["error"]["code"]) == (400, "file_required")
    assert stored(up) == before


async def test_an_uploader_that_vanishes_leaves_no_file(up: Process, agent: AgentClient) -> None:
    """The connection ends in the middle of the body: the temporary file is gone (report 28)."""
    channel = (await agent.open()).channel_id
    before = stored(up)
    async with raw(up.url) as socket:
        lines = [f"{name}: {value}" for name, value in upload_headers(channel, Host="test").items()]
        head = "\r\n".join(["POST /im.recording/files/uploads HTTP/1.1", *lines, "Content-Length: 500000", "", ""])
        await socket.write(head.encode() + BEGIN + bytes(200_000))

        async def begun() -> bool:
            return stored(up) != before

        await until(begun)

    async def gone() -> bool:
        return stored(up) == before

    await until(gone)


async def test_a_page_that_is_called_an_image_is_never_served_inline(
    agent: AgentClient, http: aiohttp.ClientSession
) -> None:
    """Its type is told by its bytes (report 28c)."""
    channel = (await agent.open()).channel_id
    ref = await agent.upload(channel, b"<html><script>alert(1)</script>", "cat.png", "image/png")
    async with http.get(f"{agent.base_url}/files/refs/{ref}") as answer:
        assert answer.headers["Content-Disposition"].startswith("attachment")
        assert answer.headers["X-Content-Type-Options"] == "nosniff"
        assert not answer.headers["Content-Type"].startswith("image/")


async def test_nothing_of_this_left_a_traceback(up: Process) -> None:
    """After all of the above no handler has failed."""
    assert "Traceback" not in up.log.read_text()
