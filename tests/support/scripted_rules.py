"""What the scripted Connector accepts: IM v2, as plain functions."""

import json
from typing import Any, Protocol

IDENTITY = {"session_id", "user_connector_id", "user_id", "connector_id", "role"}
MAX_STREAMS, MAX_STREAM = 16, 256 * 1024


class Refusal(Exception):
    """An error packet is due."""

    def __init__(self, code: str, payload: dict[str, Any] | None = None, about: dict[str, Any] | None = None) -> None:
        super().__init__(code)
        self.code, self.payload, self.about = code, payload or {}, about or {}


class ChannelState(Protocol):
    """The part of a channel that the rules read and change."""

    signed_in: bool
    done: dict[str, str]
    streams: dict[str, list[str]]
    files: set[str]


def check_envelope(text: str) -> dict[str, Any]:
    """The packet in a frame."""
    try:
        packet = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise Refusal("invalid_packet") from error
    if not isinstance(packet, dict):
        raise Refusal("invalid_packet")
    good = packet.get("schema") == "xagent.connector.packet/v1" and isinstance(packet.get("type"), str)
    if not good or not packet.get("packet_id") or not isinstance(packet.get("payload"), dict):
        raise Refusal("invalid_packet", about=packet)
    return packet


def check_message(payload: dict[str, Any], channel: ChannelState) -> tuple[str, str]:
    """The status of a message's ack, and its code."""
    message_id = payload.get("message_id")
    if not isinstance(message_id, str) or not message_id or "\x00" in message_id:
        raise Refusal("invalid_packet")
    text, files = payload.get("text", ""), payload.get("files", [])
    good_text = isinstance(text, str) and len(text) <= 256 * 1024 and (text.strip() or files)
    if not good_text or IDENTITY & set(payload) or len(files) > 10 or not all(map(_is_file, files)):
        return "rejected", "invalid_packet"
    if not channel.signed_in:
        return "rejected", "connection_not_authenticated"
    content = json.dumps([text, files])
    if message_id in channel.done:
        same = channel.done[message_id] == content
        return ("duplicate", "") if same else ("rejected", "message_conflict")
    if any(file["file_ref"] not in channel.files for file in files):
        return "rejected", "file_not_found"
    channel.done[message_id] = content
    channel.streams.pop(message_id, None)
    return "accepted", ""


def check_delta(payload: dict[str, Any], channel: ChannelState) -> None:
    """Takes a delta, or refuses it."""
    message_id, sequence, text = (payload.get(key) for key in ("message_id", "sequence", "text"))
    if not isinstance(sequence, int) or not isinstance(text, str) or not isinstance(message_id, str):
        raise Refusal("invalid_packet")
    if sequence < 1 or "files" in payload or IDENTITY & set(payload):
        raise Refusal("invalid_packet")
    if message_id in channel.done:
        return
    pieces = channel.streams.get(message_id, [])
    if sequence > len(pieces) + 1:
        raise Refusal("sequence_gap", {"message_id": message_id, "expected_sequence": len(pieces) + 1})
    if sequence <= len(pieces):
        if pieces[sequence - 1] != text:
            raise Refusal("sequence_conflict", {"message_id": message_id, "expected_sequence": len(pieces) + 1})
        return
    if not pieces and len(channel.streams) >= MAX_STREAMS:
        raise Refusal("too_many_streams", {"message_id": message_id, "expected_sequence": 1})
    if sum(map(len, pieces)) + len(text) > MAX_STREAM:
        raise Refusal("stream_too_large", {"message_id": message_id, "expected_sequence": sequence})
    channel.streams[message_id] = [*pieces, text]


def check_activity(payload: dict[str, Any]) -> None:
    """Refuses what is no state."""
    name, status = payload.get("tool_name"), payload.get("status")
    tool = status == "tool" and isinstance(name, str) and 0 < len(name.encode()) <= 256 and len(payload) == 2
    if not tool and not (status in {"thinking", "idle"} and len(payload) == 1):
        raise Refusal("invalid_packet")


def _is_file(file: dict[str, Any]) -> bool:
    known = {"type", "file_ref", "filename"}
    return file.get("type") in {"image", "video", "audio", "file"} and bool(file.get("file_ref")) and set(file) <= known
