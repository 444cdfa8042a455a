"""Files: bytes under random names, streamed under a cap."""

from urllib.parse import urlsplit

from shared.files.directory import DirectoryStore
from shared.files.port import FileStore
from shared.files.s3 import S3Store


def open_files(url: str) -> FileStore:
    """From SLUICE_FILES_URL to a store.

    Raises:
        ValueError: neither `file:///path` nor `s3://bucket/prefix?endpoint=…`.
    """
    parts = urlsplit(url)
    if parts.scheme == "file" and parts.path:
        return DirectoryStore(parts.path)
    if parts.scheme == "s3" and parts.netloc:
        return S3Store(url)
    raise ValueError("SLUICE_FILES_URL: file:///path or s3://bucket/prefix?endpoint=… is needed")
