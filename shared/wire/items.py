"""What travels on the bus: packets with their routing, packed many to a message.

Packing is what makes the fabric fast: a bus message costs the same whatever it carries (design.md, Choices already
measured). The packet itself stays the bytes that arrived at the edge.
"""

from collections.abc import Sequence

import msgspec
from msgspec import Struct


class Item(Struct, frozen=True, array_like=True):
    """One packet, or one internal note, on its way between services.

    Attributes:
        kind: how to read `raw`: "packet" for a wire packet of xAgent, else the tag of a `shared.wire.notes` struct.
        card: the connector_card_id.
        channel: the connector_channel_id.
        raw: JSON bytes.
        origin: the edge that took the packet and gets the answer; empty where nobody waits.
        at: when the fabric took it, seconds since the epoch.
        trace: W3C traceparent, empty where the packet is not traced.
    """

    kind: str
    card: str
    channel: str
    raw: bytes
    origin: str = ""
    at: float = 0.0
    trace: str = ""


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(list[Item])


class BadBatchError(ValueError):
    """The body of a bus message is not a batch of items."""


def pack(items: Sequence[Item]) -> bytes:
    """The body of one bus message."""
    return _encoder.encode(items)


def unpack(body: bytes) -> list[Item]:
    """The items of a bus message.

    Raises:
        BadBatchError: the body was not made by `pack`.
    """
    try:
        return _decoder.decode(body)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise BadBatchError(str(error)) from error
