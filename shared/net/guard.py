"""The guard of URLs that persons supply (server-side request forgery).

An address is checked after it is resolved, and that very address is connected to, so a name that changes its mind
between check and connection gains nothing. Redirects are no way around: each connection is checked.
"""

import asyncio
import ipaddress
import socket
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

import aiohttp
from aiohttp.abc import AbstractResolver, ResolveResult
from aiohttp.client_reqrep import ClientRequest
from aiohttp.connector import Connection
from aiohttp.tracing import Trace
from yarl import URL

from shared.net.addresses import Address, AllowList

__all__ = [
    "AllowList",
    "BlockedUrlError",
    "Guard",
    "GuardedConnector",
    "UnresolvedUrlError",
    "guarded_session",
    "parse_url",
]

Lookup = Callable[[str, int], Awaitable[Sequence[str]]]
"""Returns the addresses of a host, or raises `OSError`."""

LOOKUP_SECONDS: Final = 10.0
TIMEOUT: Final = aiohttp.ClientTimeout(total=60.0, sock_connect=10.0, sock_read=30.0)
_DECIMAL: Final = frozenset("0123456789")


class BlockedUrlError(Exception):
    """A URL that is refused whatever is behind it. The message never repeats the URL."""

    code = "blocked_url"


class UnresolvedUrlError(ValueError):
    """A URL whose host has no address at the moment."""


class Guard:
    """Checks URLs and addresses.

    Args:
        allow: the private targets that are allowed.
        lookup: how names are resolved; the system's way unless a test says otherwise.
    """

    def __init__(self, allow: AllowList, lookup: Lookup | None = None) -> None:
        self._allow = allow
        self._lookup = lookup or system_lookup

    async def check_url(self, url: str) -> None:
        """Checks what somebody typed into a form.

        Raises:
            BlockedUrlError: it is no http(s) URL, or leads where it may not.
            UnresolvedUrlError: its host has no address.
        """
        parsed = parse_url(url)
        try:
            async with asyncio.timeout(LOOKUP_SECONDS):
                await self.resolve(parsed.raw_host or "", parsed.port or 0)
        except (OSError, TimeoutError) as error:
            raise UnresolvedUrlError("the host name cannot be resolved") from error

    async def resolve(self, host: str, port: int) -> list[str]:
        """The addresses of a host that may be connected to; a literal address is its own.

        Raises:
            BlockedUrlError: there are addresses, but none that is allowed.
            OSError: there are none.
        """
        self.check_literal(host)
        literal = _literal(host)
        found = [host] if literal else await self._lookup(host, port)
        admitted = [text for text in found if self._allow.admits(ipaddress.ip_address(text.split("%", 1)[0]))]
        if found and not admitted:
            raise BlockedUrlError("it leads to an address that is not public")
        return admitted

    def check_literal(self, host: str) -> None:
        """Checks a host that is an address by itself; a name passes, to be checked when it is resolved.

        Raises:
            BlockedUrlError: the address may not be connected to.
        """
        literal = _literal(host)
        if literal is not None and not self._allow.admits(literal):
            raise BlockedUrlError("it leads to an address that is not public")


class GuardedConnector(aiohttp.TCPConnector):
    """Connects to checked addresses only.

    Args:
        guard: what checks them.
        limit_per_host: the most connections to one host.
    """

    def __init__(self, guard: Guard, limit_per_host: int) -> None:
        super().__init__(resolver=_GuardedResolver(guard), use_dns_cache=False, limit_per_host=limit_per_host)
        self._guard = guard

    async def connect(
        self,
        req: ClientRequest,
        traces: list[Trace],
        timeout: aiohttp.ClientTimeout,  # noqa: ASYNC109 - the signature is the library's
    ) -> Connection:
        """Checks what the resolver is never asked: literal addresses, and how the URL is formed."""
        self._guard.check_literal(parse_url(str(req.url)).raw_host or "")
        return await super().connect(req, traces, timeout)


class _GuardedResolver(AbstractResolver):
    def __init__(self, guard: Guard) -> None:
        self._guard = guard

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC
    ) -> list[ResolveResult]:
        """What it returns is what is dialled: numbers, which nothing resolves again."""
        addresses = await self._guard.resolve(host, port)
        found = [_result(host, address, port) for address in addresses]
        return [result for result in found if family in (socket.AF_UNSPEC, result["family"])]

    async def close(self) -> None:
        """There is nothing to release."""


def guarded_session(guard: Guard, *, limit_per_host: int = 20) -> aiohttp.ClientSession:
    """An HTTP client for URLs of persons: no cookies, no proxy, no credentials of the environment.

    Pass `allow_redirects=False`: where a redirect leads is for the caller to judge, and credentials must not follow it
    (field report 30). One that is followed all the same is checked like any other connection.

    Args:
        guard: what checks every connection.
        limit_per_host: the most connections to one host.
    """
    return aiohttp.ClientSession(
        connector=GuardedConnector(guard, limit_per_host),
        cookie_jar=aiohttp.DummyCookieJar(),
        timeout=TIMEOUT,
        trust_env=False,
    )


def parse_url(url: str) -> URL:
    """Parses an http(s) URL without a user name or password, whose host is a name or a plainly written address.

    Raises:
        BlockedUrlError: it is none.
    """
    try:
        parsed = URL(url.strip())
        port, host = parsed.explicit_port, parsed.raw_host
    except ValueError as error:
        raise BlockedUrlError("it is no URL") from error
    if parsed.scheme not in ("http", "https") or not host:
        raise BlockedUrlError("an http or https URL is required")
    if parsed.raw_user is not None or parsed.raw_password is not None:
        raise BlockedUrlError("a user name or password is not allowed in it")
    if port == 0 or _is_disguised(host):
        raise BlockedUrlError("its host or port is written in an unusual way")
    return parsed


async def system_lookup(host: str, port: int) -> list[str]:
    """Asks the system, off the event loop."""
    loop = asyncio.get_running_loop()
    try:
        found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_ADDRCONFIG)
    except UnicodeError as error:  # a label that is too long, or empty
        raise OSError("not a host name") from error
    return list(dict.fromkeys(str(sockaddr[0]) for *_, sockaddr in found))


def _literal(host: str) -> Address | None:
    try:
        return ipaddress.ip_address(host.strip("[]").split("%", 1)[0])
    except ValueError:
        return None


def _is_disguised(host: str) -> bool:
    """Whether a host ends in a number without being an address as it should be written: 127.1, 0x7f.1, 2130706433."""
    last = host.rstrip(".").rpartition(".")[2].lower()
    ends_in_number = last.startswith("0x") or (bool(last) and set(last) <= _DECIMAL)
    return ends_in_number and _literal(host) is None


def _result(host: str, address: str, port: int) -> ResolveResult:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    return ResolveResult(hostname=host, host=address, port=port, family=family, proto=0, flags=socket.AI_NUMERICHOST)
