"""A WebSocket client for load: a frame is a few bytes in front of a prepared packet, many of them a write.

Both sides are measured with it, so that what it costs is the same for both and small beside what is measured.
Its frames are masked with a key of zeros, which is a valid mask and leaves the bytes as they are (RFC 6455 §5.3).
"""

import asyncio
import base64
import os
import struct
from collections.abc import Callable
from typing import cast
from urllib.parse import urlsplit

_TEXT = 0x81
_CLOSE = 0x8
_PING = 0x9


class LoadSocket(asyncio.Protocol):
    """One socket.

    Args:
        url: ws://host:port/path.
        headers: of the handshake.
        on_packet: gets every text frame.
    """

    def __init__(self, url: str, headers: dict[str, str], on_packet: Callable[[bytes], None]) -> None:
        self._url = urlsplit(url)
        self._headers = headers
        self._on_packet = on_packet
        self._buffer = bytearray()
        self._transport: asyncio.Transport | None = None
        self._ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.closed = False

    async def open(self) -> None:
        """Connects and upgrades."""
        loop = asyncio.get_running_loop()
        await loop.create_connection(lambda: self, self._url.hostname or "", self._url.port or 80)
        await asyncio.wait_for(self._ready, 30)

    def send(self, *packets: bytes) -> None:
        """Sends packets, one frame each, in one write."""
        assert self._transport is not None
        self._transport.write(b"".join(frame(packet) for packet in packets))

    def close(self) -> None:
        """Drops the connection."""
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Sends the handshake."""
        self._transport = cast("asyncio.Transport", transport)  # uvloop's is one by its methods only
        key = base64.b64encode(os.urandom(16)).decode()
        lines = [
            f"GET {self._url.path} HTTP/1.1",
            f"Host: {self._url.netloc}",
            "Upgrade: websocket",
            "Connection: Upgrade",
            f"Sec-WebSocket-Key: {key}",
            "Sec-WebSocket-Version: 13",
            *(f"{name}: {value}" for name, value in self._headers.items()),
        ]
        self._transport.write("\r\n".join([*lines, "", ""]).encode())

    def data_received(self, data: bytes) -> None:
        """Takes frames apart; those of a server are unmasked, and ours are whole."""
        self._buffer += data
        if not self._ready.done():
            end = self._buffer.find(b"\r\n\r\n")
            if end < 0:
                return
            status = bytes(self._buffer[: self._buffer.find(b"\r\n")])
            del self._buffer[: end + 4]
            if b" 101 " not in status:
                self._ready.set_exception(ConnectionError(status.decode()))
                return
            self._ready.set_result(None)
        self._take_frames()

    def connection_lost(self, exc: Exception | None) -> None:
        """Wakes whoever waits."""
        self.closed = True
        if not self._ready.done():
            self._ready.set_exception(exc or ConnectionError("closed"))

    def _take_frames(self) -> None:
        buffer, at = self._buffer, 0
        while len(buffer) - at >= 2:
            size, start = buffer[at + 1], at + 2
            if size == 126:
                if len(buffer) - at < 4:
                    break
                size, start = struct.unpack_from(">H", buffer, at + 2)[0], at + 4
            elif size == 127:
                if len(buffer) - at < 10:
                    break
                size, start = struct.unpack_from(">Q", buffer, at + 2)[0], at + 10
            if len(buffer) < start + size:
                break
            body, kind = bytes(buffer[start : start + size]), buffer[at] & 0x0F
            at = start + size
            if kind == _PING:
                assert self._transport is not None
                self._transport.write(b"\x8a\x80\0\0\0\0")
            elif kind != _CLOSE:
                self._on_packet(body)
        del buffer[:at]


def frame(packet: bytes) -> bytes:
    """A masked text frame."""
    size = len(packet)
    if size < 126:
        head = bytes((_TEXT, 0x80 | size))
    elif size < 65536:
        head = struct.pack(">BBH", _TEXT, 0xFE, size)
    else:
        head = struct.pack(">BBQ", _TEXT, 0xFF, size)
    return head + b"\0\0\0\0" + packet
