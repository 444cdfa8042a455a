"""`im.telegram` end to end: an embedded process against the Bot API fake."""

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from shared.agent.client import AgentClient
from shared.records import open_records
from tests.support.process import API_KEY, Process, embedded, started, until
from tests.support.telegram_api import Step, TelegramApi, telegram_api

pytestmark = pytest.mark.asyncio(loop_scope="module")

CALL_SECONDS = 2.0
ATTEMPTS = 4
SUPERGROUP = -100777


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def api() -> AsyncIterator[TelegramApi]:
    async with telegram_api() as api:
        yield api


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def up(api: TelegramApi, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Process]:
    settings = {
        "SLUICE_TELEGRAM_API_URL": api.url,
        "SLUICE_LIMIT_RETRY_FIRST_SECONDS": "0.1",
        "SLUICE_LIMIT_CALL_SECONDS": str(CALL_SECONDS),
        "SLUICE_LIMIT_OUTBOUND_ATTEMPTS": str(ATTEMPTS),
    }
    async with started(embedded(tmp_path_factory.mktemp("telegram"), **settings)) as process:
        yield process


@pytest_asyncio.fixture(loop_scope="module")
async def agent(up: Process) -> AsyncIterator[AgentClient]:
    async with AgentClient.connect(f"{up.url}/im.telegram", API_KEY, timeout=30) as agent:
        yield agent


class Place:
    """A channel that is signed in, and the chat that it is bound to."""

    def __init__(self, api: TelegramApi, agent: AgentClient, token: str, chat: int, channel: str) -> None:
        self.api, self.agent, self.token, self.chat, self.channel = api, agent, token, chat, channel

    async def final(self, text: str, message_id: str | None = None, **more: Any) -> dict[str, Any]:
        """The ack of a final."""
        return await self.agent.send_message(self.channel, text, message_id=message_id, **more)

    async def stream(self, message_id: str, *pieces: str) -> None:
        """Deltas, until something shows."""
        for sequence, text in enumerate(pieces, start=1):
            await self.agent.send_delta(self.channel, message_id, sequence, text)
        await until(self.shown)

    async def shown(self) -> bool:
        """Whether a person sees anything; for `until`."""
        return bool(self.texts())

    async def post(self, text: str, message_id: str) -> None:
        """Sends a final and waits for no ack."""
        await self.agent.send("chat.message", self.channel, {"message_id": message_id, "text": text})

    def stored(self, text: str) -> Callable[[], Awaitable[bool]]:
        """Whether a person sees it; for `until`."""

        async def look() -> bool:
            return text in self.texts()

        return look

    def texts(self) -> list[str]:
        """What a person sees."""
        return [message.text for message in self.api.messages(self.chat)]

    def calls(self, method: str = "", outcome: str = "") -> list[Any]:
        """What came to the chat."""
        return self.api.sent(method, self.chat, outcome)


async def signed_in(agent: AgentClient, channel: str, token: str, chat: object) -> dict[str, Any]:
    answer = await agent.request(
        "auth.start", channel, {"flow_id": "telegram", "input": {"bot_token": token, "chat_id": chat}}
    )
    payload: dict[str, Any] = answer["payload"]
    return payload


async def place(api: TelegramApi, agent: AgentClient, chat: int, token: str = "", kind: str = "private") -> Place:
    token = token or api.add_bot()
    api.add_chat(chat, kind, f"chat {chat}")
    channel = (await agent.open()).channel_id
    assert (await signed_in(agent, channel, token, str(chat)))["status"] == "authenticated"
    return Place(api, agent, token, chat, channel)


async def dead_letters(process: Process, channel: str) -> list[tuple[str, str]]:
    """Code and detail of each, as an operator finds them."""
    async with open_records(f"sqlite:///{Path(process.arguments[-1]) / 'sluice.db'}") as records:
        return [(row.code, row.detail) for row in await records.dead.find(100, channel)]


async def test_signing_in_names_what_is_wrong_and_then_who_it_is(api: TelegramApi, agent: AgentClient) -> None:
    """The Card's form: each wrong field by its name; the Descriptor shows chat and bot, and never the token."""
    token = api.add_bot(7)
    api.add_chat(100, title="Ada")
    channel = (await agent.open()).channel_id
    unknown = await signed_in(agent, channel, "123456:" + "x" * 35, "100")
    assert (unknown["status"], unknown["message"].split(":")[0]) == ("failed", "bot_token")
    absent = await signed_in(agent, channel, token, "101")
    assert (absent["status"], absent["message"].split(":")[0]) == ("failed", "chat_id")
    assert (await agent.send_message(channel, "x"))["code"] == "connection_not_authenticated"
    answer = await signed_in(agent, channel, token, "100")
    view = answer["connection_descriptor"]
    assert (answer["status"], view["connection"]["status"]) == ("authenticated", "connected")
    assert (view["target"]["display_name"], view["target"]["account_hint"]) == ("Ada", "@bot7_bot")
    assert token not in str(answer)


async def test_a_final_is_one_message_and_a_repeat_none(api: TelegramApi, agent: AgentClient) -> None:
    """Markdown shows as styles; the repeat is a duplicate."""
    here = await place(api, agent, 110)
    assert (await here.final("**hello** <b>", "m1"))["status"] == "accepted"
    assert (await here.final("**hello** <b>", "m1"))["status"] == "duplicate"
    assert here.texts() == ["hello <b>"]
    assert len(here.calls("sendMessage")) == 1


async def test_a_streamed_reply_ends_as_one_message(api: TelegramApi, agent: AgentClient) -> None:
    """The first delta sends, the rest edits, the final is the last edit, nothing comes after (field report 8)."""
    here = await place(api, agent, 120)
    await here.stream("m1", "Alpha ", "**Be", "ta** ")
    assert (await here.final("Alpha **Beta** Gamma.", "m1"))["status"] == "accepted"
    await agent.send_delta(here.channel, "m1", 4, "late")
    assert (await here.final("next", "m2"))["status"] == "accepted"
    assert here.texts() == ["Alpha Beta Gamma.", "next"]
    assert len(here.calls("sendMessage")) == 2


async def test_a_long_streamed_reply_goes_on_in_further_messages(api: TelegramApi, agent: AgentClient) -> None:
    """The preview becomes the first part, the rest follows it; the parts join to the text (field report 5)."""
    here = await place(api, agent, 130)
    text = "\n\n".join(f"{n}. " + "word " * 50 for n in range(60))
    await here.stream("m1", text[:8000], text[8000:])
    assert (await here.final(text, "m1"))["status"] == "accepted"
    assert len(here.texts()) == 4
    assert "".join("".join(here.texts()).split()) == "".join(text.split())
    assert len(here.calls("sendMessage")) == 4


async def test_a_flood_on_the_final_edit_is_waited_out_while_others_go_on(api: TelegramApi, agent: AgentClient) -> None:
    """Field report 23: one message, exact text, the edit after 6 s, no send, one refused call; B within 1 s."""
    here = await place(api, agent, 140)
    there = await place(api, agent, 141, here.token)
    text = "The final text. " * 190
    await here.stream("m1", text[:1000], text[1000:2000])
    api.script(Step(method="editMessageText", chat=140, text=text.strip()[-2500:], code=429, retry_after=6))
    started_at = asyncio.get_running_loop().time()
    final = asyncio.create_task(here.final(text, "m1"))
    while not here.calls(outcome="refused 429"):  # noqa: ASYNC110 - the fake has no event for it
        await asyncio.sleep(0.01)
    refused_at = here.calls(outcome="refused 429")[0].at
    asked_at = asyncio.get_running_loop().time()
    assert (await there.final("quick"))["status"] == "accepted"
    assert there.calls("sendMessage")[0].at - asked_at < 1
    assert (await final)["status"] == "accepted"
    assert here.texts() == [text.strip()]
    assert len(here.calls("sendMessage")) == 1
    assert len(here.calls(outcome="refused 429")) == 1
    assert here.calls("editMessageText")[-1].at - refused_at >= 6
    assert asyncio.get_running_loop().time() - started_at < 12


async def test_a_part_that_is_flooded_is_resumed_and_one_that_fails_is_named(
    api: TelegramApi, agent: AgentClient, up: Process
) -> None:
    """Field report 5: parts that landed are never sent again; what follows a failed one is never sent."""
    text = "a" * 4096 + "b" * 4096 + "c" * 100
    here = await place(api, agent, 150)
    api.script(Step(chat=150, text="b", code=429, retry_after=1))
    assert (await here.final(text))["status"] == "accepted"
    assert [one[0] for one in here.texts()] == ["a", "b", "c"]
    assert [call.said[0] for call in here.calls("sendMessage")] == ["a", "b", "b", "c"]
    there = await place(api, agent, 151)
    api.script(Step(chat=151, text="b", times=-1, code=500))
    ack = await there.final(text)
    assert (ack["status"], ack["code"], ack["retryable"]) == ("rejected", "target_delivery_failed", False)
    assert "part 2 failed; 1 delivered" in str(ack)
    assert [call.said[0] for call in there.calls("sendMessage")] == ["a", *"b" * ATTEMPTS]
    assert len(await dead_letters(up, there.channel)) == 1


async def test_a_lost_answer_is_uncertain_and_never_sent_again(
    api: TelegramApi, agent: AgentClient, up: Process
) -> None:
    """Field report 1a: stored, then silence: one send, `delivery_uncertain`, and the same for its repeat."""
    here = await place(api, agent, 160)
    api.script(Step(method="sendMessage", chat=160, stall=3 * CALL_SECONDS))
    for _ in range(2):
        ack = await here.final("pay 30", "m1")
        assert (ack["status"], ack["code"], ack["retryable"]) == ("rejected", "delivery_uncertain", False)
    assert len(here.calls("sendMessage")) == 1
    assert [code for code, _ in await dead_letters(up, here.channel)] == ["delivery_uncertain"]


async def test_a_lost_answer_to_the_final_edit_is_simply_asked_again(api: TelegramApi, agent: AgentClient) -> None:
    """An edit can be repeated: "not modified" is done (contract.md, Delivery)."""
    here = await place(api, agent, 170)
    await here.stream("m1", "Alpha")
    api.script(Step(method="editMessageText", chat=170, text="Omega", lost=True))
    assert (await here.final("Alpha Omega", "m1"))["status"] == "accepted"
    assert here.texts() == ["Alpha Omega"]
    assert [call.outcome for call in here.calls()][-2:] == ["lost", "refused 400"]


async def test_a_preview_that_a_person_deleted_does_not_take_the_final_with_it(
    api: TelegramApi, agent: AgentClient, up: Process
) -> None:
    """It is sent as a new message; where that answer is lost it is uncertain, for it was no edit."""
    here = await place(api, agent, 180)
    await here.stream("m1", "Alpha")
    api.platform.chats[180].messages.clear()
    assert (await here.final("Alpha Beta", "m1"))["status"] == "accepted"
    assert here.texts() == ["Alpha Beta"]
    there = await place(api, agent, 181)
    await there.stream("m1", "Alpha")
    api.platform.chats[181].messages.clear()
    api.script(Step(method="sendMessage", chat=181, lost=True))
    ack = await there.final("Alpha Beta", "m1")
    assert (ack["status"], ack["code"]) == ("rejected", "delivery_uncertain")
    assert there.texts() == ["Alpha Beta"]
    assert len(await dead_letters(up, there.channel)) == 1


async def test_files_arrive_with_their_caption_in_place_of_the_preview(api: TelegramApi, agent: AgentClient) -> None:
    """A streamed text and two files: the caption is the text, the preview is gone, one ack for all."""
    here = await place(api, agent, 190)
    await here.stream("m1", "see ")
    files = []
    for name, mime, kind in (("图.png", "image/png", "image"), ("a.txt", "text/plain", "file")):
        data = b"\x89PNG\r\n\x1a\n" + bytes(100) if kind == "image" else b"plain"
        ref = await agent.upload(here.channel, data, name, mime)
        files.append({"type": kind, "file_ref": ref, "filename": name, "mime_type": mime, "byte_size": len(data)})
    assert (await here.final("see both", "m1", files=files))["status"] == "accepted"
    shown = api.messages(190)
    assert [(message.kind, message.text) for message in shown] == [("photo", "see both"), ("document", "")]
    assert [message.upload.filename for message in shown if message.upload] == ["图.png", "a.txt"]


async def test_what_is_refused_for_good_is_tried_once_and_a_blocked_bot_revokes(
    api: TelegramApi, agent: AgentClient, up: Process
) -> None:
    """Field report 25 a, b: one call each, a dead letter; 403 changes the Descriptor, and the next final is refused."""
    here = await place(api, agent, 200)
    api.script(Step(chat=200, code=400, description="Bad Request: message is too long"))
    ack = await here.final("a")
    assert (ack["code"], ack["retryable"]) == ("target_delivery_failed", False)
    assert (await here.final("b"))["status"] == "accepted"
    api.script(Step(chat=200, code=403))
    assert (await here.final("c"))["code"] == "target_delivery_failed"
    assert [call.said for call in here.calls("sendMessage")] == ["a", "b", "c"]
    assert (await agent.open(here.channel)).descriptor["connection"]["status"] == "revoked"
    assert (await here.final("d"))["code"] == "connection_not_authenticated"
    details = [detail for _, detail in await dead_letters(up, here.channel)]
    assert len(details) == 2
    assert any("bot was blocked by the user" in detail for detail in details)


async def test_a_moved_group_and_a_failing_platform_pass_over_a_restart(api: TelegramApi, tmp_path: Path) -> None:
    """Field report 25 c, d: followed once and stored; 500, 500, 200 is three calls; a restart sends nothing again."""
    process = embedded(tmp_path, SLUICE_TELEGRAM_API_URL=api.url, SLUICE_LIMIT_RETRY_FIRST_SECONDS="0.1")
    api.add_chat(SUPERGROUP, "supergroup", "moved")
    async with started(process):
        async with AgentClient.connect(f"{process.url}/im.telegram", API_KEY, timeout=30) as agent:
            here = await place(api, agent, -210, kind="group")
            connector = agent.connector_id
            api.script(Step(chat=-210, times=-1, code=400, migrate_to=SUPERGROUP))
            assert (await here.final("x" * 5000, "m1"))["status"] == "accepted"
        await process.kill()
    async with (
        started(process),
        AgentClient.connect(f"{process.url}/im.telegram", API_KEY, connector_id=connector, timeout=30) as agent,
    ):
        await agent.open(here.channel)
        here.agent = agent
        assert (await here.final("x" * 5000, "m1"))["status"] == "duplicate"
        api.script(Step(chat=SUPERGROUP, times=2, code=500))
        assert (await here.final("d", "m2"))["status"] == "accepted"
    assert len(here.calls("sendMessage")) == 1
    assert [call.said[0] for call in api.sent("sendMessage", SUPERGROUP)] == ["x", "x", "d", "d", "d"]


async def test_a_crash_in_the_send_that_replaces_a_deleted_preview_is_uncertain(
    api: TelegramApi, tmp_path: Path
) -> None:
    """The handle was struck and the intent written before the call: SIGKILL in it means no second send."""
    process = embedded(tmp_path, SLUICE_TELEGRAM_API_URL=api.url)
    async with started(process), AgentClient.connect(f"{process.url}/im.telegram", API_KEY, timeout=30) as agent:
        here = await place(api, agent, 220)
        connector = agent.connector_id
        await here.stream("m1", "Alpha")
        api.platform.chats[220].messages.clear()
        api.script(Step(method="sendMessage", chat=220, stall=20))
        await here.post("Alpha Beta", "m1")
        await until(here.stored("Alpha Beta"))
        await process.kill()
    async with (
        started(process),
        AgentClient.connect(f"{process.url}/im.telegram", API_KEY, connector_id=connector, timeout=30) as agent,
    ):
        await agent.open(here.channel)
        here.agent = agent
        assert (await here.final("Alpha Beta", "m1"))["code"] == "delivery_uncertain"
    assert here.texts() == ["Alpha Beta"]
    assert len(here.calls("sendMessage")) == 2


async def test_what_never_left_is_sent_once_the_platform_is_back(tmp_path: Path) -> None:
    """Field report 1b: refused connections for a second, then one send."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    settings = {"SLUICE_TELEGRAM_API_URL": f"http://127.0.0.1:{port}", "SLUICE_LIMIT_RETRY_FIRST_SECONDS": "0.1"}
    async with (
        started(embedded(tmp_path, **settings)) as process,
        AgentClient.connect(f"{process.url}/im.telegram", API_KEY, timeout=30) as agent,
    ):
        async with telegram_api(port) as api:
            here = await place(api, agent, 230)
        final = asyncio.create_task(here.final("pay 30"))
        await asyncio.sleep(1)
        assert not final.done()
        async with telegram_api(port) as api:
            api.add_bot()
            api.add_chat(230)
            assert (await final)["status"] == "accepted"
            assert [call.method for call in api.calls] == ["sendMessage"]


async def test_no_token_is_in_the_log(api: TelegramApi, up: Process) -> None:
    """After all of the above, refusals and cuts included (invariant 7)."""
    log = up.log.read_text()
    assert not any(token.split(":")[1] in log for token in api.platform.bots)
    assert "Traceback" not in log
