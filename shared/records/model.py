"""What the records hold, as frozen structs. Times are seconds since the epoch."""

from typing import Literal

from msgspec import Struct

LedgerState = Literal["preview", "open", "done", "rejected"]
Direction = Literal["out", "in", "bus"]


class Channel(Struct, frozen=True):
    """A channel; `sealed` is its credential, encrypted; `target` is what may be shown."""

    channel_id: str
    card_id: str
    connector_id: str
    edge_id: str = ""
    session_id: str = ""
    status: str = "created"
    target: dict[str, str] = {}
    sealed: bytes = b""
    reason: str = ""
    created_at: float = 0.0

    def __repr__(self) -> str:
        """Never shows the credential."""
        return f"Channel({self.channel_id!r}, {self.card_id!r}, {self.status!r})"


class Opened(Struct, frozen=True):
    """A channel that was opened, and the (edge_id, session_id) that had it before."""

    channel: Channel
    moved_from: tuple[str, str] | None


class Receipt(Struct, frozen=True):
    """What the platform calls a part that landed; `text_len` in code points."""

    part: int
    id: str
    text_len: int = 0


class LedgerEntry(Struct, frozen=True):
    """What is known of a final; `intent` is the part that may be in flight, -1 for none."""

    channel: str
    message_id: str
    state: LedgerState
    fingerprint: str
    receipts: tuple[Receipt, ...]
    intent: int
    preview: tuple[Receipt, ...]
    shown: int
    code: str
    detail: str
    updated_at: float


class Claim(Struct, frozen=True):
    """A wish to deliver a final."""

    channel: str
    message_id: str
    fingerprint: str
    at: float


class Claimed(Struct, frozen=True):
    """The row as it stands; `fresh` when this claim made it, or turned it from a preview."""

    entry: LedgerEntry
    fresh: bool


class Intent(Struct, frozen=True):
    """A call about to be made that could not be repeated.

    Attributes:
        ordinal: the part.
        receipts: what has landed before it.
        holder: the worker that is about to make it.
    """

    channel: str
    message_id: str
    ordinal: int
    receipts: tuple[Receipt, ...]
    holder: str
    at: float


class LedgerUpdate(Struct, frozen=True):
    """A new state of a row.

    Attributes:
        holder: who writes it; an open row with an intent is changed by the holder of that intent alone.
    """

    channel: str
    message_id: str
    state: LedgerState
    receipts: tuple[Receipt, ...]
    intent: int
    preview: tuple[Receipt, ...]
    shown: int
    code: str = ""
    detail: str = ""
    fingerprint: str = ""
    at: float = 0.0
    holder: str = ""


class Backlog(Struct, frozen=True):
    """What waits in the records; ages in seconds, 0 where nothing waits."""

    outbox: int
    outbox_age: float
    parked: int
    parked_age: float
    dead_letters: int


class Parked(Struct, frozen=True, kw_only=True):
    """Work that waits; `item` is a packed batch of one."""

    channel: str
    partition: int
    card: str
    item: bytes
    due_at: float
    attempts: int
    first_at: float
    reason: str
    kind: str = "lane"
    id: int = 0


class DeadLetter(Struct, frozen=True, kw_only=True):
    """What was given up, and why."""

    id: str
    channel: str
    card: str
    message_id: str
    direction: Direction
    code: str
    detail: str
    body: bytes
    attempts: int
    at: float


class OutboxRow(Struct, frozen=True, kw_only=True):
    """A person's message; `payload` is the JSON of the chat.message payload."""

    channel: str
    card: str
    message_id: str
    payload: bytes
    accepted_at: float
    expires_at: float
    state: str
    attempts: int
    code: str
    seq: int


class Added(Struct, frozen=True):
    """What became of a person's message, and which edge has the channel open."""

    status: Literal["added", "duplicate", "full"]
    edge_id: str


class FileRow(Struct, frozen=True, kw_only=True):
    """A file behind a ref."""

    ref: str
    channel: str
    card: str
    direction: str
    filename: str
    mime_type: str
    file_type: Literal["image", "video", "audio", "file"]
    byte_size: int
    storage_key: str
    expires_at: float


class AuthSession(Struct, frozen=True):
    """A sign-in."""

    session_id: str
    channel: str
    flow_id: str
    status: str
    message: str
    expires_at: float


class TranscriptRow(Struct, frozen=True, kw_only=True):
    """A line of a console; `files` is JSON."""

    channel: str
    seq: int
    message_id: str
    author: str
    text: str
    files: bytes
    at: float
    revision: int
