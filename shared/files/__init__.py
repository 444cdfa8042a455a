"""Files: where their bytes are, what they are called, and of what type they are."""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import parse_qs, unquote, urlsplit

from shared.files.bucket import BucketStore
from shared.files.directory import DirectoryStore
from shared.files.port import FileStore

_TAKES = "takes file:///path or s3://bucket/prefix?endpoint=https://host; credentials come from AWS_*"


def open_files(url: str) -> FileStore:
    """Opens the store that `SLUICE_FILES_URL` names.

    Args:
        url: `file:///path`, or `s3://bucket/prefix?endpoint=…` with credentials from the `AWS_*` environment.

    Raises:
        ValueError: the URL is wrong or its folder cannot be made; the message names the setting.
    """
    with _named():
        parts = urlsplit(url)
        query = parse_qs(parts.query, keep_blank_values=True, strict_parsing=bool(parts.query))
        match parts.scheme:
            case "file" if parts.netloc in ("", "localhost") and len(parts.path) > 1 and not query:
                return DirectoryStore(Path(unquote(parts.path)))
            case "s3" if parts.netloc and "@" not in parts.netloc and set(query) <= {"endpoint"}:
                return BucketStore(parts.netloc, parts.path.strip("/"), _endpoint(query))
            case _:
                raise ValueError(_TAKES)


def _endpoint(query: dict[str, list[str]]) -> str:
    endpoint = query.get("endpoint", [""])[0]
    parts = urlsplit(endpoint)
    if endpoint and (parts.scheme not in ("http", "https") or not parts.hostname):
        raise ValueError("endpoint: an http(s) URL is required")
    return endpoint


@contextlib.contextmanager
def _named() -> Iterator[None]:
    try:
        yield
    except (ValueError, OSError) as error:
        raise ValueError(f"SLUICE_FILES_URL: {error}") from error
