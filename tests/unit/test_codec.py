import json

import pytest

from shared.wire.codec import WireError, decode, delta_bytes, shown_text
from shared.wire.packets import ChatDelta, ChatMessage

ENVELOPE = {"schema": "xagent.connector.packet/v1", "packet_id": "p1", "connector_channel_id": "c1"}


def frame(kind: str, payload: object, **envelope: object) -> bytes:
    return json.dumps({**ENVELOPE, **envelope, "type": kind, "payload": payload}).encode()


def delta(sequence: int, text: str) -> bytes:
    packet, _ = decode(frame("chat.message.delta", {"message_id": "m", "sequence": sequence, "text": text}))
    assert isinstance(packet, ChatDelta)
    return delta_bytes(packet.payload)


def test_a_good_frame_is_forwarded_as_the_very_bytes_that_came() -> None:
    """Raw bytes are forwarded, not re-encoded."""
    raw = frame("chat.message", {"message_id": "m", "text": "hi \U0001f600"})
    packet, forwarded = decode(raw)
    assert isinstance(packet, ChatMessage)
    assert forwarded is raw


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"null",
        b"[]",
        b"{}",
        b"[" * 20_000 + b"]" * 20_000,
        b'{"x":' + b"[" * 20_000 + b"]" * 20_000 + b"}",
        b'{"seq":1,"seq":9}',
        b'{"x":NaN}',
        b'{"x":1e999}',
        b'{"x":' + b"9" * 5000 + b"}",
        b"\xef\xbb\xbf" + frame("ping", {}),
        frame("chat.message", {"message_id": "m", "text": 5}),
        frame("chat.message", {"text": "no id"}),
        frame("chat.message", {"message_id": "", "text": "x"}),
        frame("chat.message", {"message_id": "m" * 257, "text": "x"}),
        frame("chat.message", {"message_id": "m\0", "text": "x"}),
        frame("chat.message", {"message_id": "m\ud83d", "text": "x"}),
        frame("chat.message.delta", {"message_id": "m", "sequence": 0, "text": "x"}),
        frame("chat.message.delta", {"message_id": "m", "sequence": 1, "text": "x", "files": []}),
        frame("chat.activity", {"status": "thinking", "reasoning": "..."}),
        frame("channel.open.ack", {}),
        frame("connection.descriptor.push", {}),
    ],
)
def test_what_is_no_packet_is_refused_as_invalid(raw: bytes) -> None:
    """Every malformed frame is a typed error, never another exception (field report 42)."""
    with pytest.raises(WireError) as caught:
        decode(raw)
    assert caught.value.code == "invalid_packet"


@pytest.mark.parametrize("field", ["session_id", "user_connector_id", "user_id", "connector_id", "role"])
def test_a_payload_with_an_internal_identity_is_refused_and_still_names_its_message(field: str) -> None:
    """IM v2 §3; the ack needs the message_id."""
    with pytest.raises(WireError) as caught:
        decode(frame("chat.message", {"message_id": "m", "text": "x", field: None}))
    assert (caught.value.code, caught.value.about.message_id) == ("invalid_packet", "m")


def test_invalid_utf8_is_told_apart() -> None:
    """It closes the socket with 1007."""
    with pytest.raises(WireError) as caught:
        decode(b'{"text":"\xff"}')
    assert caught.value.code == "not_utf8"


@pytest.mark.parametrize("kind", ["session.sync_request", "message.push", "browser.navigate", "error"])
def test_internal_types_and_those_of_other_profiles_are_dropped_silently(kind: str) -> None:
    """IM v2 §1 and §10."""
    with pytest.raises(WireError) as caught:
        decode(frame(kind, {}))
    assert caught.value.code == "silent"


def test_an_unknown_type_is_unsupported() -> None:
    """Of no profile that we know of."""
    with pytest.raises(WireError) as caught:
        decode(frame("chat.dance", {}))
    assert caught.value.code == "unsupported_packet"


@pytest.mark.parametrize("text", ["a\0b", "a\ud83db"])
def test_nul_and_lone_surrogates_become_replacement_characters(text: str) -> None:
    """One text policy, in the packet and in the forwarded bytes alike."""
    packet, forwarded = decode(frame("chat.message", {"message_id": "m", "text": text}))
    assert isinstance(packet, ChatMessage)
    assert packet.payload.text == "a\ufffdb"
    assert decode(forwarded)[0] == packet


def test_halves_of_a_character_in_two_deltas_are_joined() -> None:
    """The half is held back from a preview until its other half is there."""
    first, second = delta(1, "a\ud83d"), delta(2, "\ude00b")
    assert shown_text(first) == "a"
    assert shown_text(first + second) == "a\U0001f600b"


def test_a_half_that_never_gets_its_other_half_is_replaced() -> None:
    """It is shown as U+FFFD as soon as more text follows."""
    assert shown_text(delta(1, "a\ud83d") + delta(2, "b")) == "a\ufffdb"
    assert shown_text(delta(1, "\ude00a")) == "\ufffda"
