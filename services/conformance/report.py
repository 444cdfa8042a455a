"""What a run is given and what it says at its end."""

from collections.abc import Awaitable, Callable, Sequence
from typing import Literal

from msgspec import Struct, field

Status = Literal["pass", "fail", "skip"]


class Options(Struct, frozen=True, kw_only=True):
    """What the checker cannot find out from the outside.

    Attributes:
        auth_flow: the form flow that signs a channel in; the first of the Card when empty.
        auth_input: the form's fields.
        timeout: seconds for one answer.
        total: seconds for the whole run; rules that it leaves no time for fail.
        upload_limit: bytes; with it, one more byte must answer 413.
        shown: returns the texts that the target shows for a channel now, where somebody can look.
        speak: makes a person write a text to a channel, where somebody can.
    """

    auth_flow: str = ""
    auth_input: dict[str, str] = field(default_factory=dict)
    timeout: float = 10.0
    total: float = 600.0
    upload_limit: int = 0
    shown: Callable[[str], Awaitable[Sequence[str]]] | None = None
    speak: Callable[[str, str], Awaitable[None]] | None = None

    def __repr__(self) -> str:
        """Names the fields of the form, never their values."""
        return f"Options(auth_flow={self.auth_flow!r}, auth_input=<{', '.join(sorted(self.auth_input))}>)"


class Result(Struct, frozen=True):
    """What became of one rule; `section` names the text that it is taken from."""

    rule_id: str
    section: str
    title: str
    status: Status
    detail: str = ""


class Report(Struct, frozen=True):
    """What became of them all, in the order of the table."""

    results: tuple[Result, ...]

    @property
    def failed(self) -> tuple[Result, ...]:
        """Those that failed; empty means that the Connector conforms as far as it could be seen."""
        return self._with("fail")

    @property
    def passed(self) -> tuple[Result, ...]:
        """Those that were seen to hold."""
        return self._with("pass")

    @property
    def skipped(self) -> tuple[Result, ...]:
        """Those that could not be seen, with the reason as their detail."""
        return self._with("skip")

    def as_rows(self) -> list[tuple[str, str, str, str, str]]:
        """Rows to print: status, rule, section, title, detail."""
        return [(one.status, one.rule_id, one.section, one.title, one.detail) for one in self.results]

    def _with(self, status: Status) -> tuple[Result, ...]:
        return tuple(one for one in self.results if one.status == status)
