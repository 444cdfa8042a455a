import gzip
import ipaddress
import resource
import zlib
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from pathlib import Path

import pytest
from aiohttp import web

from shared.files.directory import DirectoryStore
from shared.files.port import FileStore, TooLargeError
from shared.net.download import DownloadError, download
from shared.net.guard import AllowList, BlockedUrlError, Guard, Lookup, UnresolvedUrlError, guarded_session

MIB = 1024 * 1024
LOOPBACK = AllowList.parse("127.0.0.0/8")
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def names(**table: Sequence[str]) -> Lookup:
    """A resolver that knows `<name>.test`."""

    async def lookup(host: str, port: int) -> Sequence[str]:
        del port
        if host.removesuffix(".test") not in table:
            raise OSError("no such name")
        return table[host.removesuffix(".test")]

    return lookup


def left(folder: Path) -> list[Path]:
    return list(folder.iterdir())


@pytest.fixture
def store(tmp_path: Path) -> FileStore:
    return DirectoryStore(tmp_path)


@pytest.fixture
async def serve() -> AsyncIterator[Callable[[Handler], Awaitable[int]]]:
    """Starts a server whose every path is answered by a handler; returns its port."""
    runners: list[web.AppRunner] = []

    async def start(handler: Handler) -> int:
        app = web.Application()
        app.router.add_get("/{path:.*}", handler)
        runner = web.AppRunner(app, shutdown_timeout=0.1)
        runners.append(runner)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        return int(runner.addresses[0][1])

    yield start
    for runner in runners:
        await runner.cleanup()


Serve = Callable[[Handler], Awaitable[int]]


@pytest.mark.parametrize(
    "address",
    [
        "127.0.0.1",
        "127.255.0.9",
        "0.0.0.0",  # noqa: S104 - an address to refuse
        "10.0.0.1",
        "172.16.0.1",
        "192.168.1.1",
        "100.64.0.1",
        "169.254.169.254",
        "192.0.2.1",
        "198.18.0.1",
        "192.88.99.1",
        "224.0.0.1",
        "239.255.255.250",
        "240.0.0.1",
        "255.255.255.255",
        "::",
        "::1",
        "::127.0.0.1",
        "::ffff:127.0.0.1",
        "::ffff:169.254.169.254",
        "64:ff9b::7f00:1",
        "64:ff9b::a9fe:a9fe",
        "64:ff9b:1::808:808",
        "2002:7f00:1::",
        "2002:a00:1::1",
        "2001:0:4136:e378:8000:63bf:3fff:fdd2",
        "2001:db8::1",
        "3fff::1",
        "fc00::1",
        "fd00:ec2::254",
        "fe80::1",
        "fec0::1",
        "ff02::1",
        "ff0e::1",
        "4000::1",
    ],
)
def test_an_address_that_is_not_public_is_refused(address: str) -> None:
    assert not AllowList().admits(ipaddress.ip_address(address))
    assert AllowList.parse("true").admits(ipaddress.ip_address(address))


@pytest.mark.parametrize(
    "address", ["1.1.1.1", "93.184.216.34", "2606:4700::1111", "::ffff:8.8.8.8", "64:ff9b::808:808", "2002:808:808::1"]
)
def test_a_public_address_is_admitted(address: str) -> None:
    assert AllowList().admits(ipaddress.ip_address(address))


def test_what_an_operator_lists_is_admitted_in_every_spelling() -> None:
    allow = AllowList.parse(" 10.0.0.0/8, fd00::/8 ,127.0.0.1")
    admitted = [allow.admits(ipaddress.ip_address(a)) for a in ("10.9.8.7", "::ffff:10.0.0.1", "fd12::1", "127.0.0.1")]
    assert admitted == [True] * 4
    assert not allow.admits(ipaddress.ip_address("127.0.0.2"))


@pytest.mark.parametrize("value", ["yes", "10.0.0.0/33", "10.0.0.1/8", "10.0.0.0/8;::1", "example.com"])
def test_a_wrong_list_is_refused_by_the_name_of_its_setting(value: str) -> None:
    with pytest.raises(ValueError, match=r"^SLUICE_ALLOW_PRIVATE_TARGETS: "):
        AllowList.parse(value)


@pytest.mark.parametrize(
    "url",
    [
        "",
        "example.com",
        "ftp://one.test/",
        "file:///etc/passwd",
        "javascript:alert(1)",
        "http://",
        "http:///path",
        "http://user@one.test/",
        "http://user:password@one.test/",
        "http://one.test:99999/",
        "http://one.test:0/",
        "http://127.0.0.1/",
        "http://127.0.0.1./",
        "http://127.1/",
        "http://2130706433/",
        "http://0x7f000001/",
        "http://0x7f.1/",
        "http://0177.0.0.1/",
        "http://[::1]/",
        "http://[::ffff:7f00:1]/",
        "http://[fe80::1%25eth0]/",
        "http://\uff11\uff12\uff17.0.0.1/",
        "http://inside.test/",
    ],
)
async def test_a_url_that_leads_inside_or_is_none_is_blocked(url: str) -> None:
    guard = Guard(AllowList(), names(one=["1.1.1.1"], inside=["10.0.0.1", "::1"]))
    with pytest.raises(BlockedUrlError) as caught:
        await guard.check_url(url)
    assert caught.value.code == "blocked_url"


async def test_a_public_url_passes() -> None:
    guard = Guard(AllowList(), names(one=["1.1.1.1"]))
    await guard.check_url("https://one.test:8443/a?b=c")
    await guard.check_url(" http://1.1.1.1/ ")


@pytest.mark.parametrize("host", ["nowhere.test", "a" * 300 + ".test"])
async def test_a_name_without_an_address_is_told_apart(host: str) -> None:
    with pytest.raises(UnresolvedUrlError):
        await Guard(AllowList(), names()).check_url(f"http://{host}/")


async def test_the_systems_own_resolver_is_asked_where_no_other_is_given() -> None:
    with pytest.raises(BlockedUrlError):
        await Guard(AllowList()).check_url("http://localhost/")


async def test_of_mixed_addresses_only_the_admitted_are_left() -> None:
    guard = Guard(AllowList(), names(both=["10.0.0.1", "1.1.1.1"]))
    assert await guard.resolve("both.test", 80) == ["1.1.1.1"]


async def test_a_name_that_changes_its_mind_after_the_check_is_not_connected_to(serve: Serve) -> None:
    async def ok(_: web.Request) -> web.Response:
        return web.Response(text="inside")

    port = await serve(ok)
    answers = iter([["1.1.1.1"], ["127.0.0.1"]])

    async def rebinding(host: str, port: int) -> Sequence[str]:
        del host, port
        return next(answers)

    guard = Guard(AllowList(), rebinding)
    async with guarded_session(guard) as session:
        await guard.check_url(f"http://rebind.test:{port}/")
        with pytest.raises(BlockedUrlError):
            await session.get(f"http://rebind.test:{port}/")


@pytest.mark.parametrize("host", ["127.0.0.1", "[::1]", "0x7f000001", "localhost"])
async def test_a_session_never_connects_inside(serve: Serve, host: str) -> None:
    asked: list[str] = []

    async def ok(request: web.Request) -> web.Response:
        asked.append(request.path)
        return web.Response()

    port = await serve(ok)
    async with guarded_session(Guard(AllowList())) as session:
        with pytest.raises(BlockedUrlError):
            await session.get(f"http://{host}:{port}/")
    assert asked == []


async def test_the_checked_address_is_the_one_that_is_dialled(serve: Serve) -> None:
    async def host_of(request: web.Request) -> web.Response:
        return web.Response(text=request.host)

    port = await serve(host_of)
    guard = Guard(LOOPBACK, names(allowed=["10.0.0.1", "127.0.0.1"]))
    async with guarded_session(guard) as session, session.get(f"http://allowed.test:{port}/") as response:
        assert await response.text() == f"allowed.test:{port}"
        connection = response.connection
        assert connection is None or connection.transport is not None


async def test_a_redirect_that_a_caller_follows_is_checked_too(serve: Serve) -> None:
    async def inward(_: web.Request) -> web.Response:
        return web.Response(status=302, headers={"Location": "http://169.254.169.254/latest/meta-data"})

    port = await serve(inward)
    async with guarded_session(Guard(LOOPBACK)) as session:
        with pytest.raises(BlockedUrlError):
            await session.get(f"http://127.0.0.1:{port}/")


async def fetch(port: int, store: FileStore, limit: int = MIB, guard: Guard | None = None) -> bytes:
    async with guarded_session(guard or Guard(LOOPBACK)) as session:
        stored = await download(session, f"http://127.0.0.1:{port}/file", limit, store)
    whole = b"".join([chunk async for chunk in await store.open(stored.key)])
    assert len(whole) == stored.byte_size
    return whole


@pytest.mark.parametrize("encoding", ["identity", "gzip", "deflate"])
async def test_a_file_is_fetched_as_it_is_without_its_encoding(serve: Serve, store: FileStore, encoding: str) -> None:
    body = {"identity": b"abc", "gzip": gzip.compress(b"abc"), "deflate": zlib.compress(b"abc")}[encoding]

    async def answer(_: web.Request) -> web.Response:
        return web.Response(body=body, headers={"Content-Encoding": encoding})

    assert await fetch(await serve(answer), store) == b"abc"


async def test_redirects_are_followed_up_to_three(serve: Serve, store: FileStore) -> None:
    hops = 3

    async def hop(request: web.Request) -> web.Response:
        count = int(request.query.get("n", "0"))
        if count < hops:
            return web.Response(status=302, headers={"Location": f"/next?n={count + 1}"})
        return web.Response(body=b"there")

    port = await serve(hop)
    assert await fetch(port, store) == b"there"
    hops = 4
    with pytest.raises(DownloadError, match="too many redirects"):
        await fetch(port, store)


@pytest.mark.parametrize(
    "location",
    [
        "http://10.0.0.1/",
        "http://169.254.169.254/",
        "file:///etc/passwd",
        "//user@127.0.0.1/",
        "http://[",
        "http://0x7f.1/",
    ],
)
async def test_a_redirect_that_leads_inside_is_blocked(
    serve: Serve, store: FileStore, tmp_path: Path, location: str
) -> None:
    async def inward(_: web.Request) -> web.Response:
        return web.Response(status=307, headers={"Location": location})

    port = await serve(inward)
    with pytest.raises(BlockedUrlError):
        await fetch(port, store)
    assert left(tmp_path) == []


async def test_a_chunked_body_without_end_is_stopped_at_the_cap(serve: Serve, store: FileStore, tmp_path: Path) -> None:
    """Field report 28 (a)."""
    sent = 0

    async def endless(request: web.Request) -> web.StreamResponse:
        nonlocal sent
        response = web.StreamResponse()
        await response.prepare(request)
        try:
            while True:
                await response.write(bytes(64 * 1024))
                sent += 64 * 1024
        except ConnectionError:
            return response

    with pytest.raises(TooLargeError):
        await fetch(await serve(endless), store, 2 * MIB)
    assert sent < 32 * MIB  # the cap and what the sockets hold
    assert left(tmp_path) == []


async def test_a_gzip_bomb_is_stopped_at_the_cap(serve: Serve, store: FileStore, tmp_path: Path) -> None:
    """Field report 28 (b): 1 GiB of zeroes in 1 MiB."""
    packer = zlib.compressobj(9, wbits=31)
    bomb = b"".join([packer.compress(bytes(MIB)) for _ in range(1024)] + [packer.flush()])

    async def answer(_: web.Request) -> web.Response:
        return web.Response(body=bomb, headers={"Content-Encoding": "gzip"})

    port = await serve(answer)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(TooLargeError):
        await fetch(port, store, 20 * MIB)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 40 * 1024  # KiB
    assert left(tmp_path) == []


async def test_a_declared_length_over_the_cap_is_refused_at_once(serve: Serve, store: FileStore) -> None:
    async def large(_: web.Request) -> web.Response:
        return web.Response(body=bytes(2000))

    with pytest.raises(TooLargeError):
        await fetch(await serve(large), store, 1000)


@pytest.mark.parametrize("status", [204, 206, 304, 401, 404, 500])
async def test_anything_but_200_is_no_file(serve: Serve, store: FileStore, status: int) -> None:
    async def answer(_: web.Request) -> web.Response:
        return web.Response(status=status)

    with pytest.raises(DownloadError) as caught:
        await fetch(await serve(answer), store)
    assert caught.value.status == status


async def test_a_body_that_breaks_off_leaves_nothing(serve: Serve, store: FileStore, tmp_path: Path) -> None:
    async def breaking(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Length": "1000"})
        await response.prepare(request)
        await response.write(b"x")
        assert request.transport is not None
        request.transport.close()
        return response

    with pytest.raises(DownloadError, match="broken off"):
        await fetch(await serve(breaking), store)
    assert left(tmp_path) == []


async def test_a_server_that_is_away_is_told_without_its_url(store: FileStore, unused_tcp_port: int) -> None:
    with pytest.raises(DownloadError, match="no answer") as caught:
        await fetch(unused_tcp_port, store)
    assert "127.0.0.1" not in str(caught.value)


async def test_a_url_that_leads_inside_is_not_asked(store: FileStore, unused_tcp_port: int) -> None:
    with pytest.raises(BlockedUrlError):
        await fetch(unused_tcp_port, store, guard=Guard(AllowList()))
