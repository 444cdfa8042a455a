"""Files in a bucket that speaks S3; the only module that imports obstore."""

import contextlib
import tempfile
from collections.abc import AsyncIterator, Iterator
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, TypedDict

import obstore
from obstore.exceptions import BaseError
from obstore.store import S3Store

from shared.files.port import READ_BYTES, FilesUnavailableError, MissingFileError, StoredFile, check_key, new_key
from shared.files.spool import DiskError, Spooled, in_thread, spool

if TYPE_CHECKING:  # the library names them in its stubs only
    from obstore import GetResult
    from obstore.store import ClientConfig, RetryConfig


class _Place(TypedDict, total=False):
    endpoint: str


_RETRIES: "RetryConfig" = {"max_retries": 3, "retry_timeout": timedelta(seconds=20)}
"""Somebody waits for the answer; the library's own three minutes are too long."""


class BucketStore:
    """Files under random names in a bucket. Credentials and region are those of the `AWS_*` environment.

    Args:
        bucket: its name.
        prefix: what all names begin with; may be empty.
        endpoint: of another provider than AWS; may be empty.

    Raises:
        ValueError: the bucket or the endpoint is malformed.
    """

    def __init__(self, bucket: str, prefix: str, endpoint: str) -> None:
        place: _Place = {"endpoint": endpoint} if endpoint else {}
        options: ClientConfig = {"allow_http": endpoint.startswith("http://"), "connect_timeout": "5s"}
        try:
            self._bucket = S3Store(
                bucket, prefix=prefix or None, client_options=options, retry_config=_RETRIES, **place
            )
        except BaseError as error:
            raise ValueError(str(error)) from error

    async def put(self, chunks: AsyncIterator[bytes], limit: int) -> StoredFile:
        """See `FileStore.put`. The stream is spooled first, so nothing half reaches the bucket."""
        key = new_key()
        with _translated():
            folder = await in_thread(tempfile.TemporaryDirectory, prefix="sluice-")
        with folder:
            path = Path(folder.name) / key
            spooled = await _spool(chunks, limit, path)
            with _translated():
                await obstore.put_async(self._bucket, key, path)
        return StoredFile(key, spooled.byte_size, spooled.head)

    async def open(self, key: str) -> AsyncIterator[bytes]:
        """See `FileStore.open`."""
        with _translated():
            result = await obstore.get_async(self._bucket, check_key(key))
        return _read(result)

    async def delete(self, key: str) -> None:
        """See `FileStore.delete`."""
        with contextlib.suppress(MissingFileError), _translated():
            await obstore.delete_async(self._bucket, check_key(key))

    def secret(self) -> str:
        """See `FileStore.secret`."""
        return new_key()


async def _spool(chunks: AsyncIterator[bytes], limit: int, path: Path) -> Spooled:
    try:
        return await spool(chunks, limit, path)
    except DiskError as error:
        raise FilesUnavailableError(f"the temporary folder failed: {error}") from error


async def _read(result: "GetResult") -> AsyncIterator[bytes]:
    with _translated():
        async for chunk in result.stream(READ_BYTES):
            yield bytes(chunk)


@contextlib.contextmanager
def _translated() -> Iterator[None]:
    try:
        yield
    except FileNotFoundError as error:
        raise MissingFileError("no such file") from error
    except (BaseError, OSError) as error:  # the provider's text may hold signed URLs: only its kind is told
        raise FilesUnavailableError(f"the bucket of files failed: {type(error).__name__}") from error
