"""`im.telegram` against the Bot API fake: what is called, and what is truly known of a call afterwards."""

import asyncio
import contextlib
import logging
import socket
import time
import traceback
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from services.delivery.targets.port import (
    Binding,
    Failed,
    Gone,
    NeverLeft,
    OutFile,
    Part,
    Refused,
    SignInError,
    TargetError,
    Throttled,
    Unknown,
)
from services.delivery.targets.telegram.api import BotApi, BotRefused, bot_session
from services.delivery.targets.telegram.target import TelegramTarget
from shared.cards import build_of, telegram_card
from shared.files.directory import DirectoryStore
from shared.files.port import READ_BYTES, FilesUnavailableError
from shared.records.model import FileRow, Receipt
from shared.text.split import size_of
from shared.wire.packets import MessagePayload
from tests.support.telegram_api import CHAT, PAGE, Step, TelegramApi, telegram_api

CALL_SECONDS = 0.5
GROUP = -777
SUPERGROUP = -100777
MARKDOWN = (
    "**Buy** a_b_c (v1.2-rc)! ༼ノ◕ヮ◕༽ノ*:·✧* <Tom&Co> `x<y` "  # noqa: RUF001 - field report 20
    "![p](http://e.test/a_b.png) [q](http://e.test/a_(b))"
)
FIRST = Part("m1", 0, "k", "hello")


class BreakingStore(DirectoryStore):
    """A store whose disk fails while a file is read."""

    async def open(self, key: str) -> AsyncIterator[bytes]:
        """A piece, then a failure."""

        async def broken() -> AsyncIterator[bytes]:
            yield b"x" * READ_BYTES
            raise FilesUnavailableError("the disk failed")

        del key
        return broken()


class Desk:
    """A target, its store, and what it wanted to have stored."""

    def __init__(self, api: TelegramApi, client: BotApi, store: DirectoryStore) -> None:
        self.api, self.store, self.token = api, store, api.add_bot()
        self.target = TelegramTarget(telegram_card(build_of()), client, self.rebind)
        self.rebound: list[dict[str, str]] = []

    def binding(self, chat: int = CHAT) -> Binding:
        """The bot in a chat."""
        return Binding("c1", "im.telegram", {"bot_token": self.token, "chat_id": str(chat)})

    async def rebind(self, binding: Binding, credential: dict[str, str]) -> None:
        """Writes down what was to be stored."""
        del binding
        self.rebound.append(credential)

    async def file(self, data: bytes, name: str, mime: str, kind: Any = "file") -> OutFile:
        """A stored file."""

        async def chunks() -> AsyncIterator[bytes]:
            yield data

        stored = await self.store.put(chunks(), 100_000_000)
        row = FileRow(
            ref="r",
            channel="c1",
            card="im.telegram",
            direction="out",
            filename=name,
            mime_type=mime,
            file_type=kind,
            byte_size=stored.byte_size,
            storage_key=stored.key,
            expires_at=0,
        )
        return OutFile(row, "http://unused")

    async def deliver(self, text: str, *files: OutFile, chat: int = CHAT) -> list[Receipt]:
        """Sends all parts of a message."""
        message = MessagePayload(message_id="m1", text=text)
        parts = await self.target.plan(self.binding(chat), message, files)
        return [await self.target.send(self.binding(chat), part) for part in parts]


@contextlib.asynccontextmanager
async def desk_at(
    url: str, api: TelegramApi, store: DirectoryStore, call_seconds: float = CALL_SECONDS
) -> AsyncIterator[Desk]:
    async with bot_session() as session:
        yield Desk(api, BotApi(url, session, store, call_seconds), store)


@pytest.fixture
async def api() -> AsyncIterator[TelegramApi]:
    async with telegram_api() as api:
        api.add_chat()
        api.add_chat(GROUP, "group", "Old group")
        api.add_chat(SUPERGROUP, "supergroup", "New group", "the_group")
        yield api


@pytest.fixture
async def desk(api: TelegramApi, tmp_path: Path) -> AsyncIterator[Desk]:
    async with desk_at(api.url, api, DirectoryStore(tmp_path)) as desk:
        yield desk


# Signing in


async def test_a_right_form_yields_the_chats_number_and_its_name(desk: Desk) -> None:
    """GetMe and getChat are asked; an @username is kept as the number it stands for."""
    signed_in = await desk.target.sign_in("c1", "telegram", {"bot_token": desk.token, "chat_id": "@the_group"})
    assert signed_in.credential == {"bot_token": desk.token, "chat_id": str(SUPERGROUP)}
    assert signed_in.shown == {"display_name": "New group", "label": "New group", "account_hint": "@bot1_bot"}
    assert [call.method for call in desk.api.calls] == ["getMe", "getChat"]
    numbered = await desk.target.sign_in("c1", "telegram", {"bot_token": f" {desk.token}\n", "chat_id": CHAT})
    assert numbered.credential["chat_id"] == str(CHAT)


@pytest.mark.parametrize(
    ("form", "says"),
    [
        ({"chat_id": CHAT}, "bot_token: a token"),
        ({"bot_token": "hunter2", "chat_id": CHAT}, "bot_token: a token"),
        ({"bot_token": "123456:../../x/y?z=" + "x" * 20, "chat_id": CHAT}, "bot_token: a token"),
        ({"bot_token": "123456:" + "x" * 35, "chat_id": CHAT}, "bot_token: Telegram answered 401: Unauthorized"),
        ({"chat_id": ""}, "chat_id: a number"),
        ({"chat_id": True}, "chat_id: a number"),
        ({"chat_id": "me"}, "chat_id: a number"),
        ({"chat_id": "-1"}, "chat_id: Telegram answered 400: Bad Request: chat not found"),
    ],
)
async def test_a_wrong_form_names_the_field_and_the_reason(desk: Desk, form: dict[str, Any], says: str) -> None:
    """The message begins with the field and never repeats a token (issue 3, Auth flows)."""
    values = form if says.startswith("bot_token") else {"bot_token": desk.token, **form}
    with pytest.raises(SignInError) as raised:
        await desk.target.sign_in("c1", "telegram", values)
    assert str(raised.value).startswith(says)
    assert str(values.get("bot_token", "none")) not in str(raised.value)


async def test_a_bot_that_is_not_let_into_the_chat_is_told_by_the_field(desk: Desk) -> None:
    """Kicked: it is the chat that is wrong; what the platform fails at is no fault of the form."""
    desk.api.script(Step(method="getChat", code=403, description="Forbidden: bot was kicked from the group chat"))
    form = {"bot_token": desk.token, "chat_id": GROUP}
    with pytest.raises(SignInError, match="chat_id: Telegram answered 403"):
        await desk.target.sign_in("c1", "telegram", form)
    desk.api.script(Step(method="getMe", code=500))
    with pytest.raises(Failed):
        await desk.target.sign_in("c1", "telegram", form)


async def test_a_group_that_has_moved_is_signed_in_where_it_is_now(desk: Desk) -> None:
    """The number that Telegram names is the one that is kept."""
    desk.api.script(Step(method="getChat", chat=GROUP, code=400, migrate_to=SUPERGROUP))
    signed_in = await desk.target.sign_in("c1", "telegram", {"bot_token": desk.token, "chat_id": GROUP})
    assert signed_in.credential["chat_id"] == str(SUPERGROUP)


# What is sent


async def test_markdown_is_accepted_at_the_first_try(desk: Desk) -> None:
    """Field report 20: the strict checker takes it, styles and all, and so it does for every prefix of it."""
    (receipt,) = await desk.deliver(MARKDOWN)
    (message,) = desk.api.messages()
    assert receipt.id == f"{CHAT}/{message.message_id}"
    assert {"bold", "code", "text_link"} <= {entity.type for entity in message.entities}
    assert "<Tom&Co>" in message.text
    for end in range(3, len(MARKDOWN)):
        await desk.target.edit(desk.binding(), receipt, Part("m1", 0, "k", MARKDOWN[:end]))
        assert desk.api.calls[-1].outcome == "stored" or message.text == desk.api.calls[-1].said


@pytest.mark.parametrize("text", ["k" + "." * 5000, "**" + "w " * 3000 + "w**", "😀" * 5000, "x" * 4096])
async def test_a_long_text_arrives_whole_in_messages_within_the_limit(desk: Desk, text: str) -> None:
    """Field report 16: UTF-16 units are counted, styles are balanced in each message, the parts join to the text."""
    await desk.deliver(text)
    shown = [message.text for message in desk.api.messages()]
    assert all(0 < size_of(one, "utf16") <= 4096 for one in shown)
    assert "".join("".join(shown).split()) == "".join(text.replace("*", "").split())
    assert {call.outcome for call in desk.api.calls} == {"stored"}


async def test_nobody_is_called_and_nothing_is_fetched_for_a_text(desk: Desk) -> None:
    """Field report 18, on each path: no mention entity, no link to a user, no preview of a link."""
    text = "hi @everyone [x](tg://user?id=7) https://e.test/?q=secret"
    (receipt,) = await desk.deliver(text)
    await desk.target.edit(desk.binding(), receipt, Part("m1", 0, "k", f"{text} more"))
    assert [call.method for call in desk.api.calls] == ["sendMessage", "editMessageText"]
    for call in desk.api.calls:
        assert call.fields["link_preview_options"] == {"is_disabled": True}
        assert not any("mention" in entity["type"] for entity in call.fields.get("entities", []))
        assert "tg://user" not in str(call.fields.get("entities", []))


async def test_what_shows_nothing_is_no_message(desk: Desk) -> None:
    """Telegram would refuse it: it is refused here, so it can never count as delivered."""
    with pytest.raises(Refused, match="shows nothing"):
        await desk.deliver("\u200b\u2800")
    with pytest.raises(Refused, match="shows nothing"):
        await desk.target.send(desk.binding(), Part("m1", 0, "k", "\u200b"))
    assert desk.api.calls == []


async def test_a_preview_shows_the_first_message_of_what_there_is(desk: Desk) -> None:
    """Beyond the limit the preview keeps to its message, quickly, and reads as the first part of the final will."""
    text = "\n\n".join(f"Paragraph {n} " + "word " * 60 for n in range(500))
    before = time.monotonic()
    receipt = await desk.target.send(desk.binding(), Part("m1", 0, "m1.preview", text))
    assert time.monotonic() - before < 1
    (preview,) = (message.text for message in desk.api.messages())
    first, *_ = await desk.target.plan(desk.binding(), MessagePayload(message_id="m1", text=text), ())
    assert preview == first.text
    await desk.target.edit(desk.binding(), receipt, first)  # not modified, which is done
    assert [message.text for message in desk.api.messages()] == [first.text]


# What is known of a call


@pytest.mark.parametrize(
    ("step", "error", "landed"),
    [
        (Step(code=429, retry_after=3), Throttled, 0),
        (Step(code=500), Failed, 0),
        (Step(code=502, description="Bad Gateway"), Failed, 0),
        (Step(code=408, description="Request Timeout"), Failed, 0),
        (Step(page=PAGE), Unknown, 0),
        (Step(page=PAGE, code=404), Unknown, 0),
        (Step(page='{"ok":"yes"}'), Unknown, 0),
        (Step(cut=True), Unknown, 0),
        (Step(lost=True), Unknown, 1),
        (Step(stall=3 * CALL_SECONDS), Unknown, 1),
        (Step(code=400, description="Bad Request: message is too long"), BotRefused, 0),
        (Step(code=403), BotRefused, 0),
        (Step(code=401), BotRefused, 0),
    ],
    ids=lambda value: repr(value)[:60] if isinstance(value, Step) else None,
)
async def test_an_outcome_is_told_truly_and_after_one_call(
    desk: Desk, caplog: pytest.LogCaptureFixture, step: Step, error: type[TargetError], landed: int
) -> None:
    """Field reports 1 and 25: no retry in here, no guess; no token in an error, its causes or a log."""
    caplog.set_level(logging.DEBUG)
    desk.api.script(step)
    with pytest.raises(error) as raised:
        await desk.target.send(desk.binding(), FIRST)
    assert len(desk.api.calls) == 1
    assert len(desk.api.messages()) == landed
    assert getattr(raised.value, "revoked", False) == (step.code in (401, 403))
    told = "".join(traceback.format_exception(raised.value)) + repr(raised.value) + caplog.text
    assert desk.token not in told
    assert desk.token.split(":")[1] not in told


@pytest.mark.parametrize(
    ("given", "seconds"),
    [
        (3, 3.0),
        (0.65, 0.65),
        ("2", 2.0),
        (1e9, 1e9),
        (None, None),
        ("abc", None),
        (-1, None),
        (True, None),
        ([3], None),
    ],
)
async def test_a_wait_is_read_in_every_shape(desk: Desk, given: Any, seconds: float | None) -> None:
    """Field report 22: seconds as they are; absent and nonsense are None, which the engine answers with its own."""
    desk.api.script(Step(code=429, retry_after=given))
    with pytest.raises(Throttled) as raised:
        await desk.target.send(desk.binding(), FIRST)
    assert raised.value.retry_after == seconds


async def test_what_cannot_connect_never_left(api: TelegramApi, tmp_path: Path) -> None:
    """Refused, unknown host, no TLS: each provably before the request (contract.md, Delivery; field report 1b)."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        closed = server.getsockname()[1]
    for root in (f"http://127.0.0.1:{closed}", "http://telegram.invalid", api.url.replace("http", "https")):
        async with desk_at(root, api, DirectoryStore(tmp_path)) as desk:
            with pytest.raises(NeverLeft) as raised:
                await desk.target.send(desk.binding(), FIRST)
            assert desk.token not in "".join(traceback.format_exception(raised.value))
    assert api.calls == []


async def test_the_root_must_be_a_url(tmp_path: Path) -> None:
    """A wrong setting stops the start, by its name."""
    async with bot_session() as session:
        with pytest.raises(ValueError, match="SLUICE_TELEGRAM_API_URL"):
            BotApi("api.telegram.org", session, DirectoryStore(tmp_path), 1.0)


# Second tries that are none of the engine's


async def test_refused_styles_are_sent_once_as_plain_text(desk: Desk) -> None:
    """Nothing is lost by it: the URL of a link is spelled out; the same for an edit."""
    words = "Bad Request: can't parse entities: unsupported"
    desk.api.script(Step(method="sendMessage", code=400, description=words))
    (receipt,) = await desk.deliver("**a** [b](http://e.test/)")
    assert [(m.text, m.entities) for m in desk.api.messages()] == [("a b (http://e.test/)", ())]
    desk.api.script(Step(method="editMessageText", code=400, description="Bad Request: ENTITY_BOUNDS_INVALID"))
    await desk.target.edit(desk.binding(), receipt, Part("m1", 0, "k", "**c**"))
    assert [(m.text, m.entities) for m in desk.api.messages()] == [("c", ())]
    assert len(desk.api.calls) == 4


async def test_plain_text_that_is_refused_too_is_given_up(desk: Desk) -> None:
    """Once, not for ever."""
    desk.api.script(Step(times=-1, code=400, description="Bad Request: can't parse entities"))
    with pytest.raises(Refused):
        await desk.deliver("**a**")
    assert len(desk.api.calls) == 2


async def test_a_group_that_has_moved_is_followed_once_and_remembered(desk: Desk) -> None:
    """Field report 25c: re-sent once to the new number, which is to be stored; a second move is a refusal."""
    desk.api.script(Step(chat=GROUP, times=-1, code=400, migrate_to=SUPERGROUP))
    (receipt,) = await desk.deliver("hello", chat=GROUP)
    assert receipt.id.startswith(f"{SUPERGROUP}/")
    assert desk.rebound == [{"bot_token": desk.token, "chat_id": str(SUPERGROUP)}]
    assert [call.chat for call in desk.api.calls] == [str(GROUP), str(SUPERGROUP)]
    desk.api.script(Step(times=-1, code=400, migrate_to=SUPERGROUP))
    with pytest.raises(BotRefused):
        await desk.deliver("again", chat=GROUP)
    assert len(desk.api.calls) == 4


# Previews


async def test_an_edit_that_changes_nothing_is_done(desk: Desk) -> None:
    """Not modified: it reads so already, as after an edit whose answer was lost."""
    (receipt,) = await desk.deliver("hello")
    desk.api.script(Step(method="editMessageText", lost=True))
    with pytest.raises(Unknown):
        await desk.target.edit(desk.binding(), receipt, Part("m1", 0, "k", "hello you"))
    assert await desk.target.edit(desk.binding(), receipt, Part("m1", 0, "k", "hello you")) == Receipt(0, receipt.id, 9)
    assert [message.text for message in desk.api.messages()] == ["hello you"]


async def test_a_preview_that_is_gone_is_told_apart(desk: Desk) -> None:
    """Deleted by a person, not editable, or in a group that has moved: nothing is sent in here, for that is no edit."""
    (receipt,) = await desk.deliver("hello")
    desk.api.platform.chats[CHAT].messages.clear()
    with pytest.raises(Gone):
        await desk.target.edit(desk.binding(), receipt, FIRST)
    (receipt,) = await desk.deliver("hello")
    desk.api.script(Step(method="editMessageText", code=400, description="Bad Request: message can't be edited"))
    with pytest.raises(Gone):
        await desk.target.edit(desk.binding(), receipt, FIRST)
    assert desk.api.messages() == []
    (receipt,) = await desk.deliver("hello", chat=GROUP)
    desk.api.script(Step(method="editMessageText", code=400, migrate_to=SUPERGROUP))
    with pytest.raises(Gone):
        await desk.target.edit(desk.binding(GROUP), receipt, FIRST)
    assert desk.rebound[-1]["chat_id"] == str(SUPERGROUP)
    assert len(desk.api.sent("sendMessage")) == 3


async def test_a_preview_makes_room_for_a_file(desk: Desk) -> None:
    """A text cannot become a file in place: it is taken away, and the file is the engine's to send."""
    (receipt,) = await desk.deliver("hello")
    file = await desk.file(b"x", "a.txt", "text/plain")
    (part,) = await desk.target.plan(desk.binding(), MessagePayload(message_id="m1", text="hello"), (file,))
    with pytest.raises(Gone):
        await desk.target.edit(desk.binding(), receipt, part)
    assert desk.api.messages() == []
    await desk.target.send(desk.binding(), part)
    assert [(message.kind, message.text) for message in desk.api.messages()] == [("document", "hello")]


async def test_a_preview_is_taken_away(desk: Desk) -> None:
    """Once it is gone, taking it away again is done; what may not be deleted is refused."""
    (receipt,) = await desk.deliver("hello")
    await desk.target.remove(desk.binding(), receipt)
    await desk.target.remove(desk.binding(), receipt)
    assert desk.api.messages() == []
    desk.api.script(Step(method="deleteMessage", code=400, description="Bad Request: message can't be deleted"))
    with pytest.raises(Refused):
        await desk.target.remove(desk.binding(), receipt)


async def test_activity_is_typing(desk: Desk) -> None:
    """Idle needs no call: typing lapses."""
    await desk.target.activity(desk.binding(), "thinking", "")
    await desk.target.activity(desk.binding(), "idle", "")
    assert [(call.method, call.fields["action"]) for call in desk.api.calls] == [("sendChatAction", "typing")]


async def test_groups_are_edited_less_often(desk: Desk) -> None:
    """platform-limits.md: one edit a second in a private chat, one in three in a group; nothing is deduped."""
    private, group = await desk.target.traits(desk.binding()), await desk.target.traits(desk.binding(GROUP))
    assert (private.keyed, private.edits, private.preview_seconds) == (False, True, 1.0)
    assert group.preview_seconds == 3.0


# Files


async def test_files_go_in_order_as_what_they_are_the_first_with_the_caption(desk: Desk) -> None:
    """One part a file; what Telegram does not show as media is a document."""
    files = [
        await desk.file(b"\x89PNG", "a.png", "image/png", "image"),
        await desk.file(b"v", "b.mp4", "video/mp4", "video"),
        await desk.file(b"a", "c.mp3", "audio/mpeg", "audio"),
        await desk.file(b"o", "d.ogg", "audio/ogg", "audio"),
        await desk.file(b"w", "e.wav", "audio/x-wav", "audio"),
        await desk.file(b"p", "f.png", "image/png", "file"),
        await desk.file(bytes(10_000_001), "g.jpg", "image/jpeg", "image"),
    ]
    receipts = await desk.deliver("**see**", *files)
    messages = desk.api.messages()
    assert [m.kind for m in messages] == ["photo", "video", "audio", "voice", "document", "document", "document"]
    assert [m.text for m in messages] == ["see", *[""] * 6]
    assert [entity.type for entity in messages[0].entities] == ["bold"]
    assert [receipt.part for receipt in receipts] == list(range(7))
    assert all(m.upload is not None for m in messages)
    assert [(m.upload.filename, len(m.upload.data)) for m in messages if m.upload][0::6] == [
        ("a.png", 4),
        ("g.jpg", 10_000_001),
    ]


async def test_a_text_that_is_no_caption_goes_before_the_files(desk: Desk) -> None:
    """1024 UTF-16 units are the limit of a caption; nothing is cut to fit."""
    await desk.deliver("x" * 1025, await desk.file(b"x", "a.txt", "text/plain"))
    assert [(m.kind, len(m.text)) for m in desk.api.messages()] == [("text", 1025), ("document", 0)]
    desk.api.platform.chats[CHAT].messages.clear()
    await desk.deliver("😀" * 512, await desk.file(b"x", "a.txt", "text/plain"))
    assert [(m.kind, size_of(m.text, "utf16")) for m in desk.api.messages()] == [("document", 1024)]


@pytest.mark.parametrize(
    ("name", "arrives"),
    [
        ("报告 (终版)“1”.pdf", "报告 (终版)“1”.pdf"),
        ("e\u0301.txt", "é.txt"),
        ('a"b\\c".txt', 'c".txt'),
        ("x\r\nContent-Type: text/html", "html"),
        ("../../x", "x"),
        ("", "file"),
        ("a%22b.txt", "a%22b.txt"),
    ],
)
async def test_a_name_arrives_as_it_is_and_injects_nothing(desk: Desk, name: str, arrives: str) -> None:
    """Field report 29: raw UTF-8 in the multipart header, quotes escaped, no control, no path."""
    await desk.deliver("", await desk.file(b"x", name, "text/plain"))
    (message,) = desk.api.messages()
    assert message.upload is not None
    assert message.upload.filename == arrives
    assert (message.upload.mime_type, message.upload.data) == ("text/plain", b"x")


async def test_a_long_name_keeps_its_extension(desk: Desk) -> None:
    """At most 255 bytes, cut between characters."""
    await desk.deliver("", await desk.file(b"x", "é" * 300 + ".pdf", "application/pdf"))
    (message,) = desk.api.messages()
    assert message.upload is not None
    assert message.upload.filename == "é" * 125 + ".pdf"


async def test_a_photo_that_is_none_to_telegram_is_sent_once_as_a_document(desk: Desk) -> None:
    """With its caption; a refusal of the document is the end."""
    desk.api.script(Step(method="sendPhoto", code=400, description="Bad Request: PHOTO_INVALID_DIMENSIONS"))
    await desk.deliver("see", await desk.file(b"x", "a.png", "image/png", "image"))
    assert [(message.kind, message.text) for message in desk.api.messages()] == [("document", "see")]
    desk.api.script(Step(times=-1, code=400, description="Bad Request: not enough rights to send photos to the chat"))
    with pytest.raises(Refused):
        await desk.deliver("see", await desk.file(b"x", "a.png", "image/png", "image"))
    assert len(desk.api.calls) == 4


async def test_a_file_that_cannot_be_read_to_its_end_never_left(api: TelegramApi, tmp_path: Path) -> None:
    """A body without its end cannot have been obeyed: the next try is safe. A file that is gone is the end."""
    async with desk_at(api.url, api, BreakingStore(tmp_path)) as desk:
        with pytest.raises(NeverLeft):
            await desk.deliver("", await desk.file(b"x", "a.txt", "text/plain"))
    assert api.messages() == []
    async with desk_at(api.url, api, DirectoryStore(tmp_path)) as desk:
        file = await desk.file(b"x", "a.txt", "text/plain")
        await desk.store.delete(file.row.storage_key)
        with pytest.raises(Refused, match="gone"):
            await desk.deliver("", file)


@pytest.mark.parametrize(
    ("step", "error"), [(Step(lost=True), Unknown), (Step(code=413, description="Request Entity Too Large"), Refused)]
)
async def test_an_uploads_outcome_is_told_truly(desk: Desk, step: Step, error: type[TargetError]) -> None:
    """The whole body has left, so a lost answer is unknown; too large is never."""
    desk.api.script(step)
    with pytest.raises(error):
        await desk.deliver("", await desk.file(b"x" * 300_000, "a.txt", "text/plain"))
    assert len(desk.api.calls) == 1


# Many bots


async def test_hundreds_of_slow_bots_do_not_hold_up_another(api: TelegramApi, tmp_path: Path) -> None:
    """300 calls that wait for their answers leave room for a send (issue 3, the connection pool)."""
    async with desk_at(api.url, api, DirectoryStore(tmp_path), 30.0) as desk:
        api.script(Step(method="sendChatAction", times=-1, stall=2.0))
        slow = [asyncio.create_task(desk.target.activity(desk.binding(), "thinking", "")) for _ in range(300)]
        while len(api.sent("sendChatAction")) < 300:  # noqa: ASYNC110 - the fake has no event for it
            await asyncio.sleep(0.01)
        before = time.monotonic()
        await desk.deliver("quick")
        assert time.monotonic() - before < 1.0
        assert not any(task.done() for task in slow)
        await asyncio.gather(*slow)


def test_nothing_shows_the_token() -> None:
    """A binding and a sign-in may be printed."""
    binding = Binding("c1", "im.telegram", {"bot_token": "123:secret", "chat_id": "1"})
    assert "secret" not in repr(binding)
    assert "secret" not in str(msgspec.structs.replace(binding, channel="c2"))
