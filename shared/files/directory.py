"""Files in a folder, or on a volume that the fleet shares."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

from shared.files.port import HEAD_BYTES, MissingFileError, StoredFile, counted, new_secret

CHUNK = 64 * 1024


class DirectoryStore:
    """See `shared.files.port.FileStore`.

    Args:
        folder: made when it is not there, for its owner only.
    """

    def __init__(self, folder: str) -> None:
        self._folder = Path(folder)

    def secret(self) -> str:
        """See `FileStore.secret`."""
        return new_secret()

    async def put(self, chunks: AsyncIterator[bytes], limit: int) -> StoredFile:
        """See `FileStore.put`."""
        await asyncio.to_thread(self._folder.mkdir, 0o700, parents=True, exist_ok=True)
        key = new_secret()
        partial = self._folder / f"{key}.part"
        size, head = 0, bytearray()
        stream = await asyncio.to_thread(partial.open, "xb")
        try:
            async for chunk in counted(chunks, limit):
                await asyncio.to_thread(stream.write, chunk)
                size += len(chunk)
                if len(head) < HEAD_BYTES:
                    head += chunk[: HEAD_BYTES - len(head)]
            stream.close()
            await asyncio.to_thread(partial.rename, self._folder / key)
        except BaseException:
            stream.close()
            partial.unlink(missing_ok=True)
            raise
        return StoredFile(key, size, bytes(head))

    async def open(self, key: str) -> AsyncIterator[bytes]:
        """See `FileStore.open`."""
        try:
            stream = await asyncio.to_thread((self._folder / _safe(key)).open, "rb")
        except OSError as error:
            raise MissingFileError(key) from error

        async def read() -> AsyncIterator[bytes]:
            with contextlib.closing(stream):
                while chunk := await asyncio.to_thread(stream.read, CHUNK):
                    yield chunk

        return read()

    async def delete(self, key: str) -> None:
        """See `FileStore.delete`."""
        await asyncio.to_thread((self._folder / _safe(key)).unlink, missing_ok=True)


def _safe(key: str) -> str:
    if not key or "/" in key or key.startswith("."):
        raise MissingFileError("no key of ours")
    return key
