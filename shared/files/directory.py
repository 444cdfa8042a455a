"""Files in a folder: one process's own, or a volume that all share."""

import contextlib
import os
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Final

from shared.files.port import READ_BYTES, FilesUnavailableError, MissingFileError, StoredFile, check_key, new_key
from shared.files.spool import DiskError, in_thread, spool

_PART: Final = ".part-"
_ABANDONED_SECONDS: Final = 86400.0


class DirectoryStore:
    """Files under random names in one folder that only we may enter.

    Args:
        root: the folder; made with its parents where it is missing.

    Raises:
        OSError: the folder cannot be made.
    """

    def __init__(self, root: Path) -> None:
        self._root = root
        root.mkdir(mode=0o700, parents=True, exist_ok=True)
        root.chmod(0o700)
        self._sweep(time.time() - _ABANDONED_SECONDS)

    async def put(self, chunks: AsyncIterator[bytes], limit: int) -> StoredFile:
        """See `FileStore.put`. A reader sees the whole file or none, for it appears by a rename."""
        key = new_key()
        part = self._root / (_PART + key)
        try:
            spooled = await spool(chunks, limit, part)
        except DiskError as error:
            raise FilesUnavailableError(f"the folder of files failed: {error}") from error
        with _translated():
            await in_thread(self._publish, part, self._root / key)
        return StoredFile(key, spooled.byte_size, spooled.head)

    async def open(self, key: str) -> AsyncIterator[bytes]:
        """See `FileStore.open`."""
        path = self._root / check_key(key)
        with _translated():
            await in_thread(path.stat)
        return _read(path)

    async def delete(self, key: str) -> None:
        """See `FileStore.delete`."""
        with contextlib.suppress(MissingFileError), _translated():
            await in_thread((self._root / check_key(key)).unlink, missing_ok=True)

    def secret(self) -> str:
        """See `FileStore.secret`."""
        return new_key()

    def _publish(self, part: Path, final: Path) -> None:
        try:
            part.rename(final)
        except OSError:
            part.unlink(missing_ok=True)
            raise
        folder = os.open(self._root, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)

    def _sweep(self, before: float) -> None:
        """Removes what a killed process had begun; what another one is writing now is younger."""
        for part in self._root.glob(_PART + "*"):
            with contextlib.suppress(FileNotFoundError):
                if part.stat().st_mtime < before:
                    part.unlink()


async def _read(path: Path) -> AsyncIterator[bytes]:
    with _translated():
        file = await in_thread(path.open, "rb", buffering=0)
        try:
            while chunk := await in_thread(file.read, READ_BYTES):
                yield chunk
        finally:
            file.close()


@contextlib.contextmanager
def _translated() -> Iterator[None]:
    try:
        yield
    except FileNotFoundError as error:
        raise MissingFileError("no such file") from error
    except OSError as error:
        raise FilesUnavailableError(f"the folder of files failed: {error.strerror or type(error).__name__}") from error
