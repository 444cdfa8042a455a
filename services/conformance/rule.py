"""A rule, and the ways in which it ends other than by passing."""

from collections.abc import Awaitable, Callable

from msgspec import Struct

from services.conformance.probe import Probe


class Rule(Struct, frozen=True):
    """One statement of a specification and the check that can fail it."""

    rule_id: str
    section: str
    title: str
    check: Callable[[Probe], Awaitable[None]]
