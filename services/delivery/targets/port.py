"""The port that every platform adapter implements.

The engine decides what is sent, when, and whether it may be sent again; a target performs one call and says truly
what is known of it afterwards, by returning a receipt or by raising one of:

    TargetError            what a call may end with
    ├── NeverLeft          the request provably never reached the platform: safe to send again
    ├── Throttled          the platform answered "later" (429): safe to send again, at its time
    ├── Failed             the platform answered that it failed (its own 5xx): safe to send again
    ├── Unknown            no answer came: safe only with an idempotency key or an edit handle
    ├── Gone               there is nothing to edit any more, and nothing was changed: the part is to be sent
    └── Refused            the platform answered "never": permanent; `revoked` when the account itself is gone
"""

from typing import Any, Protocol

from msgspec import Struct

from shared.cards.card import Card
from shared.records.model import FileRow, Receipt
from shared.wire.packets import MessagePayload


class TargetError(Exception):
    """A call that did not end with a receipt."""


class NeverLeft(TargetError):
    """See the module."""


class Throttled(TargetError):
    """See the module.

    Attributes:
        retry_after: seconds, or None where the platform did not say (or said nonsense).
    """

    def __init__(self, retry_after: float | None, message: str = "") -> None:
        super().__init__(message or "the platform asked to slow down")
        self.retry_after = retry_after


class Failed(TargetError):
    """See the module."""


class Unknown(TargetError):
    """See the module."""


class Gone(TargetError):
    """See the module. Only an edit ends so; the send that follows is the engine's, which writes its intent first."""


class Refused(TargetError):
    """See the module."""

    def __init__(self, message: str, *, revoked: bool = False) -> None:
        super().__init__(message)
        self.revoked = revoked


class SignInError(Exception):
    """A form's input is wrong; the message names the field and says why."""


class Traits(Struct, frozen=True):
    """What a target can do.

    Attributes:
        keyed: a send repeated under the same key is performed once by the platform.
        edits: a message can be changed in place, so replies can stream.
        preview_seconds: the shortest time between two edits of a preview.
    """

    keyed: bool
    edits: bool
    preview_seconds: float = 0.25


class Binding(Struct, frozen=True):
    """A channel's place on the platform: whom to send to, and with what credential (never shown)."""

    channel: str
    card: str
    credential: dict[str, str] = {}

    def __repr__(self) -> str:
        """Names the channel only."""
        return f"Binding(channel={self.channel!r})"


class OutFile(Struct, frozen=True):
    """A file to send.

    Attributes:
        row: what is known of it.
        url: where the platform may fetch it for a while; the URL is the secret.
    """

    row: FileRow
    url: str


class Part(Struct, frozen=True):
    """One call's worth of a message: a text, files, or both.

    Attributes:
        message_id: of the message it belongs to.
        ordinal: 0 for the first.
        key: stable over retries and different for every part.
    """

    message_id: str
    ordinal: int
    key: str
    text: str = ""
    files: tuple[OutFile, ...] = ()
    created_at: int = 0


class SignedIn(Struct, frozen=True):
    """What a sign-in yields: the secret part, and what may be shown."""

    credential: dict[str, str]
    shown: dict[str, str] = {}

    def __repr__(self) -> str:
        """Never shows the credential."""
        return f"SignedIn(shown={self.shown!r})"


class Target(Protocol):
    """A platform."""

    card: Card

    async def traits(self, binding: Binding) -> Traits:
        """What can be done in this conversation."""
        ...

    async def plan(self, binding: Binding, message: MessagePayload, files: tuple[OutFile, ...]) -> tuple[Part, ...]:
        """Cuts a message into parts, always the same way for the same message."""
        ...

    async def send(self, binding: Binding, part: Part) -> Receipt:
        """Puts a part on the platform."""
        ...

    async def edit(self, binding: Binding, shown: Receipt, part: Part) -> Receipt:
        """Changes what is there into the part; raises `Gone` where a person has deleted it, say."""
        ...

    async def remove(self, binding: Binding, shown: Receipt) -> None:
        """Takes a preview away; raises `Refused` where the platform cannot."""
        ...

    async def activity(self, binding: Binding, status: str, tool_name: str) -> None:
        """Shows what the agent is doing, as well as the platform can; "idle" clears it."""
        ...

    async def sign_in(self, channel: str, flow_id: str, values: dict[str, Any]) -> SignedIn:
        """Checks a form.

        Raises:
            SignInError: the input is wrong.
            TargetError: the platform could not be asked.
        """
        ...

    async def sign_out(self, binding: Binding) -> None:
        """Forgets the account on the platform's side where there is something to forget."""
        ...
