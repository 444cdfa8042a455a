"""Which addresses a URL of a person may lead to. Pure."""

import ipaddress
from typing import Final

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network

_NAT64: Final = ipaddress.IPv6Network("64:ff9b::/96")
_GLOBAL_UNICAST: Final = ipaddress.IPv6Network("2000::/3")
_NOT_FOR_HOSTS: Final = (
    ipaddress.ip_network("192.88.99.0/24"),  # the 6to4 relays
    ipaddress.ip_network("2001::/32"),  # Teredo: an IPv4 address inside, obfuscated
    ipaddress.ip_network("3fff::/20"),  # documentation
)


class AllowList:
    """The private targets that an operator allows (contract.md, `SLUICE_ALLOW_PRIVATE_TARGETS`).

    Args:
        networks: what is allowed beside all global addresses.
    """

    def __init__(self, networks: tuple[Network, ...] = ()) -> None:
        self._networks = networks

    @classmethod
    def parse(cls, value: str) -> "AllowList":
        """Reads the setting: nothing, `true` for every address, or CIDRs with commas between.

        Raises:
            ValueError: neither; the message names the setting.
        """
        if value.strip().lower() == "true":
            return cls((ipaddress.ip_network("0.0.0.0/0"), ipaddress.ip_network("::/0")))
        try:
            return cls(tuple(ipaddress.ip_network(part.strip()) for part in value.split(",") if part.strip()))
        except ValueError as error:
            raise ValueError(f"SLUICE_ALLOW_PRIVATE_TARGETS: takes true or CIDRs: {error}") from error

    def admits(self, address: Address) -> bool:
        """Whether an address may be connected to."""
        inner = embedded(address)
        judged = address if inner is None else inner
        return is_global(judged) or any(candidate in net for net in self._networks for candidate in (address, judged))


def is_global(address: Address) -> bool:
    """Whether an address is a host's on the public internet; stricter than `ipaddress`, which calls more so."""
    if address.is_multicast or not address.is_global or any(address in net for net in _NOT_FOR_HOSTS):
        return False
    return isinstance(address, ipaddress.IPv4Address) or address in _GLOBAL_UNICAST


def embedded(address: Address) -> Address | None:
    """The IPv4 address that an IPv6 one stands for: v4-mapped, 6to4 or NAT64."""
    if isinstance(address, ipaddress.IPv4Address):
        return None
    if address in _NAT64:
        return ipaddress.IPv4Address(int(address) & 0xFFFF_FFFF)
    return address.ipv4_mapped or address.sixtofour
