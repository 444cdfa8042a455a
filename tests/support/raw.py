"""A WebSocket client that does what no library lets one do: dribble, fall silent, stop reading."""

import asyncio
import base64
import contextlib
import os
import socket
import struct
from collections.abc import AsyncIterator, Mapping
from typing import Any

import msgspec
from yarl import URL

from shared.wire.ids import namer
from shared.wire.packets import PROFILE, PROTOCOL_VERSION, SCHEMA

TEXT, BINARY, CLOSE, PING, PONG = 1, 2, 8, 9, 10
_new_id = namer("raw")


class RawSocket:
    """A TCP connection that may become a WebSocket.

    Attributes:
        headers: of the answer to the handshake, names in lower case.
        status: of that answer.
    """

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.headers: dict[str, str] = {}
        self.status = 0
        self._buffer = bytearray()

    async def write(self, data: bytes) -> None:
        """Sends bytes as they are."""
        await asyncio.get_running_loop().sock_sendall(self.sock, data)

    async def read(self) -> bytes:
        """Whatever came; empty once the other side is gone."""
        try:
            return await asyncio.get_running_loop().sock_recv(self.sock, 64 * 1024)
        except ConnectionError:
            return b""

    async def upgrade(self, path: str, headers: Mapping[str, str]) -> None:
        """The opening handshake, whatever it is answered."""
        key = base64.b64encode(os.urandom(16)).decode()
        fixed = {"Host": "test", "Upgrade": "websocket", "Connection": "Upgrade", "Sec-WebSocket-Key": key}
        fields = fixed | {"Sec-WebSocket-Version": "13"} | dict(headers)
        lines = [f"GET {path} HTTP/1.1", *(f"{name}: {value}" for name, value in fields.items())]
        await self.write("\r\n".join([*lines, "", ""]).encode())
        head = await self._until(b"\r\n\r\n")
        first, *rest = head.decode().split("\r\n")
        self.status = int(first.split()[1])
        self.headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in rest)}

    async def send(self, payload: bytes, opcode: int = TEXT, *, fin: bool = True) -> None:
        """One frame, masked with zeros."""
        size = len(payload)
        if size < 126:
            length = bytes([0x80 | size])
        elif size < 65536:
            length = bytes([0x80 | 126]) + struct.pack("!H", size)
        else:
            length = bytes([0x80 | 127]) + struct.pack("!Q", size)
        await self.write(bytes([(0x80 if fin else 0) | opcode]) + length + bytes(4) + payload)

    async def frame(self) -> tuple[int, bytes] | None:
        """The next frame: opcode and payload; None once the other side is gone."""
        try:
            opcode, size = (await self._exactly(2))[:2]
            if size == 126:
                (size,) = struct.unpack("!H", await self._exactly(2))
            elif size == 127:
                (size,) = struct.unpack("!Q", await self._exactly(8))
            return opcode & 15, await self._exactly(size)
        except EOFError:
            return None

    async def close_code(self) -> int:
        """Reads until the socket is closed; 1006 when it was without a code."""
        while (frame := await self.frame()) is not None:
            if frame[0] == CLOSE:
                return int(struct.unpack("!H", frame[1][:2])[0])
        return 1006

    async def request(self, kind: str, channel: str = "", payload: Any = None) -> dict[str, Any]:
        """Sends a packet and returns the next packet that comes."""
        packet = {"schema": SCHEMA, "packet_id": _new_id(), "type": kind, "connector_channel_id": channel}
        await self.send(msgspec.json.encode(packet | {"payload": payload or {}}))
        frame = await self.frame()
        assert frame is not None, "the socket is closed"
        return msgspec.json.decode(frame[1], type=dict[str, Any])

    async def hello(self, card: str, connector_id: str = "") -> str:
        """Says hello; returns the connector_id."""
        payload = {
            "connector_card_id": card,
            "connector_id": connector_id,
            "protocol_version": PROTOCOL_VERSION,
            "supported_profiles": [PROFILE],
        }
        answer = await self.request("connector.hello", "", payload)
        return str(answer["payload"]["connector_id"])

    async def _until(self, end: bytes) -> bytes:
        while (at := self._buffer.find(end)) < 0:
            await self._more()
        head = bytes(self._buffer[:at])
        del self._buffer[: at + len(end)]
        return head

    async def _exactly(self, size: int) -> bytes:
        while len(self._buffer) < size:
            await self._more()
        data = bytes(self._buffer[:size])
        del self._buffer[:size]
        return data

    async def _more(self) -> None:
        data = await self.read()
        if not data:
            raise EOFError
        self._buffer += data


@contextlib.asynccontextmanager
async def raw(url: str, receive_buffer: int = 0) -> AsyncIterator[RawSocket]:
    """A TCP connection to the host and port of a URL for the length of a block.

    Args:
        url: where to.
        receive_buffer: bytes that the kernel keeps for a reader that does not read; 0 leaves it to the system.
    """
    target = URL(url)
    sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    sock.setblocking(False)
    if receive_buffer:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
    try:
        await asyncio.get_running_loop().sock_connect(sock, (target.host, target.port))
        yield RawSocket(sock)
    finally:
        asyncio.get_running_loop().remove_reader(sock)  # a read that was given up must not haunt the number of the file
        sock.close()
