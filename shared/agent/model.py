"""What the agent's socket is made with and hands out."""

from collections.abc import Callable, Iterator
from typing import Any

from msgspec import Struct

Packet = dict[str, Any]
Tap = Callable[[Packet | None], None]
"""Sees every packet that comes in, and None once the socket has closed."""


class UserMessage(Struct, frozen=True):
    """What a person wrote. Unpacks as `channel, payload`; `packet` is the whole of it."""

    channel: str
    payload: dict[str, Any]
    packet: Packet

    def __iter__(self) -> Iterator[Any]:
        """The channel, then the payload."""
        return iter((self.channel, self.payload))


class Settings(Struct, frozen=True, kw_only=True):
    """How a socket behaves.

    Attributes:
        timeout: seconds for the handshake and for an answer.
        queue_size: how many packets each inbox keeps.
        auto_ack: every person's message is accepted as it comes, and a repeat answered with duplicate.
        tap: see `Tap`.
    """

    timeout: float = 10.0
    queue_size: int = 1024
    auto_ack: bool = False
    tap: Tap | None = None


def text_of(packet: Packet, field: str) -> str:
    """A field that should be a string; empty when it is none."""
    value = packet.get(field)
    return value if isinstance(value, str) else ""


def payload_of(packet: Packet) -> dict[str, Any]:
    """The payload; empty when it is no object."""
    payload = packet.get("payload")
    return payload if isinstance(payload, dict) else {}
