"""Files in an S3-compatible bucket; credentials from the standard AWS_* environment."""

import tempfile
from collections.abc import AsyncIterator
from urllib.parse import parse_qs, urlsplit

from obstore.store import S3Store as Bucket

from shared.files.port import HEAD_BYTES, MissingFileError, StoredFile, counted, new_secret

SPOOL_BYTES = 1024 * 1024


class S3Store:
    """See `shared.files.port.FileStore`.

    Args:
        url: `s3://bucket/prefix?endpoint=…`.
    """

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        endpoint = parse_qs(parts.query).get("endpoint", [""])[0]
        options = {"endpoint": endpoint} if endpoint else {}
        self._bucket = Bucket(
            parts.netloc,
            prefix=parts.path.strip("/") or None,
            client_options={"allow_http": endpoint.startswith("http://")},
            **options,  # type: ignore[arg-type]
        )

    def secret(self) -> str:
        """See `FileStore.secret`."""
        return new_secret()

    async def put(self, chunks: AsyncIterator[bytes], limit: int) -> StoredFile:
        """See `FileStore.put`; spooled to disk first, so that what is too large never reaches the bucket."""
        key, size, head = new_secret(), 0, bytearray()
        with tempfile.SpooledTemporaryFile(max_size=SPOOL_BYTES) as spool:
            async for chunk in counted(chunks, limit):
                spool.write(chunk)
                size += len(chunk)
                if len(head) < HEAD_BYTES:
                    head += chunk[: HEAD_BYTES - len(head)]
            spool.seek(0)
            await self._bucket.put_async(key, spool)
        return StoredFile(key, size, bytes(head))

    async def open(self, key: str) -> AsyncIterator[bytes]:
        """See `FileStore.open`."""
        try:
            found = await self._bucket.get_async(key)
        except FileNotFoundError as error:
            raise MissingFileError(key) from error

        async def read() -> AsyncIterator[bytes]:
            async for chunk in found.stream():
                yield bytes(chunk)

        return read()

    async def delete(self, key: str) -> None:
        """See `FileStore.delete`."""
        await self._bucket.delete_async(key)
