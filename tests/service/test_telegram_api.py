"""The Bot API fake keeps the rules that tests rely on."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest

from tests.support.process import until
from tests.support.telegram_api import CHAT, PAGE, Step, TelegramApi, telegram_api


@pytest.fixture
async def api() -> AsyncIterator[TelegramApi]:
    async with telegram_api() as api:
        api.add_chat()
        yield api


@pytest.fixture
async def http() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession() as http:
        yield http


async def ask(http: aiohttp.ClientSession, api: TelegramApi, token: str, method: str, **fields: Any) -> dict[str, Any]:
    """The answer, which says in its body what its status says."""
    async with http.post(f"{api.url}/bot{token}/{method}", json=fields) as answer:
        told: dict[str, Any] = await answer.json()
        assert told.get("error_code", 200) == answer.status
        return told


async def test_a_token_is_known_unknown_or_none_at_all(api: TelegramApi, http: aiohttp.ClientSession) -> None:
    """401 for a token that was revoked, 404 for what is no token."""
    assert (await ask(http, api, api.add_bot(), "getMe"))["result"]["username"] == "bot1_bot"
    assert (await ask(http, api, "123:" + "x" * 35, "getMe"))["error_code"] == 401
    assert (await ask(http, api, "secret", "getMe"))["error_code"] == 404


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"chat_id": 1, "text": "x"}, "chat not found"),
        ({"chat_id": CHAT, "text": " \n"}, "message text is empty"),
        ({"chat_id": CHAT, "text": "😀" * 2049}, "message is too long"),
        ({"chat_id": CHAT, "text": "*x*", "parse_mode": "MarkdownV2"}, "can't parse entities"),
        ({"chat_id": CHAT, "text": "😀", "entities": [{"type": "bold", "offset": 0, "length": 1}]}, "surrogate"),
        ({"chat_id": CHAT, "text": "x", "entities": [{"type": "shout", "offset": 0, "length": 1}]}, "can't parse"),
        ({"chat_id": CHAT, "txt": "x"}, "unknown parameters"),
    ],
)
async def test_a_wrong_message_is_refused_in_telegrams_shape(
    api: TelegramApi, http: aiohttp.ClientSession, fields: dict[str, Any], says: str
) -> None:
    """Not ok, error_code 400 and a description; nothing is stored."""
    told = await ask(http, api, api.add_bot(), "sendMessage", **fields)
    assert (told["ok"], told["error_code"]) == (False, 400)
    assert says in told["description"]
    assert api.messages() == []


async def test_an_edit_must_change_something(api: TelegramApi, http: aiohttp.ClientSession) -> None:
    """What is the same already is refused as not modified."""
    token = api.add_bot()
    sent = await ask(http, api, token, "sendMessage", chat_id=CHAT, text="a")
    where = {"chat_id": CHAT, "message_id": sent["result"]["message_id"]}
    assert "not modified" in (await ask(http, api, token, "editMessageText", text="a", **where))["description"]
    assert (await ask(http, api, token, "editMessageText", text="b", **where))["ok"]
    assert [(message.text, message.edits) for message in api.messages()] == [("b", 1)]


async def test_a_flood_is_a_deadline(api: TelegramApi, http: aiohttp.ClientSession) -> None:
    """A scripted 429 names seconds; a call before they are over is refused again, and noted."""
    token = api.add_bot()
    api.script(Step(method="sendMessage", skip=1, code=429, retry_after=1))
    codes = [
        (await ask(http, api, token, "sendMessage", chat_id=CHAT, text="x")).get("error_code", 200) for _ in range(3)
    ]
    assert codes == [200, 429, 429]
    assert len(api.early) == 1
    await asyncio.sleep(1.01)
    assert (await ask(http, api, token, "sendMessage", chat_id=CHAT, text="x"))["ok"]


async def test_faults_happen_as_scripted(api: TelegramApi, http: aiohttp.ClientSession) -> None:
    """Lost: stored without an answer. Cut: nothing is read. A page is no answer of Telegram."""
    token = api.add_bot()
    api.script(Step(cut=True), Step(text="lost", lost=True), Step(text="page", page=PAGE))
    for text in ("cut", "lost"):
        with pytest.raises(aiohttp.ClientError):
            await ask(http, api, token, "sendMessage", chat_id=CHAT, text=text)
    async with http.post(f"{api.url}/bot{token}/sendMessage", json={"chat_id": CHAT, "text": "page"}) as answer:
        assert (answer.status, await answer.text()) == (502, PAGE)
    assert [call.outcome for call in api.calls] == ["cut", "lost", "page"]
    assert [message.text for message in api.messages()] == ["lost"]


async def test_updates_have_one_consumer_and_are_confirmed_by_offset(
    api: TelegramApi, http: aiohttp.ClientSession
) -> None:
    """A poll waits for news; a second one at the same time gets 409; an offset confirms what is before it."""
    token = api.add_bot()
    first = asyncio.create_task(ask(http, api, token, "getUpdates", timeout=20))

    async def polling() -> bool:
        return bool(api.sent("getUpdates"))

    await until(polling)
    assert (await ask(http, api, token, "getUpdates", timeout=0))["error_code"] == 409
    update_id = await api.says(token, CHAT, "hello")
    (update,) = (await first)["result"]
    assert (update["update_id"], update["message"]["text"]) == (update_id, "hello")
    assert (await ask(http, api, token, "getUpdates", offset=update_id + 1))["result"] == []
    await ask(http, api, token, "setWebhook", url="https://example.com/x")
    assert (await ask(http, api, token, "getUpdates"))["error_code"] == 409
    await ask(http, api, token, "deleteWebhook")
    assert (await ask(http, api, token, "getUpdates"))["ok"]


async def test_a_file_is_found_by_its_id(api: TelegramApi, http: aiohttp.ClientSession) -> None:
    """A path is told for its id, and gives the bytes; over 20 MB there is no way to them."""
    token = api.add_bot()
    small, large = api.platform.add_file(b"abc", "a.txt"), api.platform.add_file(bytes(20 * 1024 * 1024 + 1), "b")
    path = (await ask(http, api, token, "getFile", file_id=small))["result"]["file_path"]
    async with http.get(f"{api.url}/file/bot{token}/{path}") as answer:
        assert await answer.read() == b"abc"
    assert "too big" in (await ask(http, api, token, "getFile", file_id=large))["description"]
