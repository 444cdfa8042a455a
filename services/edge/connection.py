"""One socket: frames in, one at a time, through the session; frames out, through a bounded buffer."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Final

from aiohttp import WSMsgType, web

from services.edge.session import Ask, Close, Forward, Reply, Session, Settle, Step
from shared.clock import Clock
from shared.config import Limits
from shared.wire import replies
from shared.wire.codec import WireError, decode
from shared.wire.packets import Packet

log = logging.getLogger(__name__)

TOO_BIG: Final = 1009
TRY_AGAIN_LATER: Final = 1013
BEFORE_HELLO_BYTES: Final = 64 * 1024


class Connection:
    """A socket and its session.

    Args:
        session_id: names this socket in the fleet.
        socket: the prepared WebSocket.
        session: its state machine.
        forward: puts a packet on the bus at once, or says that there is no room: then `take` is asked.
        take: performs the steps that leave the socket (`Forward`, `Ask`, `Settle`), however long they take.
        limits: the caps.
        clock: for the time of the last frame.
    """

    __slots__ = (
        "_clock",
        "_closer",
        "_forward",
        "_limits",
        "_socket",
        "_take",
        "_waiting",
        "_waiting_bytes",
        "_writer",
        "last_heard",
        "opened_at",
        "session",
        "session_id",
    )

    def __init__(
        self,
        session_id: str,
        socket: web.WebSocketResponse,
        session: Session,
        forward: Callable[["Connection", Forward, Packet, bytes], bool],
        take: Callable[["Connection", Step, Packet, bytes], Awaitable[None]],
        limits: Limits,
        clock: Clock,
    ) -> None:
        self.session_id = session_id
        self.session = session
        self.opened_at = self.last_heard = clock.monotonic()
        self._socket = socket
        self._forward = forward
        self._take = take
        self._limits = limits
        self._clock = clock
        self._waiting: list[bytes] = []
        self._waiting_bytes = 0
        self._writer: asyncio.Task[None] | None = None

    async def run(self) -> None:
        """Reads until the socket is closed."""
        async for frame in self._socket:
            self.last_heard = self._clock.monotonic()
            match frame.type:
                case WSMsgType.TEXT:
                    await self._receive(frame.data)
                case WSMsgType.BINARY if self._is_too_early(frame.data):
                    await self.close(TOO_BIG, "too large before hello")
                case WSMsgType.BINARY:
                    self.push(replies.error("invalid_packet", "packets are text frames"))
                case WSMsgType.PING:
                    await self._socket.pong(frame.data)
                case _:
                    pass

    def push(self, frame: bytes) -> None:
        """Sends a frame as soon as the peer takes it; a peer that takes none is closed at the cap (invariant 5)."""
        if self._socket.closed:
            return
        self._waiting.append(frame)
        self._waiting_bytes += len(frame)
        if self._waiting_bytes > self._limits.send_buffer_bytes:
            log.warning("closing a socket whose peer has stopped reading: session=%s", self.session_id)
            self._waiting.clear()
            self._waiting_bytes = 0
            self.abort(TRY_AGAIN_LATER, "too slow")
        elif self._writer is None:
            self._writer = asyncio.create_task(self._write())

    async def ping(self) -> None:
        """Asks the peer for a sign of life."""
        if not self._socket.closed:
            await self._socket.ping()

    async def close(self, code: int, reason: str) -> None:
        """Closes with a code, after what waits has been written."""
        if self._writer is not None:
            await asyncio.wait([self._writer], timeout=1.0)
        await self._socket.close(code=code, message=reason.encode()[:120])

    def abort(self, code: int, reason: str) -> None:
        """Closes without waiting for the peer; what is owed to it is sent again when it returns."""
        if self._writer is not None:
            self._writer.cancel()
        self._closer = asyncio.create_task(abort(self._socket, code, reason))

    async def _receive(self, raw: bytes) -> None:
        if self._is_too_early(raw):
            await self.close(TOO_BIG, "too large before hello")
            return
        try:
            packet, raw = decode(raw)
        except WireError as error:
            for step in self.session.refuse(error):
                await self._do(step)
            return
        for step in self.session.receive(packet):
            if isinstance(step, Forward) and self._forward(self, step, packet, raw):
                continue
            if isinstance(step, Forward | Ask | Settle):
                await self._take(self, step, packet, raw)
            else:
                await self._do(step)

    def _is_too_early(self, data: bytes) -> bool:
        return not self.session.helloed and len(data) > BEFORE_HELLO_BYTES

    async def _do(self, step: Step) -> None:
        match step:
            case Reply(frame):
                self.push(frame)
            case Close(code, reason):
                await self.close(code, reason)
            case _:
                raise AssertionError(step)

    async def _write(self) -> None:
        try:
            while self._waiting:
                frames, self._waiting = self._waiting, []
                for frame in frames:
                    await self._socket.send_frame(frame, WSMsgType.TEXT)
                    self._waiting_bytes -= len(frame)
        except ConnectionError:
            self._waiting.clear()
            self._waiting_bytes = 0
        finally:
            self._writer = None


async def abort(socket: web.WebSocketResponse, code: int, reason: str) -> None:
    """Closes a socket whose peer may never answer."""
    transport = socket._req.transport if socket._req else None  # noqa: SLF001 - aiohttp has no abort
    closing = asyncio.create_task(socket.close(code=code, message=reason.encode()[:120], drain=False))
    await asyncio.wait([closing], timeout=1.0)
    if transport is not None:
        transport.abort()
