"""The port of the file stores."""

import secrets
from collections.abc import AsyncIterator
from typing import Protocol

from msgspec import Struct

HEAD_BYTES = 4096


class TooLargeError(Exception):
    """The bytes went over the cap; nothing of them is kept."""


class MissingFileError(Exception):
    """There is no such file."""


class StoredFile(Struct, frozen=True):
    """What was stored: the key, how many bytes, and the first of them."""

    key: str
    byte_size: int
    head: bytes


class FileStore(Protocol):
    """Keeps bytes."""

    async def put(self, chunks: AsyncIterator[bytes], limit: int) -> StoredFile:
        """Streams bytes in, counting them.

        Raises:
            TooLargeError: more than `limit`.
        """
        ...

    async def open(self, key: str) -> AsyncIterator[bytes]:
        """Streams bytes out.

        Raises:
            MissingFileError: unknown key.
        """
        ...

    async def delete(self, key: str) -> None:
        """Forgets a file; an unknown key is no error."""
        ...

    def secret(self) -> str:
        """Something unguessable for a URL."""
        ...


def new_secret() -> str:
    """192 random bits for a URL or a name."""
    return secrets.token_urlsafe(24)


async def counted(chunks: AsyncIterator[bytes], limit: int) -> AsyncIterator[bytes]:
    """The same chunks, until they go over the limit.

    Raises:
        TooLargeError: they did.
    """
    size = 0
    async for chunk in chunks:
        size += len(chunk)
        if size > limit:
            raise TooLargeError
        yield chunk
