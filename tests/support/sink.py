"""A receiver of webhooks on loopback that writes down what comes and answers as it is told."""

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncIterator

import msgspec
from aiohttp import web
from msgspec import Struct


class Answer(Struct, frozen=True, kw_only=True):
    """How one POST is answered, after it has been written down.

    Attributes:
        status: of the answer.
        headers: of the answer.
        stall: seconds before the answer.
        cut: no answer at all, the connection is reset.
    """

    status: int = 204
    headers: dict[str, str] = {}
    stall: float = 0.0
    cut: bool = False


class Received(Struct, frozen=True, kw_only=True):
    """A POST as it came; `at` is the loop's time."""

    headers: dict[str, str]
    raw: bytes
    at: float

    @property
    def body(self) -> dict[str, object]:
        """The JSON of it."""
        return msgspec.json.decode(self.raw, type=dict[str, object])

    @property
    def webhook_id(self) -> str:
        """The idempotency key."""
        return self.headers["webhook-id"]


class Sink:
    """What was received and what will be answered, by hook; files that others may fetch.

    Attributes:
        url: its root.
        files: path below /files/ to bytes; served in pieces and without a length.
        served: the bytes that were written of each file.
        fetched: the files that were asked for, in order.
        stalls: seconds before a file is given.
    """

    def __init__(self) -> None:
        self.url = ""
        self.files: dict[str, bytes] = {}
        self.served: dict[str, int] = {}
        self.fetched: list[str] = []
        self.stalls: dict[str, float] = {}
        self._received: dict[str, list[Received]] = {}
        self._answers: dict[str, deque[Answer]] = {}

    def hook(self, name: str, *answers: Answer) -> str:
        """The URL of a hook; its POSTs get these answers in turn, then 204."""
        self._answers[name] = deque(answers)
        return f"{self.url}/hook/{name}"

    def received(self, name: str) -> list[Received]:
        """What came to a hook, in order."""
        return self._received.get(name, [])

    async def take(self, request: web.Request) -> web.StreamResponse:
        """One POST."""
        name = request.match_info["name"]
        headers = {key.lower(): value for key, value in request.headers.items()}
        received = Received(headers=headers, raw=await request.read(), at=asyncio.get_running_loop().time())
        self._received.setdefault(name, []).append(received)
        answers = self._answers.get(name)
        answer = answers.popleft() if answers else Answer()
        await asyncio.sleep(answer.stall)
        if answer.cut and request.transport is not None:
            request.transport.abort()
        return web.Response(status=answer.status, headers=answer.headers)

    async def give(self, request: web.Request) -> web.StreamResponse:
        """One file."""
        name = request.match_info["name"]
        self.fetched.append(name)
        await asyncio.sleep(self.stalls.get(name, 0.0))
        if name not in self.files:
            return web.Response(status=404)
        response = web.StreamResponse(headers={"Content-Type": request.query.get("type", "application/octet-stream")})
        await response.prepare(request)
        data = self.files[name]
        for start in range(0, len(data), 64 * 1024):
            await response.write(data[start : start + 64 * 1024])
            self.served[name] = min(start + 64 * 1024, len(data))
        await response.write_eof()
        return response


@contextlib.asynccontextmanager
async def sinking() -> AsyncIterator[Sink]:
    """A sink that listens on a free port for the length of a block."""
    sink = Sink()
    app = web.Application(client_max_size=16 * 1024 * 1024)
    app.add_routes([web.post("/hook/{name}", sink.take), web.get("/files/{name}", sink.give)])
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.5, handler_cancellation=True)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    host, port = runner.addresses[0][:2]
    sink.url = f"http://{host}:{port}"
    try:
        yield sink
    finally:
        await runner.cleanup()
