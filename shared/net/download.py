"""Fetching a file from a URL of a person: every hop checked, bytes counted while they come (field reports 28, 30)."""

import contextlib
from collections.abc import AsyncIterator
from typing import Final

import aiohttp
from aiohttp import hdrs
from yarl import URL

from shared.files.port import FileStore, StoredFile, TooLargeError
from shared.net.guard import BlockedUrlError, parse_url

_CHUNK: Final = 64 * 1024
_REDIRECTS: Final = frozenset({301, 302, 303, 307, 308})
_OK: Final = 200


class DownloadError(Exception):
    """A file could not be had. The message never holds the URL, for a URL may be a secret.

    Attributes:
        status: the HTTP status that was answered, or None.
    """

    def __init__(self, message: str, status: int | None = None) -> None:
        super().__init__(message)
        self.status = status


async def download(
    session: aiohttp.ClientSession, url: str, limit: int, store: FileStore, max_redirects: int = 3
) -> StoredFile:
    """Streams what is behind a URL into a store.

    Args:
        session: one of `shared.net.guard.guarded_session`.
        url: http(s).
        limit: the most bytes, counted after decompression.
        store: where they go.
        max_redirects: how many are followed; no header is carried along.

    Raises:
        TooLargeError: there is more.
        BlockedUrlError: the URL, or one it redirects to, leads where it may not.
        DownloadError: the server is away, answered something else, or broke off.
        FilesUnavailableError: the store failed.
    """
    target = parse_url(url)
    for _ in range(max_redirects + 1):
        async with _answer(session, target) as response:
            location = response.headers.get(hdrs.LOCATION, "") if response.status in _REDIRECTS else ""
            if not location:
                return await _keep(response, limit, store)
        target = _joined(target, location)
    raise DownloadError("too many redirects")


@contextlib.asynccontextmanager
async def _answer(session: aiohttp.ClientSession, target: URL) -> AsyncIterator[aiohttp.ClientResponse]:
    try:
        response = await session.get(target, allow_redirects=False)
    except (aiohttp.ClientError, TimeoutError, OSError) as error:
        raise DownloadError(f"no answer: {type(error).__name__}") from error
    try:
        yield response
    finally:
        response.release()


async def _keep(response: aiohttp.ClientResponse, limit: int, store: FileStore) -> StoredFile:
    if response.status != _OK:
        raise DownloadError(f"the server answered {response.status}", response.status)
    if (response.content_length or 0) > limit:
        raise TooLargeError(limit)
    return await store.put(_body(response), limit)


async def _body(response: aiohttp.ClientResponse) -> AsyncIterator[bytes]:
    try:
        async for chunk in response.content.iter_chunked(_CHUNK):
            yield chunk
    except (aiohttp.ClientError, TimeoutError, OSError) as error:
        raise DownloadError(f"broken off: {type(error).__name__}") from error


def _joined(base: URL, location: str) -> URL:
    try:
        return parse_url(str(base.join(URL(location))))
    except ValueError as error:
        raise BlockedUrlError("it redirects to what is no URL") from error
