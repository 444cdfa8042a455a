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
    app: web.Application, host: str, port: int, handshake_seconds: float, idle_seconds: float, clock: Clock
) -> AsyncIterator[Listening]:
    """Serves an application.

    Args:
        app: the routes.
        host: address to listen on.
        port: 0 picks a free one.
        handshake_seconds: a connection that has sent no whole request by then is cut.
        idle_seconds: one that has sent a request is cut so long after its end, unless the next is whole by then.
        clock: for the first of these deadlines.
    """
    silent: dict[RequestHandler, float] = {}

    @web.middleware
    async def note(request: web.Request, handler: Handler) -> web.StreamResponse:
        silent.pop(request.protocol, None)
        return await handler(request)

    app.middlewares.append(note)
    runner = web.AppRunner(
        app,
        access_log=None,
        handle_signals=False,
        shutdown_timeout=2.0,
        handler_cancellation=True,
        keepalive_timeout=idle_seconds,
    )
    await runner.setup()
    server = runner.server
    assert server is not None  # noqa: S101 - set up above

    async def cut_silent() -> None:
        """One sweep for all: a timer a connection would cost each of them more than its socket does."""
        while True:
            await clock.sleep(handshake_seconds / 10)
            before = clock.monotonic() - handshake_seconds * 0.8
            for protocol in [protocol for protocol, since in silent.items() if since <= before]:
                del silent[protocol]
                if protocol.transport is not None:
                    protocol.transport.abort()

    def accept() -> RequestHandler:
        protocol = server()
        silent[protocol] = clock.monotonic()
        return protocol

    listener = await asyncio.get_running_loop().create_server(accept, host, port, backlog=1024, reuse_address=True)
    bound = listener.sockets[0].getsockname()
    sweep = asyncio.create_task(cut_silent(), name="handshake deadlines")
    try:
        yield Listening(host, bound[1])
    finally:
        listener.close()
        sweep.cancel()
        await runner.cleanup()
