"""Which addresses a URL of a user may lead to (SSRF): checked after DNS, and connected to exactly."""

import ipaddress
import socket
from typing import Any

import aiohttp
from aiohttp.abc import AbstractResolver, ResolveResult
from aiohttp.resolver import ThreadedResolver
from yarl import URL

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network
_NAT64 = ipaddress.ip_network("64:ff9b::/96")


class BlockedUrlError(Exception):
    """The URL leads where users' URLs may not; code `blocked_url`."""


class AllowList:
    """Private ranges that are allowed all the same."""

    def __init__(self, networks: tuple[Network, ...], *, everything: bool = False) -> None:
        self._networks = networks
        self._everything = everything

    @classmethod
    def parse(cls, value: str) -> "AllowList":
        """Reads SLUICE_ALLOW_PRIVATE_TARGETS.

        Raises:
            ValueError: neither CIDRs nor `true`.
        """
        if value.strip().lower() in ("true", "1"):
            return cls((), everything=True)
        try:
            parts = [part.strip() for part in value.split(",") if part.strip()]
            return cls(tuple(ipaddress.ip_network(part) for part in parts))
        except ValueError as error:
            raise ValueError(f"SLUICE_ALLOW_PRIVATE_TARGETS: {error}") from error

    def admits(self, address: Address) -> bool:
        """Whether an address may be connected to."""
        if self._everything or any(address in network for network in self._networks):
            return True
        inner = _embedded(address)
        if inner is not None:
            return self.admits(inner)
        return address.is_global and not address.is_multicast


class Guard:
    """Checks URLs.

    Args:
        allow: what private ranges are allowed.
    """

    def __init__(self, allow: AllowList) -> None:
        self._allow = allow
        self._resolver: AbstractResolver | None = None

    async def check_url(self, url: str) -> None:
        """Parses, resolves and checks.

        Raises:
            ValueError: it is no http(s) URL.
            BlockedUrlError: it leads where it may not.
        """
        host = self.check_form(url)
        if self._resolver is None:
            self._resolver = ThreadedResolver()
        try:
            found = await self._resolver.resolve(host, 0, family=socket.AF_UNSPEC)
        except OSError as error:
            raise ValueError("the host name cannot be resolved") from error
        for result in found:
            self.check_address(result["host"])

    def check_form(self, url: str) -> str:
        """Returns the host of a well-formed URL; a literal address is checked at once."""
        parsed = URL(url)
        if parsed.scheme not in ("http", "https") or not parsed.host:
            raise ValueError("an http(s) URL is required")
        if parsed.user is not None or parsed.password is not None:
            raise ValueError("no user name or password in the URL")
        try:
            literal = ipaddress.ip_address(parsed.host)
        except ValueError:
            return parsed.host
        self.check_address(str(literal))
        return parsed.host

    def check_address(self, address: str) -> None:
        """Raises `BlockedUrlError` where it may not be connected to."""
        if not self._allow.admits(ipaddress.ip_address(address.split("%", 1)[0])):
            raise BlockedUrlError("it leads to a private address")


class _GuardedResolver(AbstractResolver):
    """Resolves, and lets through only addresses that may be connected to; what it returns is what is dialled."""

    def __init__(self, guard: Guard) -> None:
        self._guard = guard
        self._inner = ThreadedResolver()

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        found = await self._inner.resolve(host, port, family)
        for result in found:
            self._guard.check_address(result["host"])
        return found

    async def close(self) -> None:
        await self._inner.close()


class _GuardedConnector(aiohttp.TCPConnector):
    """Literal addresses never reach the resolver, so they are checked here."""

    def __init__(self, guard: Guard, **options: Any) -> None:
        super().__init__(resolver=_GuardedResolver(guard), **options)
        self._guard = guard

    async def _resolve_host(self, host: str, port: int, traces: Any = None) -> list[ResolveResult]:
        try:
            literal = str(ipaddress.ip_address(host))
        except ValueError:
            return await super()._resolve_host(host, port, traces)
        self._guard.check_address(literal)
        return await super()._resolve_host(host, port, traces)


def guarded_session(guard: Guard) -> aiohttp.ClientSession:
    """An HTTP client for URLs of users: every connection checked and pinned, no cookies, no proxy."""
    connector = _GuardedConnector(guard, limit=200, limit_per_host=20, ttl_dns_cache=30)
    return aiohttp.ClientSession(connector=connector, cookie_jar=aiohttp.DummyCookieJar(), trust_env=False)


def _embedded(address: Address) -> Address | None:
    """The IPv4 address inside an IPv6 one, where there is one."""
    if isinstance(address, ipaddress.IPv4Address):
        return None
    if address.ipv4_mapped is not None:
        return address.ipv4_mapped
    if address.sixtofour is not None:
        return address.sixtofour
    if address in _NAT64:
        return ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
    return None
