"""How a rule ends other than by passing, and how it reads answers that may have any shape."""

from collections.abc import Mapping
from typing import Any, NoReturn


class Failed(AssertionError):
    """The Connector does not do what the rule says; the message says what it did."""


class Skipped(Exception):
    """The rule could not be tried; the message says why."""


def expect(holds: object, otherwise: str) -> None:
    """Fails the rule with `otherwise` unless it holds."""
    if not holds:
        raise Failed(otherwise)


def skip(reason: str) -> NoReturn:
    """Leaves the rule undecided."""
    raise Skipped(reason)


def at(value: object, *path: str) -> Any:
    """What lies along a path of keys; None where it ends early."""
    for key in path:
        value = value.get(key) if isinstance(value, Mapping) else None
    return value


def brief(packet: object) -> str:
    """A packet in a few words, for a detail."""
    code = code_of(packet)
    return " ".join(str(word) for word in (at(packet, "type"), at(packet, "payload", "status"), code) if word)


def code_of(packet: object) -> str:
    """The code of an error, of an ack that carries one, or of a rejected message."""
    code = at(packet, "error", "code") or (at(packet, "payload", "code") if is_rejected(packet) else "")
    return code if isinstance(code, str) else ""


def is_rejected(packet: object) -> bool:
    """Whether it is the ack of a message that was refused."""
    return (at(packet, "type"), at(packet, "payload", "status")) == ("chat.message.ack", "rejected")


def expect_code(packet: object, *codes: str) -> None:
    """The packet refuses, with one of the codes; with any stable code when none is given."""
    code = code_of(packet)
    wanted = " or ".join(codes) or "a refusal with a code"
    expect(code in codes if codes else code, f"expected {wanted}, got: {brief(packet)}")


def expect_error(packet: object, *codes: str) -> None:
    """The same, and it is a packet of type error."""
    expect(at(packet, "type") == "error", f"expected an error packet, got: {brief(packet)}")
    expect_code(packet, *codes)


def expect_ack(packet: object, *statuses: str) -> None:
    """The packet is the ack of a message, with one of the statuses."""
    good = at(packet, "type") == "chat.message.ack" and at(packet, "payload", "status") in statuses
    expect(good, f"expected a chat.message.ack {' or '.join(statuses)}, got: {brief(packet)}")


def expect_rejected(packet: object, *codes: str, retryable: bool | None = None) -> None:
    """The message was refused as IM v2 §7 wants it: a stable code and a Boolean `retryable`."""
    expect_ack(packet, "rejected")
    expect_code(packet, *codes)
    value = at(packet, "payload", "retryable")
    expect(isinstance(value, bool), f"retryable is {value!r}, not a Boolean")
    expect(retryable is None or value is retryable, f"retryable is {value}")
