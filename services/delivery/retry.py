"""When to try again, when to step aside, when to give up. Pure."""

import random
from collections.abc import Callable

from msgspec import Struct

from services.delivery.retry_after import sane
from services.delivery.targets.port import Failed, NeverLeft, Refused, TargetError, Throttled, Unknown
from shared.config import Limits

SHORTEST_WAIT = 0.05
"""A platform that says "at once" is not asked in a tight loop."""


class Wait(Struct, frozen=True):
    """Try again after so many seconds."""

    seconds: float
    reason: str


class GiveUp(Struct, frozen=True):
    """Never again: the code and detail for the ack and the dead letter; `revoked` takes the channel with it."""

    code: str
    detail: str
    revoked: bool = False


def after(
    error: TargetError,
    attempt: int,
    age: float,
    limits: Limits,
    *,
    repeatable: bool,
    jitter: Callable[[], float] = random.random,
) -> Wait | GiveUp:
    """What a failed call leads to.

    Args:
        error: how the call ended.
        attempt: how many there have been, this one included.
        age: seconds since the fabric took the message.
        limits: attempts and age allowed.
        repeatable: the platform notices a repeat, or the call is an edit.
        jitter: 0 to 1.
    """
    match error:
        case Refused(revoked=revoked):
            return GiveUp("target_delivery_failed", str(error), revoked)
        case Unknown() if not repeatable:
            return GiveUp("delivery_uncertain", "no answer came, and the platform cannot be asked")
        case Throttled(retry_after=given):
            code, seconds = "target_rate_limited", _asked(given)
        case NeverLeft() | Failed() | Unknown():
            code, seconds = "target_delivery_failed", None
        case _:
            return GiveUp("target_delivery_failed", str(error))
    if seconds is None:
        step = min(limits.retry_first_seconds * 2.0 ** min(attempt - 1, 30), limits.retry_most_seconds)
        seconds = step * (0.75 + jitter() / 4)
    if attempt >= limits.outbound_attempts or age + seconds > limits.outbound_seconds:
        return GiveUp(code, f"given up after {attempt} attempts in {age:.0f} s: {error}")
    return Wait(seconds, code)


def _asked(seconds: float | None) -> float | None:
    kept = sane(seconds)
    return None if kept is None else max(kept, SHORTEST_WAIT)
