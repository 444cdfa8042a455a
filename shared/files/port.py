"""The port of file storage. Names of persons never become names of storage (field report 29).

FilesError
├── TooLargeError          the stream went over its cap; nothing of it is kept
├── MissingFileError       there is no such file
└── FilesUnavailableError  the disk or the bucket failed; worth another try
"""

import re
import secrets
from collections.abc import AsyncIterator
from typing import Final, Protocol

from msgspec import Struct

HEAD_BYTES: Final = 4096
"""How much of a file's beginning is kept at hand, for its type to be told."""

READ_BYTES: Final = 256 * 1024
"""The size of the pieces a file is read in."""

_KEY: Final = re.compile(r"[A-Za-z0-9_-]{32}")


class FilesError(Exception):
    """See the module."""


class TooLargeError(FilesError):
    """A stream had more bytes than it may.

    Attributes:
        limit: the cap, in bytes.
    """

    code = "file_too_large"

    def __init__(self, limit: int) -> None:
        super().__init__(f"a file may have {limit} bytes")
        self.limit = limit


class MissingFileError(FilesError):
    """There is no file under the key."""


class FilesUnavailableError(FilesError, OSError):
    """The storage failed. An `OSError` too, which is what readers and writers of files look for."""


class StoredFile(Struct, frozen=True):
    """A file that is stored whole.

    Attributes:
        key: what it is stored under; random.
        byte_size: its size.
        head: its first `HEAD_BYTES` bytes.
    """

    key: str
    byte_size: int
    head: bytes


class FileStore(Protocol):
    """Where the bytes of files are."""

    async def put(self, chunks: AsyncIterator[bytes], limit: int) -> StoredFile:
        """Stores a stream whole or not at all; what the stream itself raises goes through as it is.

        Args:
            chunks: the bytes, in pieces.
            limit: the most bytes; counted while they come, so no header has to be trusted.

        Raises:
            TooLargeError: there were more; what was written is gone.
            FilesUnavailableError: the storage failed; likewise.
        """
        ...

    async def open(self, key: str) -> AsyncIterator[bytes]:
        """The bytes of a file, in pieces.

        Raises:
            MissingFileError: there is none.
            FilesUnavailableError: the storage failed.
        """
        ...

    async def delete(self, key: str) -> None:
        """Deletes a file; one that is gone already is no error.

        Raises:
            FilesUnavailableError: the storage failed.
        """
        ...

    def secret(self) -> str:
        """An unguessable text for a name that is also a key."""
        ...


def new_key() -> str:
    """A name nobody can guess: 192 random bits."""
    return secrets.token_urlsafe(24)


def check_key(key: str) -> str:
    """Returns the key if it can be one of ours.

    Raises:
        MissingFileError: it cannot, so there is nothing under it, least of all a path.
    """
    if not _KEY.fullmatch(key):
        raise MissingFileError("no such file")
    return key
