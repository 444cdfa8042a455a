"""A listening HTTP server whose idle connections are bounded in time (field report 45)."""

import asyncio
import contextlib
from collections.abc import AsyncIterator

from aiohttp import web
from aiohttp.typedefs import Handler
from aiohttp.web_protocol import RequestHandler
from msgspec import Struct

from shared.clock import Clock


class Listening(Struct, frozen=True):
    """Where a server listens."""

    host: str
    port: int

    @property
    def url(self) -> str:
        """Its root."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"http://{host}:{self.port}"


@contextlib.asynccontextmanager
async def listen(
    app: web.Application, host: str, port: int, handshake_seconds: float, clock: Clock
) -> AsyncIterator[Listening]:
    """Serves an application.

    Args:
        app: the routes.
        host: address to listen on.
        port: 0 picks a free one.
        handshake_seconds: a connection that has sent no whole request by then is cut.
        clock: for that deadline.
    """
    silent: set[object] = set()
    waiting: set[asyncio.Task[None]] = set()

    @web.middleware
    async def note(request: web.Request, handler: Handler) -> web.StreamResponse:
        silent.discard(request.protocol)
        return await handler(request)

    app.middlewares.append(note)
    runner = web.AppRunner(app, access_log=None, handle_signals=False, shutdown_timeout=2.0, handler_cancellation=True)
    await runner.setup()
    server = runner.server
    assert server is not None  # noqa: S101 - set up above

    async def cut(protocol: RequestHandler) -> None:
        await clock.sleep(handshake_seconds * 0.9)
        if protocol in silent and protocol.transport is not None:
            protocol.transport.abort()
        silent.discard(protocol)

    def accept() -> RequestHandler:
        protocol = server()
        silent.add(protocol)
        task = asyncio.create_task(cut(protocol), name="handshake deadline")
        waiting.add(task)
        task.add_done_callback(waiting.discard)
        return protocol

    listener = await asyncio.get_running_loop().create_server(accept, host, port, backlog=1024, reuse_address=True)
    bound = listener.sockets[0].getsockname()
    try:
        yield Listening(host, bound[1])
    finally:
        listener.close()
        for task in list(waiting):
            task.cancel()
        await runner.cleanup()
