"""Writing a stream to disk under a cap, off the event loop."""

import asyncio
import os
from collections.abc import AsyncIterator, Callable
from io import FileIO
from pathlib import Path
from typing import ParamSpec, TypeVar

from msgspec import Struct

from shared.files.port import HEAD_BYTES, TooLargeError

P = ParamSpec("P")
R = TypeVar("R")


class Spooled(Struct, frozen=True):
    """What was written: its size in bytes and its first `HEAD_BYTES`."""

    byte_size: int
    head: bytes


class DiskError(Exception):
    """Writing failed; the `OSError` is the cause. Told apart from an `OSError` of the stream that is read."""


async def in_thread(call: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
    """Like `asyncio.to_thread`, but when cancelled it first waits for the thread: none may outlive its file."""
    running = asyncio.ensure_future(asyncio.to_thread(call, *args, **kwargs))
    try:
        return await asyncio.shield(running)
    except asyncio.CancelledError:
        await asyncio.wait({running})
        if not running.cancelled():
            running.exception()  # looked at, so that it is not reported as forgotten
        raise


async def spool(chunks: AsyncIterator[bytes], limit: int, path: Path) -> Spooled:
    """Writes a stream into a new file, and to the platter; on any failure the file is gone.

    Raises:
        TooLargeError: the stream has more than `limit` bytes. No byte over the limit is written.
        DiskError: the disk failed.
    """
    try:
        file = await _on_disk(_create, path)
        try:
            spooled = await _copy(chunks, limit, file)
            await _on_disk(os.fsync, file.fileno())
        finally:
            file.close()
    except BaseException:
        path.unlink(missing_ok=True)  # noqa: ASYNC240 - one call; a cancelled task must not wait again
        raise
    return spooled


async def _copy(chunks: AsyncIterator[bytes], limit: int, file: FileIO) -> Spooled:
    size, head = 0, b""
    async for chunk in chunks:
        size += len(chunk)
        if size > limit:
            raise TooLargeError(limit)
        head += chunk[: HEAD_BYTES - len(head)]
        await _on_disk(_write, file, chunk)
    return Spooled(size, head)


async def _on_disk(call: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
    try:
        return await in_thread(call, *args, **kwargs)
    except OSError as error:
        raise DiskError(error.strerror or type(error).__name__) from error


def _create(path: Path) -> FileIO:
    return FileIO(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w")


def _write(file: FileIO, chunk: bytes) -> None:
    rest = memoryview(chunk)
    while rest:
        rest = rest[file.write(rest) :]
