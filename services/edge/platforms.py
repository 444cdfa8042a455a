"""What the platforms of this core send in: signed webhooks, and the recording target's control plane (contract.md)."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import msgspec
from aiohttp import web
from msgspec import Struct
from standardwebhooks import Webhook, WebhookVerificationError

from services.edge.http import is_authorized, refusal
from services.edge.inbound_files import InboundFiles
from services.edge.intake import Accepted, Intake
from shared.clock import Clock
from shared.crypto import Keyring, SealedError
from shared.records.model import Channel
from shared.records.records import Records
from shared.state.script_board import Board
from shared.wire.recording import TRUSTED_SECONDS, Call, Script, ScriptedInbound

BODY_BYTES = 512 * 1024
MOST_FILES = 10


class InFile(Struct, frozen=True):
    """A file that a webhook offers."""

    url: str
    filename: str = ""
    mime_type: str = ""


class InMessage(Struct, frozen=True):
    """A person's message as a webhook brings it."""

    message_id: str
    text: str = ""
    files: tuple[InFile, ...] = ()


class WebhookInbound:
    """`POST /im.webhook/in/{channel}`.

    Args:
        records: bindings.
        keyring: opens their secrets.
        intake: the outbox.
        files: fetches what is offered.
        text_bytes: the longest text.
    """

    def __init__(
        self, records: Records, keyring: Keyring, intake: Intake, files: InboundFiles, text_bytes: int
    ) -> None:
        self._records = records
        self._keyring = keyring
        self._intake = intake
        self._files = files
        self._text_bytes = text_bytes
        self._turns: dict[str, tuple[asyncio.Lock, int]] = {}

    def routes(self) -> list[web.RouteDef]:
        """The one route."""
        return [web.post("/im.webhook/in/{channel}", self.receive)]

    async def receive(self, request: web.Request) -> web.Response:
        """Checks the signature over the raw body before anything is read of it."""
        channel = await self._records.channels.get(request.match_info["channel"])
        if channel is None or channel.card_id != "im.webhook":
            return refusal(404, "connection_not_found", "no such channel")
        body = await _read(request, self._text_bytes + BODY_BYTES)
        if body is None:
            return refusal(413, "too_large", "the body is too large")
        if not self._is_signed(channel, body, request):
            return refusal(401, "unauthorized", "the signature does not match")
        try:
            message = msgspec.json.decode(body, type=InMessage)
        except (msgspec.MsgspecError, RecursionError) as error:
            return refusal(400, "invalid_packet", f"not a message: {str(error)[:200]}")
        problem = self._problem(message)
        if problem:
            return refusal(400, "invalid_packet", problem)
        async with self._turn(channel.channel_id):
            return _accepted(await self._accept(channel, message))

    @contextlib.asynccontextmanager
    async def _turn(self, channel: str) -> AsyncIterator[None]:
        """One message of a channel at a time, as they came: a text waits for the slow file before it (report 6)."""
        lock, users = self._turns.get(channel, (asyncio.Lock(), 0))
        self._turns[channel] = lock, users + 1
        try:
            async with lock:
                yield
        finally:
            lock, users = self._turns.pop(channel)
            if users > 1:
                self._turns[channel] = lock, users - 1

    async def _accept(self, channel: Channel, message: InMessage) -> Accepted:
        if message.files and await self._records.outbox.get(channel.channel_id, message.message_id) is not None:
            return "duplicate"  # its files are here already
        fetched = [await self._files.fetch(channel, f.url, f.filename, f.mime_type) for f in message.files]
        notes = [note for _, note in fetched if note]
        text = "\n".join([message.text, *notes]) if message.text else "\n".join(notes)
        files = tuple(file for file, _ in fetched if file is not None)
        return await self._intake.accept(channel.channel_id, channel.card_id, message.message_id, text, files)

    def _is_signed(self, channel: Channel, body: bytes, request: web.Request) -> bool:
        try:
            credential: dict[str, Any] = msgspec.json.decode(self._keyring.open(channel.sealed, channel.channel_id))
            Webhook(credential["secret"]).verify(body, dict(request.headers), json_parse=False)
        except (SealedError, KeyError, WebhookVerificationError, msgspec.MsgspecError, ValueError):
            return False
        return True

    def _problem(self, message: InMessage) -> str:
        if not 1 <= len(message.message_id) <= 256 or "\0" in message.message_id:  # noqa: PLR2004 - as any id
            return "message_id: 1 to 256 characters"
        if len(message.text.encode("utf-8", "replace")) > self._text_bytes:
            return f"text: over {self._text_bytes} bytes"
        if not message.text.strip() and not message.files:
            return "text and files are both empty"
        if len(message.files) > MOST_FILES:
            return f"files: more than {MOST_FILES}"
        return ""


class RecordingControl:
    """The control plane of `im.recording` (docs/recording.md).

    Args:
        board: script and calls.
        records: channels.
        intake: the outbox.
        keys: the API keys.
        clock: time.
    """

    def __init__(self, board: Board, records: Records, intake: Intake, keys: tuple[str, ...], clock: Clock) -> None:
        self._board = board
        self._records = records
        self._intake = intake
        self._keys = keys
        self._clock = clock

    def routes(self) -> list[web.RouteDef]:
        """All under /im.recording/control."""
        root = "/im.recording/control"
        return [
            web.put(f"{root}/script", self.put_script),
            web.get(f"{root}/calls", self.get_calls),
            web.delete(f"{root}/calls", self.delete_calls),
            web.post(f"{root}/inbound", self.inbound),
        ]

    async def put_script(self, request: web.Request) -> web.Response:
        """Replaces the script; counting starts anew. Every worker obeys it by the time of the answer."""
        self._authorize(request)
        body = await _read(request, BODY_BYTES)
        try:
            script = msgspec.json.decode(body or b"", type=Script)
        except (msgspec.MsgspecError, RecursionError) as error:
            return refusal(400, "invalid_script", str(error)[:300])
        await self._board.set_script(msgspec.json.encode(script))
        await self._clock.sleep(2 * TRUSTED_SECONDS)
        return web.json_response({"status": "ok", "steps": len(script.steps)})

    async def get_calls(self, request: web.Request) -> web.Response:
        """The calls in order: `?start=0&count=1000`."""
        self._authorize(request)
        try:
            start, count = int(request.query.get("start", "0")), int(request.query.get("count", "10000"))
        except ValueError:
            return refusal(400, "invalid_query", "start and count are numbers")
        raw = await self._board.calls(max(start, 0), min(max(count, 0), 100_000))
        calls = [msgspec.json.decode(call, type=Call) for call in raw]
        return web.Response(body=msgspec.json.encode({"calls": calls}), content_type="application/json")

    async def delete_calls(self, request: web.Request) -> web.Response:
        """Forgets calls, script and counts."""
        self._authorize(request)
        await self._board.clear()
        return web.json_response({"status": "ok"})

    async def inbound(self, request: web.Request) -> web.Response:
        """A person writes on the recording platform."""
        self._authorize(request)
        try:
            message = msgspec.json.decode(await _read(request, BODY_BYTES) or b"", type=ScriptedInbound)
        except (msgspec.MsgspecError, RecursionError) as error:
            return refusal(400, "invalid_packet", str(error)[:300])
        channel = await self._records.channels.get(message.channel_id)
        if channel is None or channel.card_id != "im.recording":
            return refusal(404, "connection_not_found", "no such channel")
        accepted = await self._intake.accept(channel.channel_id, channel.card_id, message.message_id, message.text)
        return _accepted(accepted)

    def _authorize(self, request: web.Request) -> None:
        if not is_authorized(request, self._keys):
            raise web.HTTPUnauthorized(text="send Authorization: Bearer <API key>")


async def _read(request: web.Request, limit: int) -> bytes | None:
    body = bytearray()
    async for chunk in request.content.iter_chunked(64 * 1024):
        body += chunk
        if len(body) > limit:
            return None
    return bytes(body)


def _accepted(accepted: Accepted) -> web.Response:
    if accepted == "full":
        return refusal(429, "busy", "the agent has not taken what was sent before; try again later")
    status = "accepted" if accepted == "added" else "duplicate"
    return web.json_response({"status": status}, status=202)
