"""A Connector Server in memory, written from the specification alone, whose answers a test can spoil."""

import contextlib
import json
import secrets
from collections.abc import AsyncIterator, Callable
from typing import Any

from aiohttp import WSCloseCode, WSMessage, WSMsgType, web
from aiohttp.test_utils import TestServer

from tests.support.scripted_card import PROFILE, SKILL, make_card, make_descriptor
from tests.support.scripted_rules import Refusal, check_activity, check_delta, check_envelope, check_message

API_KEY = "scripted-system-key"
Packet = dict[str, Any]
Spoil = Callable[[Packet, Packet], list[Packet]]
"""From the packet received (empty when there is none) and the answer due, to what is sent instead."""


class Channel:
    """What is known of a channel."""

    def __init__(self) -> None:
        self.signed_in = False
        self.done: dict[str, str] = {}
        self.streams: dict[str, list[str]] = {}
        self.files: set[str] = set()
        self.outbox: dict[str, str] = {}
        self.shown: list[str] = []
        self.socket: Socket | None = None


class ScriptedConnector:
    """The server; `spoil` and the public attributes are its switches."""

    def __init__(self) -> None:
        self.card = make_card()
        self.skill = SKILL
        self.health: dict[str, Any] = {}
        self.statuses: dict[str, int] = {}
        self.subprotocols: tuple[str, ...] = ("xagent.connector.packet.v1",)
        self.upload_answer: dict[str, Any] = {}
        self.shows_deltas = False
        self.lives_through_bad_text = False
        self.max_frame = 1024 * 1024
        self.spoil: Spoil = lambda _received, answer: [answer]
        self.channels: dict[str, Channel] = {}
        self.connector_ids: set[str] = set()

    @contextlib.asynccontextmanager
    async def serve(self) -> AsyncIterator[str]:
        """Runs it on a free port; yields the base URL."""
        app = web.Application(client_max_size=2 * 1024 * 1024)
        app.router.add_get("/connector-card.json", self._card)
        app.router.add_get("/skill.md", self._skill)
        app.router.add_get("/health", self._health)
        app.router.add_get("/ws", self._ws)
        app.router.add_post("/files/uploads", self._upload)
        app.router.add_get("/files/refs/{ref}", self._ref)
        async with TestServer(app) as server:
            yield str(server.make_url("")).rstrip("/")

    async def speak(self, channel: str, text: str) -> None:
        """A person writes."""
        one, message_id = self.channels[channel], f"in_{secrets.token_hex(4)}"
        one.outbox[message_id] = text
        if one.socket is not None:
            await one.socket.push(channel, message_id, text)

    async def shown(self, channel: str) -> list[str]:
        """What the target shows."""
        return self.channels[channel].shown

    async def _card(self, _request: web.Request) -> web.Response:
        return web.json_response(self.card)

    async def _skill(self, _request: web.Request) -> web.Response:
        return web.Response(text=self.skill)

    async def _health(self, request: web.Request) -> web.Response:
        if not self._may(request):
            return web.Response(status=self.statuses.get("health", 401))
        answer = {
            "status": "ok",
            "connector_card_id": self.card["connector_card_id"],
            "connector_card_version": self.card["connector"]["version"],
            "protocol_version": "3.0",
            "build": self.card["build"],
        }
        return web.json_response(answer | self.health)

    async def _upload(self, request: web.Request) -> web.Response:
        channel = self.channels.get(request.headers.get("X-XAgent-Connector-Channel-ID", ""))
        if not self._may(request):
            return web.Response(status=self.statuses.get("upload_key", 401))
        if channel is None:
            return web.Response(status=self.statuses.get("upload_channel", 404))
        file = (await request.post()).get("file")
        if not isinstance(file, web.FileField):
            return web.Response(status=self.statuses.get("upload_file", 400))
        data, ref = file.file.read(), f"file_{secrets.token_hex(8)}"
        channel.files.add(ref)
        answer = {"file_ref": ref, "file_type": "file", "filename": file.filename}
        return web.json_response(answer | {"byte_size": len(data), "expires_at": 1} | self.upload_answer)

    async def _ref(self, _request: web.Request) -> web.Response:
        return web.Response(status=self.statuses.get("refs", 404))

    async def _ws(self, request: web.Request) -> web.StreamResponse:
        if not self._may(request):
            return web.Response(status=self.statuses.get("ws", 401))
        ws = web.WebSocketResponse(
            protocols=self.subprotocols, max_msg_size=self.max_frame, timeout=1, **self._reading()
        )
        await ws.prepare(request)
        await Socket(self, ws).run()
        return ws

    def _reading(self) -> dict[str, Any]:
        return {"decode_text": False} if self.lives_through_bad_text else {}

    def _may(self, request: web.Request) -> bool:
        return request.headers.get("Authorization") == f"Bearer {API_KEY}"


class Socket:
    """One socket of it."""

    def __init__(self, server: ScriptedConnector, ws: web.WebSocketResponse) -> None:
        self.server, self.ws = server, ws
        self.connector_id = ""
        self.open: set[str] = set()

    async def run(self) -> None:
        """Reads until the socket closes."""
        async for frame in self.ws:
            packet: Packet = {}
            try:
                packet = check_envelope(_text_of(frame))
                await self._take(packet)
            except ConnectionError:
                break
            except Refusal as refusal:
                await self._refuse(packet or refusal.about, refusal)
        for channel in self.open:
            self.server.channels[channel].socket = None

    async def _refuse(self, about: Packet, refusal: Refusal) -> None:
        with contextlib.suppress(ConnectionError):
            await self._say(about, "error", refusal.payload, error={"code": refusal.code})
            if refusal.code == "protocol_version_unsupported":
                await self.ws.close(code=WSCloseCode.POLICY_VIOLATION)

    async def push(self, channel: str, message_id: str, text: str) -> None:
        """Sends a person's message."""
        payload = {"message_id": message_id, "text": text, "created_at": 1}
        await self._say({"connector_channel_id": channel}, "chat.message", payload)

    async def _say(self, received: Packet, kind: str, payload: Any, **fields: Any) -> None:
        answer = {
            "schema": "xagent.connector.packet/v1",
            "packet_id": f"pkt_{secrets.token_hex(8)}",
            "type": kind,
            "time": 1,
            "reply_to": received.get("packet_id", ""),
            "request_id": received.get("request_id", ""),
            "connector_channel_id": received.get("connector_channel_id", ""),
            "payload": payload,
        } | fields
        for packet in self.server.spoil(received, answer):
            await self.ws.send_str(json.dumps(packet))

    async def _take(self, packet: Packet) -> None:
        kind, payload = packet["type"], packet["payload"]
        if kind == "ping":
            await self._say(packet, "pong", {})
        elif kind == "connector.hello":
            await self._hello(packet, payload)
        elif not self.connector_id:
            raise Refusal("hello_required")
        elif kind == "channel.open":
            await self._open(packet)
        elif not kind.startswith("session."):
            await self._in_channel(packet, kind, payload)

    async def _hello(self, packet: Packet, payload: Packet) -> None:
        if payload.get("connector_card_id") != self.server.card["connector_card_id"]:
            raise Refusal("connector_card_id_mismatch")
        if payload.get("protocol_version", "") < "3.0":
            raise Refusal("protocol_version_unsupported")
        known = payload.get("connector_id") in self.server.connector_ids
        self.connector_id = payload["connector_id"] if known else f"cid_{secrets.token_hex(4)}"
        self.server.connector_ids.add(self.connector_id)
        self.profiles = payload["supported_profiles"]
        ack = {"connector_card_id": payload["connector_card_id"], "connector_id": self.connector_id}
        await self._say(packet, "connector.hello.ack", ack | {"protocol_version": "3.0"})

    async def _open(self, packet: Packet) -> None:
        if PROFILE not in self.profiles:
            raise Refusal("profile_not_supported")
        wanted = packet.get("connector_channel_id")
        channel = wanted if wanted in self.server.channels else f"cch_{secrets.token_hex(8)}"
        one = self.server.channels.setdefault(channel, Channel())
        one.socket = self
        self.open.add(channel)
        payload = {"connector_channel_id": channel, "connection_descriptor": self._descriptor(channel)}
        await self._say(packet, "channel.open.ack", payload, connector_channel_id=channel)
        for message_id, text in list(one.outbox.items()):
            await self.push(channel, message_id, text)

    def _descriptor(self, channel: str) -> Packet:
        connected = self.server.channels[channel].signed_in
        return make_descriptor(self.server.card, self.connector_id, channel, connected=connected)

    async def _in_channel(self, packet: Packet, kind: str, payload: Any) -> None:
        handlers = {
            "channel.close": self._close, "connection.descriptor.get": self._get, "auth.start": self._auth_start,
            "auth.status": self._auth_status, "auth.cancel": self._auth_cancel, "auth.logout": self._auth_logout,
            "tool.invoke": self._tool, "chat.message": self._message, "chat.message.delta": self._delta,
            "chat.activity": self._activity, "chat.message.ack": self._acked,
        }  # fmt: skip
        if kind not in handlers:
            raise Refusal("unsupported_packet")
        channel = packet.get("connector_channel_id")
        if not channel:
            raise Refusal("invalid_packet" if not isinstance(payload, dict) else "connector_channel_id_required")
        if channel not in self.open:
            raise Refusal("channel_not_open")
        await handlers[kind](packet, payload, self.server.channels[channel])

    async def _close(self, packet: Packet, _payload: Packet, _channel: Channel) -> None:
        self.open.discard(packet["connector_channel_id"])
        await self._say(packet, "channel.close.ack", {"status": "ok"})

    async def _get(self, packet: Packet, _payload: Packet, _channel: Channel) -> None:
        descriptor = self._descriptor(packet["connector_channel_id"])
        await self._say(packet, "connection.descriptor.get.ack", {"connection_descriptor": descriptor})

    async def _auth_start(self, packet: Packet, payload: Packet, channel: Channel) -> None:
        if payload["flow_id"] != "login":
            raise Refusal("unknown_flow")
        channel.signed_in = bool(payload["input"].get("token"))
        status = {"status": "authenticated"} if channel.signed_in else {"status": "failed", "message": "token is empty"}
        await self._say(packet, "auth.start.ack", {"flow_id": "login", "auth_session_id": "aus_1"} | status)

    async def _auth_status(self, _packet: Packet, _payload: Packet, _channel: Channel) -> None:
        raise Refusal("auth_session_not_found")

    async def _auth_cancel(self, packet: Packet, _payload: Packet, _channel: Channel) -> None:
        await self._say(packet, "auth.cancel.ack", {"status": "not_found"})

    async def _auth_logout(self, packet: Packet, _payload: Packet, channel: Channel) -> None:
        channel.signed_in = False
        await self._say(packet, "auth.logout.ack", {"status": "ok"})

    async def _tool(self, packet: Packet, payload: Packet, _channel: Channel) -> None:
        error = {"code": "tool_invoke_failed"}
        await self._say(packet, "tool.invoke.ack", {"tool_id": payload["tool_id"]}, error=error)

    async def _message(self, packet: Packet, payload: Packet, channel: Channel) -> None:
        status, code = check_message(payload, channel)
        reason = {"code": code, "retryable": False} if code else {}
        if status == "accepted":
            channel.shown.append(payload.get("text", ""))
        await self._say(packet, "chat.message.ack", {"message_id": payload["message_id"], "status": status} | reason)

    async def _delta(self, _packet: Packet, payload: Packet, channel: Channel) -> None:
        check_delta(payload, channel)
        if self.server.shows_deltas:
            channel.shown.append(payload["text"])

    async def _activity(self, _packet: Packet, payload: Packet, _channel: Channel) -> None:
        check_activity(payload)

    async def _acked(self, _packet: Packet, payload: Packet, channel: Channel) -> None:
        channel.outbox.pop(payload["message_id"], None)


def _text_of(frame: WSMessage) -> str:
    if frame.type is not WSMsgType.TEXT:
        return ""
    return frame.data if isinstance(frame.data, str) else bytes(frame.data).decode(errors="replace")
