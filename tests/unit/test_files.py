import asyncio
import os
import time
from collections.abc import AsyncIterator
from pathlib import Path
from urllib.parse import quote

import pytest

from shared.files import open_files
from shared.files.bucket import BucketStore
from shared.files.directory import DirectoryStore
from shared.files.port import FilesUnavailableError, MissingFileError


def _names(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir()]


async def _stream(*chunks: bytes) -> AsyncIterator[bytes]:
    for chunk in chunks:
        yield chunk


@pytest.mark.parametrize(
    "url",
    [
        "",
        "files",
        "file://",
        "file:///",
        "file://host/path",
        "file:///tmp/x?endpoint=http://h",
        "http://bucket/prefix",
        "s3://",
        "s3:///prefix",
        "s3://key:secret@bucket/prefix",
        "s3://bucket?endpoint=host",
        "s3://bucket?region=eu",
        "s3://bucket?endpoint",
        "file:///dev/null/files",
    ],
)
def test_a_wrong_url_is_refused_by_the_name_of_its_setting(url: str) -> None:
    with pytest.raises(ValueError, match=r"^SLUICE_FILES_URL: "):
        open_files(url)


def test_a_folder_may_have_a_space_in_its_name(tmp_path: Path) -> None:
    assert isinstance(open_files(f"file://{quote(str(tmp_path / 'a b'))}"), DirectoryStore)
    assert (tmp_path / "a b").is_dir()


def test_a_bucket_needs_no_prefix() -> None:
    assert isinstance(open_files("s3://bucket"), BucketStore)


async def test_the_folder_and_its_files_are_closed_to_others(tmp_path: Path) -> None:
    store = DirectoryStore(tmp_path / "files")
    stored = await store.put(_stream(b"x"), 10)
    assert (tmp_path / "files").stat().st_mode & 0o777 == 0o700
    assert (tmp_path / "files" / stored.key).stat().st_mode & 0o777 == 0o600


async def test_an_upload_that_is_cancelled_leaves_nothing(tmp_path: Path) -> None:
    store, waiting = DirectoryStore(tmp_path), asyncio.Event()

    async def stalling() -> AsyncIterator[bytes]:
        yield b"x" * 1000
        waiting.set()
        await asyncio.Event().wait()

    upload = asyncio.create_task(store.put(stalling(), 10_000))
    await waiting.wait()
    assert len(_names(tmp_path)) == 1
    upload.cancel()
    await asyncio.gather(upload, return_exceptions=True)
    assert _names(tmp_path) == []


async def test_what_a_killed_process_began_is_swept_after_a_day(tmp_path: Path) -> None:
    old, young = tmp_path / ".part-old", tmp_path / ".part-young"
    old.touch()
    young.touch()
    os.utime(old, (time.time() - 90_000,) * 2)
    DirectoryStore(tmp_path)
    assert _names(tmp_path) == [".part-young"]


async def test_a_folder_that_is_gone_is_unavailable(tmp_path: Path) -> None:
    store = DirectoryStore(tmp_path / "files")
    (tmp_path / "files").rmdir()
    with pytest.raises(FilesUnavailableError):
        await store.put(_stream(b"x"), 10)


async def test_a_file_that_vanishes_before_it_is_read_is_missing(tmp_path: Path) -> None:
    store = DirectoryStore(tmp_path)
    stored = await store.put(_stream(b"x"), 10)
    chunks = await store.open(stored.key)
    await store.delete(stored.key)
    with pytest.raises(MissingFileError):
        await anext(chunks)


async def test_a_bucket_that_is_away_is_unavailable_and_its_url_is_not_told(
    monkeypatch: pytest.MonkeyPatch, unused_tcp_port: int
) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "made-up")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "made-up")
    store = BucketStore("bucket", "", f"http://127.0.0.1:{unused_tcp_port}")
    with pytest.raises(FilesUnavailableError) as caught:
        await store.open("k" * 32)
    assert "127.0.0.1" not in str(caught.value)
