"""What the fleet may ask of a platform, and when: rates (GCRA) and deadlines, one set for all workers.

A rate belongs to (platform, credential, scope), never to a process. All time is the server's (field report 40), so a
caller only ever learns how long to wait. docs/budgets.md tells how the places of waiting finals work.
"""

import hashlib
import math
from collections.abc import Sequence
from typing import Final as Constant

from msgspec import Struct

from shared.state.budget_scripts import BLOCK, BLOCK_PART, TAKE
from shared.state.client import State, Value

#: A platform that asks for more is asked again after a day.
LONGEST_BLOCK: Constant = 86_400.0
#: How much later than it was told a final may come back without being overtaken.
TURN: Constant = 0.1
#: How much later than it was told a final may come back and still have its place.
GRACE: Constant = 2.0
#: The most finals with a place in one scope; those beyond wait as long, without one.
LINE_CAP: Constant = 1000
#: The most parts of one whole that are remembered as refused.
PARTS_CAP: Constant = 64

#: The share of a burst that is left alone by what is shed first, second and third (platform-limits.md).
TYPING: Constant = 0.5
PREVIEW: Constant = 0.25
DELETE: Constant = 0.1


class Scope(Struct, frozen=True):
    """What a platform counts as one.

    Args:
        platform: its name.
        credential: the `fingerprint` of the credential, never the credential.
        name: what of it: "bot", "chat:42".
    """

    platform: str
    credential: str
    name: str


class Rate(Struct, frozen=True):
    """At most `burst` at once and `count` per `seconds` after that; in any t seconds, burst + count / seconds * t.

    With a burst of 1 the delay of each call adds to the next; a rate above about 5/s wants a burst of 2 or more.
    """

    count: float
    seconds: float
    burst: int = 1

    def __post_init__(self) -> None:
        """Refuses a rate that lets nothing through."""
        if not (self.count > 0 and self.seconds > 0 and self.burst >= 1 and math.isfinite(self.seconds / self.count)):
            raise ValueError(f"no rate: {self.count} per {self.seconds} s, burst {self.burst}")


class Need(Struct, frozen=True):
    """One call out of a scope, whose rate its adapter declares."""

    scope: Scope
    rate: Rate


class Final(Struct, frozen=True):
    """A call that waits and is never shed.

    Args:
        ticket: names the call among those that wait; the same whenever it asks again.
        needs: all the scopes that it counts in. It is let go by all of them or takes nothing from any.
    """

    ticket: str
    needs: Sequence[Need]


class Cosmetic(Struct, frozen=True):
    """A call that is shed when it may not go now: it keeps no place.

    Args:
        needs: see `Final`.
        reserve: the share of each burst that it leaves to others: `TYPING`, `PREVIEW`, `DELETE`.
    """

    needs: Sequence[Need]
    reserve: float = PREVIEW


class Budgets:
    """The fleet's budgets. All its methods raise `StateUnavailable` when there is no answer.

    Args:
        state: the shared state.
        turn_seconds: how much later than told a final may come back without being overtaken.
        grace_seconds: how much later than told a final may come back and still have its place.
        line_cap: the most finals with a place in one scope.
    """

    def __init__(
        self, state: State, *, turn_seconds: float = TURN, grace_seconds: float = GRACE, line_cap: int = LINE_CAP
    ) -> None:
        self._state = state
        self._head = (_micros(turn_seconds), _micros(grace_seconds), line_cap)

    async def take(self, requests: Sequence[Final | Cosmetic]) -> list[float]:
        """Asks for calls, in order, in one round trip.

        Returns:
            For each: 0, go now, once; or the seconds after which to ask again. A final has a place until then.
        """
        if not requests:
            return []
        keys: list[str | bytes] = []
        args: list[Value] = [*self._head]
        for request in requests:
            args += _head(request)
            for need in request.needs:
                keys += (_key("state", need.scope), _key("line", need.scope), _key("places", need.scope))
                interval = need.rate.seconds / need.rate.count * 1e6
                args += (interval, interval * (need.rate.burst - 1))
        return [wait / 1e6 for wait in await self._state.call(TAKE, keys, args)]

    async def block(self, scope: Scope, seconds: float) -> float:
        """Sets a deadline for a scope; of several the latest holds. A day is the most.

        Returns:
            The seconds to the scope's deadline.
        """
        return await self._state.call(BLOCK, [_key("state", scope)], [_span(seconds)]) / 1e6

    async def block_part(self, part: Scope, whole: Scope, seconds: float) -> float:
        """Sets a deadline for a part; while another part has one, for the whole, at the latest (contract.md, Delivery).

        Returns:
            The seconds to the deadline that holds the part.
        """
        keys = [_key("state", part), _key("state", whole), _key("parts", whole)]
        return await self._state.call(BLOCK_PART, keys, [_span(seconds), _bytes(part.name), PARTS_CAP]) / 1e6


def fingerprint(credential: str) -> str:
    """What a credential is called in the shared state, where it must not be read (design.md, Invariants 7)."""
    return hashlib.sha256(b"sluice budget" + _bytes(credential)).hexdigest()[:24]


def _head(request: Final | Cosmetic) -> tuple[Value, ...]:
    match request:
        case Final(ticket=ticket):
            return "final", _bytes(ticket), len(request.needs)
        case Cosmetic(reserve=reserve):
            return "cosmetic", reserve, len(request.needs)


def _key(kind: str, scope: Scope) -> bytes:
    return _bytes(f"budget:{kind}:{scope.platform}:{scope.credential}:{scope.name}")


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


def _micros(seconds: float) -> int:
    return math.ceil(seconds * 1e6)


def _span(seconds: float) -> int:
    return _micros(min(seconds, LONGEST_BLOCK)) if seconds > 0 else 0
