"""The packets of `xagent.connector.packet/v1` as one tagged union (connector-protocol.md, Data plane; IM v2 §4-8).

Only what xAgent may send is in `Packet`; what the Connector sends is written by `shared.wire.replies`.
Unknown envelope and payload fields are ignored, so that a newer sender is understood. Fields that the profile
forbids are declared with the type `UnsetType`: their presence, whatever the value, makes the packet invalid.
"""

from typing import Annotated, Any, Final, Literal

from msgspec import UNSET, Meta, Struct, UnsetType

SCHEMA: Final = "xagent.connector.packet/v1"
SUBPROTOCOL: Final = "xagent.connector.packet.v1"
PROTOCOL_VERSION: Final = "3.0"
PROFILE: Final = "xagent.im.v2"

Id = Annotated[str, Meta(min_length=1, max_length=256)]
"""An identifier: 1 to 256 characters."""
MaybeId = Annotated[str, Meta(max_length=256)]

Integer = Annotated[int, Meta(ge=-(2**53), le=2**53)]
"""What every reader of JSON holds exactly (field report 42)."""


class Envelope(Struct, frozen=True, tag_field="type", kw_only=True, omit_defaults=True):
    """What every packet carries.

    Attributes:
        schema: always `SCHEMA`.
        packet_id: names one transmission; unique.
        request_id: echoed in the answer.
        reply_to: the packet answered.
        connector_channel_id: the only routing identifier (IM v2 §3).
        time: milliseconds since the epoch.
        traceparent: W3C trace context of the sender, where it traces. Ours: the protocol ignores unknown fields.
    """

    schema: Literal["xagent.connector.packet/v1"]
    packet_id: Id
    request_id: MaybeId = ""
    reply_to: MaybeId = ""
    connector_channel_id: MaybeId = ""
    time: Integer = 0
    traceparent: str = ""


class _NoIdentity(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A chat payload names no session, user or author (IM v2 §3)."""

    session_id: UnsetType = UNSET
    user_connector_id: UnsetType = UNSET
    user_id: UnsetType = UNSET
    connector_id: UnsetType = UNSET
    role: UnsetType = UNSET


class File(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A file of a message: a reference, never bytes (IM v2 §5). Sizes in bytes, times in milliseconds."""

    type: Literal["image", "video", "audio", "file"]
    file_ref: Id
    filename: str = ""
    mime_type: str = ""
    byte_size: Integer | None = None
    expires_at: Integer | None = None
    download_url: str = ""
    data: UnsetType = UNSET
    base64: UnsetType = UNSET
    path: UnsetType = UNSET


class MessagePayload(_NoIdentity, frozen=True, kw_only=True, omit_defaults=True):
    """A complete message: text, files, or both (IM v2 §5)."""

    message_id: Id
    text: str = ""
    files: tuple[File, ...] = ()
    created_at: Integer = 0


class DeltaPayload(_NoIdentity, frozen=True, kw_only=True, omit_defaults=True):
    """A piece of an assistant message (IM v2 §6).

    `head` and `tail` are ours: the half of a character (a lone surrogate, as its code unit) that the text began or
    ended with, taken out at the edge because no UTF-8 text can hold it. 0 means none.
    """

    message_id: Id
    sequence: Annotated[int, Meta(ge=1, le=2**53)]
    text: str
    files: UnsetType = UNSET
    head: int = 0
    tail: int = 0


class AckPayload(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Whether a complete message was taken (IM v2 §7)."""

    message_id: Id
    status: Literal["accepted", "duplicate", "rejected"]
    code: str = ""
    message: str = ""
    retryable: bool | None = None


class ActivityPayload(Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """The whole processing state of a channel (IM v2 §8). Closed: it may carry nothing else."""

    status: Literal["thinking", "tool", "idle"]
    tool_name: str = ""


class HelloPayload(Struct, frozen=True, kw_only=True):
    """The first packet of a socket. `protocol_version` is checked by the session, with its own code."""

    connector_card_id: str
    connector_id: MaybeId = ""
    protocol_version: str = ""
    supported_profiles: tuple[str, ...] = ()


class AuthStartPayload(Struct, frozen=True, kw_only=True):
    """Starts a sign-in; `input` holds the form's fields, secrets among them."""

    flow_id: Id
    input: dict[str, Any] = {}

    def __repr__(self) -> str:
        """Names the fields, never their values."""
        return f"AuthStartPayload(flow_id={self.flow_id!r}, input=<{', '.join(sorted(self.input))}>)"


class AuthStatusPayload(Struct, frozen=True, kw_only=True):
    """Asks how a sign-in stands."""

    auth_session_id: Id
    flow_id: str = ""
    refresh: bool = False


class AuthCancelPayload(Struct, frozen=True, kw_only=True):
    """Gives a sign-in up; does not sign out."""

    auth_session_id: Id


class ToolContext(Struct, frozen=True, kw_only=True):
    """Correlation, not authority."""

    session_id: str = ""
    tool_call_id: str = ""


class ToolInvokePayload(Struct, frozen=True, kw_only=True):
    """Calls a tool of the Card."""

    tool_id: Id
    arguments: dict[str, Any] = {}
    context: ToolContext = ToolContext()


class Nothing(Struct, frozen=True):
    """A payload that says nothing; what it holds is ignored."""


class Hello(Envelope, frozen=True, tag="connector.hello"):
    """xAgent introduces itself."""

    payload: HelloPayload


class ChannelOpen(Envelope, frozen=True, tag="channel.open"):
    """Opens a new channel (empty id) or restores one."""

    payload: Nothing = Nothing()


class ChannelClose(Envelope, frozen=True, tag="channel.close"):
    """Drops the route of a channel; it stays signed in."""

    payload: Nothing = Nothing()


class AuthStart(Envelope, frozen=True, tag="auth.start"):
    """See `AuthStartPayload`."""

    payload: AuthStartPayload


class AuthStatus(Envelope, frozen=True, tag="auth.status"):
    """See `AuthStatusPayload`."""

    payload: AuthStatusPayload


class AuthCancel(Envelope, frozen=True, tag="auth.cancel"):
    """See `AuthCancelPayload`."""

    payload: AuthCancelPayload


class AuthLogout(Envelope, frozen=True, tag="auth.logout"):
    """Clears the credentials of a channel."""

    payload: Nothing = Nothing()


class DescriptorGet(Envelope, frozen=True, tag="connection.descriptor.get"):
    """Asks for the Connection Descriptor of a channel."""

    payload: Nothing = Nothing()


class ToolInvoke(Envelope, frozen=True, tag="tool.invoke"):
    """See `ToolInvokePayload`."""

    payload: ToolInvokePayload


class Ping(Envelope, frozen=True, tag="ping"):
    """Is the other side there?"""

    payload: Nothing = Nothing()


class Pong(Envelope, frozen=True, tag="pong"):
    """It is."""

    payload: Nothing = Nothing()


class ChatMessage(Envelope, frozen=True, tag="chat.message"):
    """See `MessagePayload`."""

    payload: MessagePayload


class ChatDelta(Envelope, frozen=True, tag="chat.message.delta"):
    """See `DeltaPayload`."""

    payload: DeltaPayload


class ChatAck(Envelope, frozen=True, tag="chat.message.ack"):
    """See `AckPayload`."""

    payload: AckPayload


class ChatActivity(Envelope, frozen=True, tag="chat.activity"):
    """See `ActivityPayload`."""

    payload: ActivityPayload


Packet = (
    Hello
    | ChannelOpen
    | ChannelClose
    | AuthStart
    | AuthStatus
    | AuthCancel
    | AuthLogout
    | DescriptorGet
    | ToolInvoke
    | Ping
    | Pong
    | ChatMessage
    | ChatDelta
    | ChatAck
    | ChatActivity
)
