"""The person's side of `im.console`: a WebSocket that shows the transcript and takes what is typed.

`GET /im.console/chat/{channel}` with the API key. Events are `shared.wire.notes.TranscriptEvent` as JSON; a person
sends `{"text": "...", "message_id": "..."}` and gets `{"event":"sent","message_id","status"}`.
"""

import asyncio
import contextlib
import secrets
from collections import deque

import msgspec
from aiohttp import WSMsgType, web
from msgspec import Struct

from services.edge.connection import TRY_AGAIN_LATER, abort
from services.edge.http import is_authorized, refusal
from services.edge.intake import Intake
from shared.clock import Clock
from shared.config import Limits
from shared.records.model import TranscriptRow
from shared.records.records import Records
from shared.state.client import StateUnavailable
from shared.state.leases import Leases
from shared.wire.items import Item
from shared.wire.notes import TranscriptEvent

VIEW_SECONDS = 60.0
KEPT = 1000
PAGE = 20
VIEWERS_A_CHANNEL = 50


class Typed(Struct, frozen=True):
    """What a person sends."""

    text: str
    message_id: str = ""


class Sent(Struct, frozen=True, tag_field="event", tag="sent"):
    """What became of it: accepted, duplicate, or full."""

    message_id: str
    status: str


class Viewer:
    """A page that shows a channel: one that takes nothing is closed at the cap and holds up nobody (invariant 5).

    Args:
        socket: the prepared WebSocket.
        most_bytes: the most that may wait for it.
    """

    def __init__(self, socket: web.WebSocketResponse, most_bytes: int) -> None:
        self.socket = socket
        self._most_bytes = most_bytes
        self._waiting: deque[bytes] = deque()
        self._waiting_bytes = 0
        self._writer: asyncio.Task[None] | None = None

    def show(self, frame: bytes) -> None:
        """Sends a frame as soon as the page takes it."""
        if self.socket.closed:
            return
        self._waiting.append(frame)
        self._waiting_bytes += len(frame)
        if self._waiting_bytes > self._most_bytes:
            self._drop()
            self._writer = asyncio.create_task(abort(self.socket, TRY_AGAIN_LATER, "too slow"))
        elif self._writer is None:
            self._writer = asyncio.create_task(self._write())

    def _drop(self) -> None:
        if self._writer is not None:
            self._writer.cancel()
        self._waiting.clear()
        self._waiting_bytes = 0

    async def _write(self) -> None:
        with contextlib.suppress(ConnectionError):
            while self._waiting:
                frame = self._waiting.popleft()
                await self.socket.send_frame(frame, WSMsgType.TEXT)
                self._waiting_bytes -= len(frame)
        self._writer = None


class Console:
    """The viewers at this edge.

    Args:
        edge_id: where delivery sends the events.
        records: the transcript.
        leases: tells delivery that there are viewers here.
        intake: the outbox.
        keys: the API keys.
        limits: the caps.
        clock: time.
    """

    def __init__(
        self,
        edge_id: str,
        records: Records,
        leases: Leases,
        intake: Intake,
        keys: tuple[str, ...],
        limits: Limits,
        clock: Clock,
    ) -> None:
        self._edge_id = edge_id
        self._records = records
        self._leases = leases
        self._intake = intake
        self._keys = keys
        self._limits = limits
        self._clock = clock
        self._viewers: dict[str, set[Viewer]] = {}

    def routes(self) -> list[web.RouteDef]:
        """The one route."""
        return [web.get("/im.console/chat/{channel}", self.chat)]

    async def show(self, item: Item) -> None:
        """An event of a channel that somebody here may be looking at."""
        for viewer in self._viewers.get(item.channel, ()):
            viewer.show(item.raw)

    async def close(self) -> None:
        """Closes every viewer with 1012."""
        viewers = [viewer for viewers in self._viewers.values() for viewer in viewers]
        await asyncio.gather(*(viewer.socket.close(code=1012, message=b"restarting") for viewer in viewers))

    async def chat(self, request: web.Request) -> web.StreamResponse:
        """One viewer."""
        if not is_authorized(request, self._keys):
            return refusal(401, "unauthorized", "send Authorization: Bearer <API key>")
        channel = await self._records.channels.get(request.match_info["channel"])
        if channel is None or channel.card_id != "im.console":
            return refusal(404, "connection_not_found", "no such channel on im.console")
        viewers = self._viewers.setdefault(channel.channel_id, set())
        if len(viewers) >= VIEWERS_A_CHANNEL:
            return refusal(429, "busy", "too many viewers")
        socket = web.WebSocketResponse(heartbeat=30.0, compress=False, max_msg_size=self._limits.packet_bytes)
        await socket.prepare(request)
        viewer = Viewer(socket, self._limits.send_buffer_bytes)
        viewers.add(viewer)
        beat = asyncio.create_task(self._announce(channel.channel_id))
        try:
            await self._show_transcript(socket, channel.channel_id)
            async for frame in socket:
                if frame.type is WSMsgType.TEXT:
                    await self._typed(socket, channel.channel_id, frame.data)
        finally:
            beat.cancel()
            viewers.discard(viewer)
            if not viewers:
                self._viewers.pop(channel.channel_id, None)
        return socket

    async def _show_transcript(self, socket: web.WebSocketResponse, channel: str) -> None:
        """What there is so far, a page at a time: a line may be as long as a message."""
        last = 0
        while rows := await self._records.transcript.find(channel, last, PAGE):
            for row in rows:
                await socket.send_frame(msgspec.json.encode(_event(row)), WSMsgType.TEXT)
            last = rows[-1].seq

    async def _announce(self, channel: str) -> None:
        while True:
            with contextlib.suppress(StateUnavailable):  # the next beat announces it
                await self._leases.join(f"viewers:{channel}", self._edge_id, VIEW_SECONDS)
            await self._clock.sleep(VIEW_SECONDS / 3)

    async def _typed(self, socket: web.WebSocketResponse, channel: str, data: str) -> None:
        try:
            typed = msgspec.json.decode(data, type=Typed)
        except (msgspec.MsgspecError, RecursionError):
            await socket.send_json({"event": "error", "code": "invalid_packet"})
            return
        if not typed.text.strip() or len(typed.text.encode("utf-8", "replace")) > self._limits.text_bytes:
            await socket.send_json({"event": "error", "code": "invalid_packet"})
            return
        message_id = typed.message_id or "in_" + secrets.token_urlsafe(16)
        status = await self._intake.accept(channel, "im.console", message_id, typed.text)
        if status == "added":
            await self._records.transcript.put(
                TranscriptRow(
                    channel=channel,
                    seq=0,
                    message_id=message_id,
                    author="person",
                    text=typed.text,
                    files=b"[]",
                    at=self._clock.now(),
                    revision=0,
                )
            )
            await self._records.transcript.trim(channel, KEPT)
        await socket.send_frame(msgspec.json.encode(Sent(message_id, status)), WSMsgType.TEXT)


def _event(row: TranscriptRow) -> TranscriptEvent:
    files = msgspec.json.decode(row.files, type=tuple[dict[str, str], ...])
    return TranscriptEvent("message", row.message_id, row.text, files, seq=row.seq, author=row.author)
