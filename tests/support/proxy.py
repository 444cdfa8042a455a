"""A TCP proxy on the loopback that delays what it carries: an instrument for tests of cancelled calls."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

_CHUNK = 65_536
_IN_FLIGHT = 256


@asynccontextmanager
async def delay_proxy(port: int, seconds: float) -> AsyncGenerator[int]:
    """Carries connections to a local port, each way late by that much; gives the port to connect to.

    It holds at most 256 chunks of 64 KiB a direction; beyond that the sender waits.
    """
    serving: set[asyncio.Task[None]] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        serving.add(task)
        task.add_done_callback(serving.discard)
        far_reader, far_writer = await asyncio.open_connection("127.0.0.1", port)
        try:
            both = (_carry(reader, far_writer, seconds), _carry(far_reader, writer, seconds))
            await asyncio.gather(*both)
        except asyncio.CancelledError:
            return  # the proxy is being closed
        finally:
            writer.close()
            far_writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        for task in serving:
            task.cancel()
        await asyncio.gather(*serving, return_exceptions=True)


async def _carry(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, seconds: float) -> None:
    loop = asyncio.get_running_loop()
    chunks: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(_IN_FLIGHT)

    async def receive() -> None:
        data = b"?"
        while data:
            try:
                data = await reader.read(_CHUNK)
            except ConnectionError:
                data = b""
            await chunks.put((loop.time() + seconds, data))

    receiving = asyncio.create_task(receive())
    try:
        while True:
            due, data = await chunks.get()
            await asyncio.sleep(max(due - loop.time(), 0))
            if not data:
                break
            writer.write(data)
            await writer.drain()
    except ConnectionError:
        pass  # the other end has gone, and so does this one
    finally:
        receiving.cancel()
        writer.close()
