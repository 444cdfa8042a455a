"""Internal notes: what services tell one another beside the packets. The tag is the `kind` of the item.

An item of kind `SEND` carries a finished packet for the socket that has the channel; `DUE` says that the outbox of
the channel has something to send; neither has a body of its own.
"""

from typing import Final

from msgspec import Struct

PACKET: Final = "packet"
SEND: Final = "send"
DUE: Final = "due"
MOVED: Final = "moved"
PREVIEW: Final = "preview"
INTERRUPTED: Final = "interrupted"
UNREGISTER: Final = "unregister"
TRANSCRIPT: Final = "transcript"


class PreviewDue(Struct, frozen=True):
    """Of kind `PREVIEW`: the text has grown, show the newest. Of kind `INTERRUPTED`: it died, say so."""

    message_id: str


class Moved(Struct, frozen=True):
    """Another socket has opened the channel; this one has it no more."""

    session_id: str


class TranscriptEvent(Struct, frozen=True, omit_defaults=True):
    """Something a person on the console should see.

    Attributes:
        event: "message" (complete), "preview" (text so far), "activity" or "removed".
    """

    event: str
    message_id: str = ""
    text: str = ""
    files: tuple[dict[str, str], ...] = ()
    status: str = ""
    tool_name: str = ""
    seq: int = 0
    author: str = "agent"
