"""A Bot API on loopback that does what a script says, and writes down every call with its time.

What it keeps and allows is in `telegram_platform`; here are HTTP, the faults, flood control and the long poll.
"""

import asyncio
import contextlib
import json
import re
from collections.abc import AsyncIterator
from typing import Any, Final

import aiohttp
import msgspec
from aiohttp import web
from msgspec import Struct

from tests.support.telegram_platform import ApiError, Bot, Chat, Message, Platform, Upload

TOKEN_SHAPE: Final = re.compile(r"\d+:[A-Za-z0-9_-]{20,}")
CHAT: Final = 4242
PAGE: Final = "<html><head><title>502 Bad Gateway</title></head><body>nginx</body></html>"
_QUOTED: Final = re.compile(r';\s*(\w+)="((?:[^"\\]|\\.)*)"')
_JSON_FIELDS: Final = ("entities", "caption_entities", "link_preview_options", "allowed_updates", "reply_parameters")


class Step(Struct, kw_only=True):
    """What happens to some calls.

    Attributes:
        method, chat, text: which calls; empty means any; `text` is looked for in the text or caption.
        skip: how many of them pass first.
        times: how many are hit then; -1 for all.
        code, description, retry_after, migrate_to: a refusal; code 0 means none. What is None is left out.
        page: answered instead of JSON, as a gateway would.
        cut: the connection is reset before the body is read.
        lost: the call is performed, and the connection reset instead of an answer.
        stall: seconds between performing the call and its answer.
    """

    method: str = ""
    chat: str | int = ""
    text: str = ""
    skip: int = 0
    times: int = 1
    code: int = 0
    description: str = ""
    retry_after: Any = None
    migrate_to: int | None = None
    page: str = ""
    cut: bool = False
    lost: bool = False
    stall: float = 0.0

    def takes(self, method: str, fields: dict[str, Any]) -> bool:
        """Whether it is this step's turn at a call; counts down."""
        said = str(fields.get("text", fields.get("caption", "")))
        if self.method not in ("", method) or self.text not in said or self.times == 0:
            return False
        if str(self.chat) not in ("", str(fields.get("chat_id", ""))):
            return False
        if self.skip > 0:
            self.skip -= 1
            return False
        self.times -= 1
        return True

    def refusal(self) -> ApiError:
        """As Telegram words it."""
        told = {"retry_after": self.retry_after, "migrate_to_chat_id": self.migrate_to}
        description = self.description or _WORDS.get(self.code, "Internal Server Error")
        return ApiError(self.code, description, **{key: value for key, value in told.items() if value is not None})


_WORDS: Final = {
    400: "Bad Request: chat not found",
    401: "Unauthorized",
    403: "Forbidden: bot was blocked by the user",
    429: "Too Many Requests: retry later",
}


class Call(Struct, kw_only=True):
    """A call as it came.

    Attributes:
        at: the loop's time of its arrival.
        outcome: "stored", "refused <code>", "page", "lost" or "cut".
    """

    method: str
    token: str
    chat: str
    fields: dict[str, Any]
    at: float
    outcome: str = "stored"

    @property
    def said(self) -> str:
        """Its text or caption."""
        return str(self.fields.get("text", self.fields.get("caption", "")))


class TelegramApi:
    """The server.

    Attributes:
        url: what `SLUICE_TELEGRAM_API_URL` is set to.
        platform: bots, chats, messages and files.
        calls: all of them, in order of arrival.
        early: calls before a deadline that an earlier 429 had named.
    """

    def __init__(self) -> None:
        self.url = ""
        self.platform = Platform()
        self.calls: list[Call] = []
        self.early: list[Call] = []
        self._steps: list[Step] = []
        self._deadlines: dict[tuple[str, str], float] = {}
        self._news = asyncio.Condition()

    def add_bot(self, number: int = 1) -> str:
        """A bot; returns its token."""
        token = f"{number:07}:AAfake_token_of_a_bot_{number:013}"
        self.platform.bots[token] = Bot(number, f"bot{number}_bot")
        return token

    def add_chat(self, chat_id: int = CHAT, kind: str = "private", title: str = "Ada", username: str = "") -> Chat:
        """A chat that every bot is in."""
        chat = Chat(chat_id, kind, title, username)
        self.platform.chats[chat_id] = chat
        return chat

    def script(self, *steps: Step) -> None:
        """Replaces the script."""
        self._steps = list(steps)

    def sent(self, method: str = "", chat: object = "", outcome: str = "") -> list[Call]:
        """The calls of a kind, in order."""
        return [
            call
            for call in self.calls
            if method in ("", call.method) and str(chat) in ("", call.chat) and outcome in ("", call.outcome)
        ]

    def messages(self, chat_id: int = CHAT) -> list[Message]:
        """What a person sees in a chat now."""
        return list(self.platform.chats[chat_id].messages.values())

    async def says(self, token: str, chat_id: int, text: str = "", kind: str = "message", **fields: Any) -> int:
        """A person writes, and every way of getting updates learns of it; returns the update_id."""
        bot, chat = self.platform.bots[token], self.platform.chats[chat_id]
        chat.last_id += 1
        message = {
            "message_id": chat.last_id,
            "date": 1_760_000_000,
            "chat": chat.shown(),
            "from": {"id": abs(chat_id), "is_bot": False, "first_name": "Ada"},
            **({"text": text} if text else {}),
            **fields,
        }
        update_id, bot.next_update = bot.next_update, bot.next_update + 1
        bot.updates.append({"update_id": update_id, kind: message})
        async with self._news:
            self._news.notify_all()
        return update_id

    async def push(self, token: str) -> list[int]:
        """Posts what waits to the webhook, in order until one is not taken; returns the statuses."""
        bot, statuses = self.platform.bots[token], []
        assert bot.webhook is not None, "no webhook is set"
        headers = {"X-Telegram-Bot-Api-Secret-Token": bot.webhook.secret} if bot.webhook.secret else {}
        async with aiohttp.ClientSession() as session:
            for update in list(bot.updates):
                async with session.post(bot.webhook.url, json=update, headers=headers) as answer:
                    statuses.append(answer.status)
                if not 200 <= statuses[-1] < 300:
                    break
                bot.updates.remove(update)
        return statuses

    async def take(self, request: web.Request) -> web.StreamResponse:
        """One call of a method."""
        token, method = request.match_info["token"], request.match_info["method"]
        call = Call(method=method, token=token, chat="", fields={}, at=asyncio.get_running_loop().time())
        self.calls.append(call)
        for step in self._steps:
            if step.cut and step.takes(method, {}):
                call.outcome = "cut"
                return _reset(request)
        call.fields = await _fields(request)
        call.chat = str(call.fields.get("chat_id", ""))
        return await self._answer(request, call)

    async def give(self, request: web.Request) -> web.StreamResponse:
        """One file of a person."""
        data = self.platform.files.get(request.match_info["path"])
        if data is None or request.match_info["token"] not in self.platform.bots:
            return _json(ApiError(404, "Not Found").body(), 404)
        return web.Response(body=data, content_type="application/octet-stream")

    async def _answer(self, request: web.Request, call: Call) -> web.StreamResponse:
        step = next((s for s in self._steps if not s.cut and s.takes(call.method, call.fields)), Step())
        if step.page:
            call.outcome = "page"
            return web.Response(status=step.code or 502, text=step.page, content_type="text/html")
        try:
            bot = self._bot(call)
            self._flood(call, step)
            if step.code:
                raise step.refusal()
            result = await self._poll(bot, call) if call.method == "getUpdates" else self._perform(bot, call)
        except ApiError as error:
            call.outcome = f"refused {error.code}"
            return _json(error.body(), error.code)
        await asyncio.sleep(step.stall)
        if step.lost:
            call.outcome = "lost"
            return _reset(request)
        return _json({"ok": True, "result": result}, 200)

    def _bot(self, call: Call) -> Bot:
        if not TOKEN_SHAPE.fullmatch(call.token):
            raise ApiError(404, "Not Found")
        bot = self.platform.bots.get(call.token)
        if bot is None:
            raise ApiError(401, "Unauthorized")
        return bot

    def _perform(self, bot: Bot, call: Call) -> Any:
        return self.platform.perform(bot, call.method, call.fields)

    def _flood(self, call: Call, step: Step) -> None:
        """A 429 is a deadline for its chat: what comes before it is refused again."""
        key = (call.token, call.chat)
        left = self._deadlines.get(key, 0.0) - call.at
        if left > 0:
            self.early.append(call)
            raise ApiError(429, f"Too Many Requests: retry after {left:.0f}", retry_after=int(left) + 1)
        wait = step.retry_after
        if step.code == 429 and isinstance(wait, int | float) and wait > 0:
            self._deadlines[key] = call.at + wait

    async def _poll(self, bot: Bot, call: Call) -> list[dict[str, Any]]:
        """Waits for news; there is one consumer of a token."""
        if bot.webhook is not None:
            raise ApiError(409, "Conflict: can't use getUpdates method while webhook is active")
        if bot.polling:
            raise ApiError(409, "Conflict: terminated by other getUpdates request")
        bot.polling = True
        try:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(float(call.fields.get("timeout", 0))), self._news:
                    await self._news.wait_for(lambda: self.platform.perform(bot, call.method, call.fields))
            return list(self.platform.perform(bot, call.method, call.fields))
        finally:
            bot.polling = False


@contextlib.asynccontextmanager
async def telegram_api(port: int = 0) -> AsyncIterator[TelegramApi]:
    """A Bot API that listens for the length of a block, on a free port unless one is given."""
    api = TelegramApi()
    app = web.Application(client_max_size=64 * 1024 * 1024)
    app.add_routes([web.route("*", "/bot{token}/{method}", api.take), web.get("/file/bot{token}/{path:.+}", api.give)])
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.5, handler_cancellation=True)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", port).start()
    host, port = runner.addresses[0][:2]
    api.url = f"http://{host}:{port}"
    try:
        yield api
    finally:
        await runner.cleanup()


async def _fields(request: web.Request) -> dict[str, Any]:
    """Parameters in any of the four ways of the API."""
    fields: dict[str, Any] = dict(request.query)
    if request.content_type == "application/json":
        return fields | msgspec.json.decode(await request.read(), type=dict[str, Any])
    if request.content_type == "multipart/form-data":
        fields |= multipart_fields(request.headers["Content-Type"], await request.read())
    else:
        fields |= dict(await request.post())
    return fields | {name: json.loads(fields[name]) for name in _JSON_FIELDS if isinstance(fields.get(name), str)}


def multipart_fields(content_type: str, body: bytes) -> dict[str, str | Upload]:
    """What is in a multipart body, names as raw UTF-8 in quotes with backslashes (RFC 7578); no library's leniency."""
    found: dict[str, str | Upload] = {}
    _, _, boundary = content_type.partition("boundary=")
    for part in body.split(b"--" + boundary.strip('"').encode())[1:-1]:
        head, _, data = part.removeprefix(b"\r\n").removesuffix(b"\r\n").partition(b"\r\n\r\n")
        lines = [line.partition(": ") for line in head.decode().split("\r\n")]
        headers = {name.lower(): value for name, _, value in lines}
        told = {key: re.sub(r"\\(.)", r"\1", value) for key, value in _QUOTED.findall(headers["content-disposition"])}
        mime = headers.get("content-type", "")
        found[told["name"]] = Upload(told["filename"], mime, data) if "filename" in told else data.decode()
    return found


def _reset(request: web.Request) -> web.Response:
    assert request.transport is not None
    request.transport.abort()
    return web.Response()


def _json(body: dict[str, Any], status: int) -> web.Response:
    return web.Response(status=status, body=msgspec.json.encode(body), content_type="application/json")
