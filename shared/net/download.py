"""Fetching a file from a URL of a user: every hop checked, bytes counted while they come."""

from collections.abc import AsyncIterator

import aiohttp
from aiohttp import hdrs
from yarl import URL

from shared.files.port import FileStore, StoredFile, TooLargeError

CHUNK = 64 * 1024
REDIRECTS = frozenset({301, 302, 303, 307, 308})
TIMEOUT = aiohttp.ClientTimeout(total=60.0, connect=10.0)


class DownloadError(Exception):
    """It could not be had; the message says why, without the URL."""


async def download(
    session: aiohttp.ClientSession, url: str, limit: int, store: FileStore, max_redirects: int = 3
) -> StoredFile:
    """Streams a URL into the store.

    Args:
        session: one of `shared.net.guard.guarded_session`.
        url: http(s).
        limit: the most bytes, after decompression.
        store: where they go.
        max_redirects: hops that are followed.

    Raises:
        TooLargeError: more than `limit`.
        BlockedUrlError: a hop leads where it may not.
        DownloadError: anything else that the server did.
    """
    target = URL(url)
    for _ in range(max_redirects + 1):
        if target.scheme not in ("http", "https") or target.user is not None:
            raise DownloadError("an http(s) URL is required")
        async with session.get(target, allow_redirects=False, timeout=TIMEOUT) as response:
            if response.status in REDIRECTS and (location := response.headers.get(hdrs.LOCATION)):
                target = target.join(URL(location))
                continue
            if response.status != 200:  # noqa: PLR2004 - nothing else promises the bytes
                raise DownloadError(f"the server answered {response.status}")
            if (response.content_length or 0) > limit:
                raise TooLargeError
            return await store.put(_body(response), limit)
    raise DownloadError("too many redirects")


async def _body(response: aiohttp.ClientResponse) -> AsyncIterator[bytes]:
    async for chunk in response.content.iter_chunked(CHUNK):
        yield chunk
