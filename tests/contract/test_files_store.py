"""What every store of files does; shown on a folder and on a bucket behind a real S3 API."""

import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import boto3  # type: ignore[import-untyped]
import pytest
from moto.server import ThreadedMotoServer

from shared.files import open_files
from shared.files.port import HEAD_BYTES, FileStore, MissingFileError, TooLargeError

MIB = 1024 * 1024


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0)
    server.start()
    host, port = server.get_host_and_port()
    yield f"http://{host}:{port}"
    server.stop()


@pytest.fixture(params=["directory", "bucket"])
def store(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FileStore:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    (tmp_path / "temporary").mkdir()
    if request.param == "directory":
        return open_files(f"file://{tmp_path}/files")
    url = request.getfixturevalue("endpoint")
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "made-up")
    monkeypatch.setenv("AWS_REGION", "us-east-1")
    client = boto3.client("s3", endpoint_url=url, region_name="us-east-1")
    client.create_bucket(Bucket="files")
    client.close()
    return open_files(f"s3://files/some/prefix?endpoint={url}")


async def stream(*chunks: bytes) -> AsyncIterator[bytes]:
    for chunk in chunks:
        yield chunk


def left(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file()]


async def content(store: FileStore, key: str) -> bytes:
    return b"".join([chunk async for chunk in await store.open(key)])


@pytest.mark.parametrize("chunks", [(), (b"",), (b"a", b"", b"bc"), (b"0123456789abcdef" * 4096,) * 130])
async def test_what_was_put_comes_back(store: FileStore, chunks: tuple[bytes, ...]) -> None:
    whole = b"".join(chunks)
    stored = await store.put(stream(*chunks), len(whole))
    assert (stored.byte_size, stored.head) == (len(whole), whole[:HEAD_BYTES])
    assert await content(store, stored.key) == whole


async def test_every_file_has_a_name_of_its_own(store: FileStore) -> None:
    first, second = await store.put(stream(b"a"), 1), await store.put(stream(b"b"), 1)
    assert first.key != second.key
    assert (await content(store, first.key), await content(store, second.key)) == (b"a", b"b")


async def test_a_stream_over_its_cap_is_stopped_and_leaves_nothing(store: FileStore, tmp_path: Path) -> None:
    """Field report 28: a body without a length that never ends."""
    taken = 0

    async def endless() -> AsyncIterator[bytes]:
        nonlocal taken
        while True:
            taken += 64 * 1024
            yield bytes(64 * 1024)

    with pytest.raises(TooLargeError) as caught:
        await store.put(endless(), MIB)
    assert (caught.value.limit, taken) == (MIB, MIB + 64 * 1024)
    assert left(tmp_path) == []


async def test_a_stream_that_breaks_off_leaves_nothing_and_is_not_blamed_on_the_store(
    store: FileStore, tmp_path: Path
) -> None:
    async def breaking() -> AsyncIterator[bytes]:
        yield b"x"
        raise ConnectionResetError

    with pytest.raises(ConnectionResetError):
        await store.put(breaking(), 10)
    assert left(tmp_path) == []


@pytest.mark.parametrize("key", ["k" * 32, "", "../../etc/passwd", "/etc/passwd", ".part-" + "k" * 26, "k\0" * 16])
async def test_what_was_never_put_is_missing(store: FileStore, key: str) -> None:
    with pytest.raises(MissingFileError):
        await store.open(key)
    await store.delete(key)


async def test_a_deleted_file_is_missing_and_may_be_deleted_again(store: FileStore) -> None:
    stored = await store.put(stream(b"x"), 1)
    await store.delete(stored.key)
    await store.delete(stored.key)
    with pytest.raises(MissingFileError):
        await store.open(stored.key)


async def test_secrets_differ_and_are_long(store: FileStore) -> None:
    assert store.secret() != store.secret()
    assert len(store.secret()) >= 32
