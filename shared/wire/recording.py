"""The script and the calls of the recording target: its control plane's wire format (docs/recording.md)."""

from typing import Literal

from msgspec import Struct

CallKind = Literal["send", "edit", "remove", "activity", "*"]
Refusal = Literal["", "permanent", "revoked", "failed", "throttled", "never_left", "unknown"]

TRUSTED_SECONDS = 0.025
"""How long a worker may go by the script it has read; setting a script takes twice that, so that then all obey."""


class Step(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What happens to the calls that match.

    Attributes:
        kind: of call; "*" for all.
        chat: only in this chat; empty for all.
        message_id: only of this message; empty for all.
        ordinal: from which matching call on, counted from 1 over the whole fleet.
        times: for how many calls; 0 without end.
        latency_ms: before anything else.
        refusal: how the platform answers instead of storing.
        retry_after: seconds, with "throttled"; None: it does not say.
        message: for a permanent refusal.
        stall_ms: store, then wait so long, then lose the answer.
        crash: kill the worker when a delivery that matches comes to this step; `chat` is the channel id here.
    """

    kind: CallKind = "*"
    chat: str = ""
    message_id: str = ""
    ordinal: int = 1
    times: int = 1
    latency_ms: float = 0.0
    refusal: Refusal = ""
    retry_after: float | None = None
    message: str = ""
    stall_ms: float = 0.0
    crash: Literal["", "before_call", "after_call", "after_receipt", "before_settle"] = ""

    def matches(self, kind: str, chat: str, message_id: str) -> bool:
        """Whether a call is of the kind, chat and message meant."""
        return self.kind in ("*", kind or self.kind) and self.chat in ("", chat) and self.message_id in ("", message_id)

    def counts(self, occurrence: int) -> bool:
        """Whether the n-th match, from 1, is among those meant."""
        return occurrence >= self.ordinal and (self.times == 0 or occurrence < self.ordinal + self.times)


class Script(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How the platform behaves.

    Attributes:
        keyed: it stores a repeat under the same key once.
        edits: messages can be edited, so replies stream.
        text_limit: code points a message; 0 for none.
        steps: the first that matches and counts applies.
    """

    keyed: bool = True
    edits: bool = True
    text_limit: int = 0
    steps: tuple[Step, ...] = ()


class Call(Struct, frozen=True, kw_only=True):
    """One call as the platform saw it; `outcome` is "stored" or the refusal."""

    kind: str
    chat: str
    channel: str
    message_id: str
    part: int
    text: str
    files: tuple[str, ...]
    key: str
    handle: str
    at: float
    outcome: str


class ScriptedInbound(Struct, frozen=True, kw_only=True):
    """A person's message on the recording platform."""

    channel_id: str
    message_id: str
    text: str = ""
