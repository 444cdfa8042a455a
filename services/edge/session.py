"""The session of one socket: hello, then channels, then packets. Pure: no socket, no clock, no records.

`Session.receive` decides what a packet means and returns the steps to take; what needs a look into the records
comes back as an `Ask`, and the shell tells the session what came of it.
"""

from collections.abc import Callable
from typing import Final, Literal

from msgspec import Struct

from shared.config import Limits
from shared.wire import replies
from shared.wire.codec import WireError
from shared.wire.packets import (
    PROFILE,
    PROTOCOL_VERSION,
    AuthCancel,
    AuthLogout,
    AuthStart,
    AuthStatus,
    ChannelClose,
    ChannelOpen,
    ChatAck,
    ChatActivity,
    ChatDelta,
    ChatMessage,
    DescriptorGet,
    Hello,
    Packet,
    Ping,
    Pong,
    ToolInvoke,
)

POLICY_VIOLATION: Final = 1008
INVALID_TEXT: Final = 1007
TOOL_NAME_BYTES: Final = 256


class Reply(Struct, frozen=True):
    """Send this frame."""

    frame: bytes


class Close(Struct, frozen=True):
    """Close the socket."""

    code: int
    reason: str


class Forward(Struct, frozen=True):
    """Publish the frame as it came, to the partition of its channel."""

    queue: Literal["delivery", "stream"]
    partition: int


class Ask(Struct, frozen=True):
    """Look into the records for this packet, then answer it."""

    packet: Hello | ChannelOpen | ChannelClose | DescriptorGet


class Settle(Struct, frozen=True):
    """xAgent has answered a person's message."""

    ack: ChatAck


Step = Reply | Close | Forward | Ask | Settle
UserLevel = (
    ChatMessage
    | ChatDelta
    | ChatAck
    | ChatActivity
    | AuthStart
    | AuthStatus
    | AuthCancel
    | AuthLogout
    | ToolInvoke
    | ChannelClose
    | DescriptorGet
)


class Session:
    """The state of one socket.

    Args:
        card_id: the Card whose base URL was dialled.
        partition_of: channel id to partition.
        limits: the caps on a message.
    """

    __slots__ = (
        "_forwards",
        "_im_enabled",
        "_limits",
        "_partition_of",
        "card_id",
        "channels",
        "connector_id",
    )

    def __init__(self, card_id: str, partition_of: Callable[[str], int], limits: Limits) -> None:
        self.card_id = card_id
        self.connector_id = ""
        self.channels: dict[str, int] = {}
        self._im_enabled = False
        self._partition_of = partition_of
        self._limits = limits
        self._forwards: dict[tuple[str, int], tuple[Step, ...]] = {}

    @property
    def helloed(self) -> bool:
        """Whether the hello has been acked."""
        return bool(self.connector_id)

    def receive(self, packet: Packet) -> tuple[Step, ...]:
        """The steps that a packet asks for, in order."""
        if not self.connector_id and not isinstance(packet, Hello | Pong):
            return (Reply(_error(packet, "hello_required", "say connector.hello first")),)
        match packet:
            case ChatDelta() | ChatMessage() | ChatActivity() | ChatAck():
                return self._chat(packet)
            case Hello():
                return self._hello(packet)
            case ChannelOpen():
                return self._open(packet)
            case Ping():
                return (Reply(replies.packet("pong", {}, request_id=packet.request_id, reply_to=packet.packet_id)),)
            case Pong():
                return ()
            case _:
                return self._user_level(packet)

    def refuse(self, error: WireError) -> tuple[Step, ...]:
        """The steps for a frame that is no packet."""
        about = error.about
        if error.code == "silent":
            return ()
        if error.code == "not_utf8":
            return (Close(INVALID_TEXT, str(error)),)
        if about.type == "connector.hello" and not self.connector_id and error.code == "invalid_packet":
            return (Reply(_error_about(error)),)
        if about.type == "chat.message" and about.message_id and self.connector_id:
            return (Reply(_refusal(about.channel, about.packet_id, about.message_id, error.code, str(error))),)
        return (Reply(_error_about(error)),)

    def said_hello(self, packet: Hello, connector_id: str) -> bytes:
        """Enters the state "ready" and returns the ack."""
        self.connector_id = connector_id
        self._im_enabled = PROFILE in packet.payload.supported_profiles
        payload = {
            "connector_card_id": self.card_id,
            "connector_id": connector_id,
            "protocol_version": PROTOCOL_VERSION,
        }
        return replies.packet("connector.hello.ack", payload, request_id=packet.request_id, reply_to=packet.packet_id)

    def opened(self, channel: str) -> int:
        """The channel is this socket's now; returns its partition."""
        return self.channels.setdefault(channel, self._partition_of(channel))

    def closed(self, channel: str) -> None:
        """The channel is this socket's no more."""
        self.channels.pop(channel, None)

    def _hello(self, packet: Hello) -> tuple[Step, ...]:
        hello = packet.payload
        if not _version_is_enough(hello.protocol_version):
            text = f"protocol_version must be {PROTOCOL_VERSION} or later"
            return Reply(_error(packet, "protocol_version_unsupported", text)), Close(POLICY_VIOLATION, text)
        if hello.connector_card_id != self.card_id:
            return (Reply(_error(packet, "connector_card_id_mismatch", f"this is {self.card_id}")),)
        if self.connector_id and hello.connector_id not in ("", self.connector_id):
            return (Reply(_error(packet, "connector_id_mismatch", "this socket has said hello already")),)
        if self.connector_id:
            return (Reply(self.said_hello(packet, self.connector_id)),)
        return (Ask(packet),)

    def _open(self, packet: ChannelOpen) -> tuple[Step, ...]:
        if self._im_enabled:
            return (Ask(packet),)
        return (Reply(failed(packet, "profile_not_supported", f"hello must name {PROFILE}")),)

    def _chat(self, packet: ChatMessage | ChatDelta | ChatActivity | ChatAck) -> tuple[Step, ...]:
        if not self._im_enabled:
            return ()
        partition = self.channels.get(packet.connector_channel_id)
        if partition is None:
            return (Reply(self._no_channel(packet)),)
        match packet:
            case ChatDelta():
                return self._forward("stream", partition)
            case ChatMessage():
                problem = message_problem(packet, self._limits)
                if problem:
                    channel, message_id = packet.connector_channel_id, packet.payload.message_id
                    return (Reply(_refusal(channel, packet.packet_id, message_id, "invalid_packet", problem)),)
                return self._forward("delivery", partition)
            case ChatActivity():
                problem = _activity_problem(packet)
                if problem:
                    return (Reply(_error(packet, "invalid_packet", problem)),)
                return self._forward("delivery", partition)
            case ChatAck():
                return (Settle(packet),)

    def _user_level(self, packet: UserLevel) -> tuple[Step, ...]:
        channel = packet.connector_channel_id
        partition = self.channels.get(channel)
        if partition is None:
            return (Reply(self._no_channel(packet)),)
        if isinstance(packet, ChannelClose | DescriptorGet):
            return (Ask(packet),)
        return self._forward("delivery", partition)

    def _forward(self, queue: Literal["delivery", "stream"], partition: int) -> tuple[Step, ...]:
        key = (queue, partition)
        steps = self._forwards.get(key)
        if steps is None:
            steps = self._forwards[key] = (Forward(queue, partition),)
        return steps

    def _no_channel(self, packet: UserLevel) -> bytes:
        code = "channel_not_open" if packet.connector_channel_id else "connector_channel_id_required"
        text = "open the channel on this socket first" if packet.connector_channel_id else "name the channel"
        if isinstance(packet, ChatMessage):
            return replies.rejected(
                packet.connector_channel_id,
                packet.packet_id,
                packet.payload.message_id,
                code,
                text,
                retryable=code == "channel_not_open",
            )
        return _error(packet, code, text)


def failed(packet: Packet, code: str, message: str, channel: str = "") -> bytes:
    """The ack of a control packet whose operation failed (connector-protocol.md, Envelope)."""
    kind = str(packet.__struct_config__.tag)
    return replies.packet(
        f"{kind}.ack",
        None,
        channel=channel or packet.connector_channel_id,
        request_id=packet.request_id,
        reply_to=packet.packet_id,
        error=replies.ErrorBody(code, message),
    )


def message_problem(packet: ChatMessage, limits: Limits) -> str:
    """What is wrong with a final beyond its shape; empty when nothing is (IM v2 §5, contract.md)."""
    message = packet.payload
    if not message.files and not message.text.strip():
        return "text and files are both empty"
    if len(message.text) > limits.text_bytes // 4 and len(message.text.encode()) > limits.text_bytes:
        return f"the text is over {limits.text_bytes} bytes"
    if len(message.files) > limits.files_per_message:
        return f"more than {limits.files_per_message} files"
    if len({file.file_ref for file in message.files}) != len(message.files):
        return "a file_ref stands twice in files"
    return ""


def _activity_problem(packet: ChatActivity) -> str:
    activity = packet.payload
    if activity.status != "tool":
        return "tool_name goes with status tool only" if activity.tool_name else ""
    if not activity.tool_name:
        return "status tool needs a tool_name"
    if len(activity.tool_name.encode()) > TOOL_NAME_BYTES:
        return f"tool_name is over {TOOL_NAME_BYTES} bytes"
    return ""


def _version_is_enough(version: str) -> bool:
    numbers = version.split(".")
    if not all(number.isdecimal() and len(number) < 9 for number in numbers):  # noqa: PLR2004 - no version is longer
        return False
    return [int(number) for number in numbers] >= [int(number) for number in PROTOCOL_VERSION.split(".")]


def _error(packet: Packet, code: str, message: str) -> bytes:
    return replies.error(
        code,
        message,
        channel=packet.connector_channel_id,
        request_id=packet.request_id,
        reply_to=packet.packet_id,
    )


def _error_about(error: WireError) -> bytes:
    about = error.about
    return replies.error(
        error.code, str(error), channel=about.channel, request_id=about.request_id, reply_to=about.packet_id
    )


def _refusal(channel: str, packet_id: str, message_id: str, code: str, message: str) -> bytes:
    return replies.rejected(channel, packet_id, message_id, code, message, retryable=False)
