"""What the Connector says: every packet it writes is made here, as bytes ready for a text frame."""

import time
from typing import Any

import msgspec
from msgspec import Struct

from shared.wire.ids import namer
from shared.wire.packets import SCHEMA, AckPayload

_new_packet_id = namer("pkt")
_encoder = msgspec.json.Encoder()


class ErrorBody(Struct, frozen=True, omit_defaults=True):
    """A stable code for programs and a message for people; never a secret."""

    code: str
    message: str = ""


class _Out(Struct, frozen=True, omit_defaults=True, kw_only=True):
    type: str
    packet_id: str
    time: int
    schema: str
    request_id: str = ""
    reply_to: str = ""
    connector_channel_id: str = ""
    payload: Any = None
    error: ErrorBody | None = None


def packet(
    kind: str,
    payload: Any,
    *,
    channel: str = "",
    request_id: str = "",
    reply_to: str = "",
    error: ErrorBody | None = None,
) -> bytes:
    """One packet of the given type (connector-protocol.md, Envelope)."""
    return _encoder.encode(
        _Out(
            schema=SCHEMA,
            packet_id=_new_packet_id(),
            type=kind,
            time=int(time.time() * 1000),
            request_id=request_id,
            reply_to=reply_to,
            connector_channel_id=channel,
            payload=payload,
            error=error,
        )
    )


def error(
    code: str,
    message: str = "",
    *,
    channel: str = "",
    request_id: str = "",
    reply_to: str = "",
    payload: Any = None,
) -> bytes:
    """A protocol, identity, routing or hello-order error, or a refused delta."""
    return packet(
        "error",
        payload if payload is not None else {},
        channel=channel,
        request_id=request_id,
        reply_to=reply_to,
        error=ErrorBody(code, message),
    )


def message_ack(
    channel: str,
    reply_to: str,
    message_id: str,
    status: str,
    *,
    code: str = "",
    message: str = "",
    retryable: bool | None = None,
    request_id: str = "",
) -> bytes:
    """The ack of a `chat.message` (IM v2 §7)."""
    payload = AckPayload(
        message_id=message_id,
        status=status,  # type: ignore[arg-type] # the callers use the three words of the profile
        code=code,
        message=message,
        retryable=retryable,
    )
    return packet("chat.message.ack", payload, channel=channel, reply_to=reply_to, request_id=request_id)


def rejected(channel: str, reply_to: str, message_id: str, code: str, message: str, *, retryable: bool) -> bytes:
    """An ack that refuses: always with a stable code and a Boolean `retryable`."""
    return message_ack(channel, reply_to, message_id, "rejected", code=code, message=message, retryable=retryable)
