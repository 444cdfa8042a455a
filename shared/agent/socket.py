"""The socket beneath the agent client: what goes out, what comes back, and which answers which."""

import asyncio
import contextlib
import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable
from typing import Any, Final, Self, TypeVar

import aiohttp
import msgspec

from shared.agent.errors import AnswerTimeout, ConnectionLost, HttpRefused
from shared.agent.http import bearer
from shared.agent.inbox import Inbox
from shared.agent.model import Packet, Settings, UserMessage, payload_of, text_of
from shared.wire.ids import namer
from shared.wire.packets import SCHEMA, SUBPROTOCOL

_new_packet_id = namer("pkt")
_MAX_FRAME: Final = 4 * 1024 * 1024
T = TypeVar("T")
_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(dict[str, Any]).decode


def now_ms() -> int:
    """Milliseconds since the epoch."""
    return int(time.time() * 1000)


class AgentSocket:
    """An open socket; made by `dial`.

    Attributes:
        messages: a person's messages. One that finds no room is rejected as busy, so that the Connector keeps it.
        errors: error packets that answer nothing awaited; the oldest go when full.
        notices: all else that answers nothing awaited (pushes, late acks); the oldest go when full.
        closed: done with the close code once the socket is closed.
    """

    def __init__(
        self, session: aiohttp.ClientSession, ws: aiohttp.ClientWebSocketResponse, base_url: str, api_key: str,
        settings: Settings,
    ) -> None:  # fmt: skip
        self.settings, self.base_url, self.api_key = settings, base_url, api_key
        self.http = session
        self.messages: Inbox[UserMessage] = Inbox(settings.queue_size, self._lost)
        self.errors: Inbox[Packet] = Inbox(settings.queue_size, self._lost)
        self.notices: Inbox[Packet] = Inbox(settings.queue_size, self._lost)
        self.closed: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._ws = ws
        self._accepted: OrderedDict[tuple[str, str], None] = OrderedDict()
        self._pending: dict[str, asyncio.Future[Packet]] = {}
        self._reader = asyncio.create_task(self._read())

    @classmethod
    @contextlib.asynccontextmanager
    async def dial(cls, base_url: str, api_key: str, **settings: Any) -> AsyncIterator[Self]:
        """Opens a socket and says nothing on it; `settings` are the fields of `Settings`.

        Raises:
            HttpRefused: the handshake was refused.
            ConnectionLost: nobody answered at that address.
            AnswerTimeout: the handshake took too long.
        """
        chosen, base_url = Settings(**settings), base_url.rstrip("/")
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=4)) as session:
            ws = await _handshake(session, base_url, api_key, chosen.timeout)
            agent = cls(session, ws, base_url, api_key, chosen)
            try:
                yield agent
            finally:
                await agent.close()

    @property
    def subprotocol(self) -> str:
        """What the server chose; empty when nothing."""
        return self._ws.protocol or ""

    async def request(
        self,
        kind: str,
        channel_id: str = "",
        payload: Any = None,
        timeout: float | None = None,  # noqa: ASYNC109 - told in words
        **envelope: str,
    ) -> Packet:
        """Sends a packet and returns the one that answers it, by request_id or reply_to; errors are returned too.

        Raises:
            AnswerTimeout: no answer came within `timeout` seconds.
            ConnectionLost: the socket closed first.
        """
        packet_id, request_id = _new_packet_id(), _new_packet_id()
        answer: asyncio.Future[Packet] = asyncio.get_running_loop().create_future()
        self._pending[packet_id] = self._pending[request_id] = answer
        try:
            await self.send(kind, channel_id, payload, packet_id=packet_id, request_id=request_id, **envelope)
            seconds = self.settings.timeout if timeout is None else timeout
            return await within(seconds, answer, f"the answer to {kind}")
        finally:
            self._pending.pop(packet_id, None)
            self._pending.pop(request_id, None)

    async def send(self, kind: str, channel_id: str = "", payload: Any = None, **envelope: str) -> str:
        """Sends one packet and returns its packet_id; `envelope` adds to the envelope's fields or replaces them."""
        packet = {
            "schema": SCHEMA,
            "packet_id": _new_packet_id(),
            "connector_channel_id": channel_id,
            "type": kind,
            "time": now_ms(),
            "payload": {} if payload is None else payload,
        } | envelope
        await self._send(_encode(packet), aiohttp.WSMsgType.TEXT)
        return str(packet["packet_id"])

    async def send_raw(self, frame: str | bytes) -> None:
        """Sends a text frame, or a binary one."""
        if isinstance(frame, str):
            await self._send(frame.encode(), aiohttp.WSMsgType.TEXT)
        else:
            await self._send(frame, aiohttp.WSMsgType.BINARY)

    async def send_as_text(self, data: bytes) -> None:
        """Sends bytes as a text frame, be they UTF-8 or not."""
        await self._send(data, aiohttp.WSMsgType.TEXT)

    async def close(self) -> None:
        """Closes the socket; what is awaited gets `ConnectionLost`."""
        with contextlib.suppress(ConnectionError, TimeoutError):
            await asyncio.wait_for(self._ws.close(), self.settings.timeout)
        self._reader.cancel()
        await asyncio.wait({self._reader})
        self._end()

    async def ack(self, message: UserMessage | Packet, status: str = "accepted", **reason: Any) -> None:
        """Answers a person's message. A rejection takes `code` and `retryable`, and may take `message`."""
        packet = message.packet if isinstance(message, UserMessage) else message
        payload = {"message_id": text_of(payload_of(packet), "message_id"), "status": status} | reason
        channel, packet_id = text_of(packet, "connector_channel_id"), text_of(packet, "packet_id")
        await self.send("chat.message.ack", channel, payload, reply_to=packet_id)

    async def wait_closed(self) -> int:
        """Waits until the other side closes the socket; returns the close code."""
        return await within(self.settings.timeout, asyncio.shield(self.closed), "the close of the socket")

    async def _send(self, data: bytes, opcode: aiohttp.WSMsgType) -> None:
        try:
            await self._ws.send_frame(data, opcode)
        except ConnectionError as error:
            raise self._lost() from error

    async def _read(self) -> None:
        try:
            async for frame in self._ws:
                if frame.type is aiohttp.WSMsgType.TEXT:
                    await self._take(_decode(frame.data))
        except (msgspec.MsgspecError, ConnectionLost, ConnectionError):
            await self._ws.close(code=aiohttp.WSCloseCode.PROTOCOL_ERROR)
        finally:
            self._end()

    async def _take(self, packet: Packet) -> None:
        if self.settings.tap is not None:
            self.settings.tap(packet)
        kind = packet.get("type")
        waiting = self._pending.get(text_of(packet, "request_id")) or self._pending.get(text_of(packet, "reply_to"))
        if waiting is not None and not waiting.done():
            waiting.set_result(packet)
        elif kind == "ping":
            await self.send("pong", request_id=text_of(packet, "request_id"), reply_to=text_of(packet, "packet_id"))
        elif kind == "chat.message":
            await self._take_message(packet)
        else:
            (self.errors if kind == "error" else self.notices).push(packet)

    async def _take_message(self, packet: Packet) -> None:
        message = UserMessage(text_of(packet, "connector_channel_id"), payload_of(packet), packet)
        key = message.channel, text_of(message.payload, "message_id")
        if key in self._accepted:
            await self.ack(message, "duplicate")
        elif not self.messages.offer(message):
            await self.ack(message, "rejected", code="busy", retryable=True)
        elif self.settings.auto_ack:
            self._remember(key)
            await self.ack(message)

    def _remember(self, key: tuple[str, str]) -> None:
        self._accepted[key] = None
        if len(self._accepted) > self.settings.queue_size:
            self._accepted.popitem(last=False)

    def _lost(self) -> ConnectionLost:
        return ConnectionLost(self._ws.close_code or aiohttp.WSCloseCode.ABNORMAL_CLOSURE)

    def _end(self) -> None:
        if self.closed.done():
            return
        lost = self._lost()
        self.closed.set_result(lost.code)
        for waiting in self._pending.values():
            if not waiting.done():
                waiting.set_exception(lost)
        for inbox in (self.messages, self.errors, self.notices):
            inbox.end()
        if self.settings.tap is not None:
            self.settings.tap(None)


async def within(seconds: float, awaitable: Awaitable[T], awaited: str) -> T:
    """Awaits with a deadline that says in words what did not come."""
    try:
        return await asyncio.wait_for(awaitable, seconds)
    except TimeoutError as error:
        raise AnswerTimeout(awaited, seconds) from error


async def _handshake(
    session: aiohttp.ClientSession, base_url: str, api_key: str, seconds: float
) -> aiohttp.ClientWebSocketResponse:
    connecting = session.ws_connect(
        base_url + "/ws", protocols=(SUBPROTOCOL,), headers=bearer(api_key), max_msg_size=_MAX_FRAME
    )
    try:
        return await within(seconds, connecting, "the WebSocket handshake")
    except aiohttp.WSServerHandshakeError as error:
        raise HttpRefused("GET", "/ws", error.status, error.message) from error
    except aiohttp.ClientConnectionError as error:
        raise ConnectionLost(aiohttp.WSCloseCode.ABNORMAL_CLOSURE) from error
