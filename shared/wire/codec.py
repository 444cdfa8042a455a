"""From the bytes of a text frame to a packet, or to an error that says what to answer.

The fast path is one msgspec call. A frame that it refuses, or that holds a NUL, takes the slow path, where the text
policy is applied (contract.md, Refusals): NUL and lone surrogates become U+FFFD, in ids they are refused, and the
halves of one character at the ends of a delta are carried beside its text.
"""

import json
from typing import Any, Final

import msgspec
from msgspec import Struct

from shared.text.policy import clean_text
from shared.wire.packets import DeltaPayload, Packet

_decoder = msgspec.json.Decoder(Packet)
_NUL: Final = b"\\u0000"
_ID_FIELDS: Final = frozenset(
    {"packet_id", "request_id", "reply_to", "connector_channel_id", "message_id", "file_ref", "type", "schema"}
)
_KNOWN_TYPES: Final = frozenset(
    str(kind.__struct_config__.tag)
    for kind in Packet.__args__  # the members of the union
)
_TO_AGENT_ONLY: Final = frozenset({"connection.descriptor.push", "tool.progress.push", "error"})
_OTHER_PROFILES: Final = ("message.push", "browser.", "session.")
"""Types of profiles that we never negotiate, and xAgent's internal ones: dropped without an answer (IM v2 §1, §10)."""


class About(Struct, frozen=True):
    """What could be read of a frame that is no valid packet."""

    type: str = ""
    packet_id: str = ""
    request_id: str = ""
    channel: str = ""
    message_id: str = ""


class WireError(ValueError):
    """A frame that is not a packet.

    Attributes:
        code: a stable code of the protocol, or "not_utf8", or "silent" where no answer is due.
        about: what could be read of it.
    """

    def __init__(self, code: str, message: str, about: About) -> None:
        super().__init__(message)
        self.code = code
        self.about = about


def decode(raw: bytes) -> tuple[Packet, bytes]:
    """Returns the packet and the bytes to forward: the very same, unless the text policy had to change them.

    Raises:
        WireError: the frame is not a packet that xAgent may send.
    """
    try:
        packet = _decoder.decode(raw)
    except (msgspec.MsgspecError, RecursionError) as error:
        return _decode_slowly(raw, error)
    if _NUL in raw:
        return _decode_slowly(raw, None)
    return packet, raw


def decode_trusted(raw: bytes) -> Packet:
    """Reads what `decode` has let through once already."""
    return _decoder.decode(raw)


def _decode_slowly(raw: bytes, first_error: Exception | None) -> tuple[Packet, bytes]:
    document = _parse(raw)
    about = _about(document)
    _check_type(document, about)
    if b"\\u" in raw:
        try:
            raw = msgspec.json.encode(_apply_text_policy(document, about))
        except (RecursionError, OverflowError) as error:
            raise WireError("invalid_packet", _say(error), about) from error
    elif first_error is not None:
        raise WireError("invalid_packet", _say(first_error), about) from first_error
    try:
        return _decoder.decode(raw), raw
    except (msgspec.MsgspecError, RecursionError) as error:
        raise WireError("invalid_packet", _say(error), about) from error


def _parse(raw: bytes) -> dict[str, Any]:
    try:
        document = json.loads(raw.decode(), parse_constant=_refuse_constant)
    except UnicodeDecodeError as error:
        raise WireError("not_utf8", "a text frame must be UTF-8", About()) from error
    except (ValueError, RecursionError) as error:
        raise WireError("invalid_packet", f"not JSON: {_say(error)}", About()) from error
    if not isinstance(document, dict):
        raise WireError("invalid_packet", "a packet is a JSON object", About())
    return document


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


def _say(error: Exception) -> str:
    return "nested too deeply" if isinstance(error, RecursionError) else str(error)[:200]


def _about(document: dict[str, Any]) -> About:
    payload = document.get("payload")
    return About(
        type=_readable(document.get("type")),
        packet_id=_readable(document.get("packet_id")),
        request_id=_readable(document.get("request_id")),
        channel=_readable(document.get("connector_channel_id")),
        message_id=_readable(payload.get("message_id")) if isinstance(payload, dict) else "",
    )


def _readable(value: object) -> str:
    return value if isinstance(value, str) and len(value) <= 256 and clean_text(value) == value else ""  # noqa: PLR2004


def _check_type(document: dict[str, Any], about: About) -> None:
    kind = document.get("type")
    if not isinstance(kind, str):
        raise WireError("invalid_packet", "a packet names its type", about)
    if kind in _KNOWN_TYPES:
        return
    if kind == "error" or kind.startswith(_OTHER_PROFILES):
        raise WireError("silent", "of another profile, internal, or an error", about)
    if kind in _TO_AGENT_ONLY or (kind.endswith(".ack") and kind.removesuffix(".ack") in _KNOWN_TYPES):
        raise WireError("invalid_packet", f"{kind} goes from the Connector to xAgent only", about)
    raise WireError("unsupported_packet", "no such packet type", about)


def _apply_text_policy(document: dict[str, Any], about: About) -> dict[str, Any]:
    if document.get("type") == "chat.message.delta" and isinstance(payload := document.get("payload"), dict):
        document = {**document, "payload": _take_halves(payload)}
    cleaned = _clean(document, about)
    assert isinstance(cleaned, dict)  # noqa: S101 - a mapping stays a mapping
    return cleaned


def _take_halves(payload: dict[str, Any]) -> dict[str, Any]:
    text = payload.get("text")
    if not isinstance(text, str) or not text:
        return payload
    head = ord(text[0]) if "\udc00" <= text[0] <= "\udfff" else 0
    text = text[1:] if head else text
    tail = ord(text[-1]) if text and "\ud800" <= text[-1] <= "\udbff" else 0
    text = text[:-1] if tail else text
    return {**payload, "text": text, "head": head, "tail": tail}


def _clean(value: object, about: About, field: str = "") -> object:
    match value:
        case str():
            cleaned = clean_text(value)
            if cleaned != value and field in _ID_FIELDS:
                raise WireError("invalid_packet", f"{field} holds a NUL or a lone surrogate", about)
            return cleaned
        case dict():
            return {clean_text(key): _clean(item, about, key) for key, item in value.items()}
        case list():
            return [_clean(item, about, field) for item in value]
        case _:
            return value


def delta_bytes(payload: DeltaPayload) -> bytes:
    """The text of a delta, its halves put back, as UTF-8 that lets lone surrogates pass."""
    if not (payload.head or payload.tail):
        return payload.text.encode()
    head = chr(payload.head) if payload.head else ""
    tail = chr(payload.tail) if payload.tail else ""
    return (head + payload.text + tail).encode("utf-8", "surrogatepass")


def shown_text(stored: bytes) -> str:
    """The text to show of what `delta_bytes` made: halves joined, a half still waiting for its other one held back."""
    try:
        return clean_text(stored.decode())
    except UnicodeDecodeError:
        text = stored.decode("utf-8", "surrogatepass")
    if "\ud800" <= text[-1] <= "\udbff":
        text = text[:-1]
    return clean_text(text)
