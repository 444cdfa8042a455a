import json
from typing import Any

import pytest

from services.edge.session import Ask, Close, Forward, Reply, Session, Settle, Step
from shared.config import Limits
from shared.wire.codec import WireError, decode

CARD = "im.recording"


def frame(kind: str, payload: object = None, channel: str = "", **extra: object) -> bytes:
    body = {
        "schema": "xagent.connector.packet/v1",
        "packet_id": "p1",
        "request_id": "r1",
        "connector_channel_id": channel,
        "type": kind,
        "payload": payload if payload is not None else {},
        **extra,
    }
    return json.dumps(body).encode()


def hello(**changes: object) -> bytes:
    payload = {"connector_card_id": CARD, "protocol_version": "3.0", "supported_profiles": ["xagent.im.v2"], **changes}
    return frame("connector.hello", payload)


def receive(session: Session, raw: bytes) -> tuple[Step, ...]:
    try:
        packet, _ = decode(raw)
    except WireError as error:
        return session.refuse(error)
    return session.receive(packet)


def reply(steps: tuple[Step, ...]) -> dict[str, Any]:
    assert isinstance(steps[0], Reply), steps
    document: dict[str, Any] = json.loads(steps[0].frame)
    return document


def new_session() -> Session:
    return Session(CARD, len, Limits())


@pytest.fixture
def ready() -> Session:
    session = new_session()
    packet, _ = decode(hello())
    (step,) = session.receive(packet)
    assert isinstance(step, Ask)
    session.said_hello(step.packet, "cn_1")  # type: ignore[arg-type]
    session.opened("c1")
    return session


@pytest.mark.parametrize("kind", ["channel.open", "ping", "chat.message.ack"])
def test_nothing_goes_before_hello(kind: str) -> None:
    """Connector-protocol.md, Data plane."""
    payload = {"message_id": "m", "status": "accepted"} if kind == "chat.message.ack" else {}
    answer = reply(receive(new_session(), frame(kind, payload)))
    assert (answer["type"], answer["error"]["code"]) == ("error", "hello_required")


def test_a_hello_for_another_card_is_refused() -> None:
    """With the code of the protocol, on the socket that stays open."""
    steps = receive(new_session(), hello(connector_card_id="im.other"))
    assert reply(steps)["error"]["code"] == "connector_card_id_mismatch"
    assert len(steps) == 1


@pytest.mark.parametrize("version", ["", "2.9", "3", "x", "-3.0"])
def test_a_missing_or_lower_version_is_refused_and_the_socket_closed(version: str) -> None:
    """contract.md, Refusals."""
    steps = receive(new_session(), hello(protocol_version=version))
    if version == "3":  # [3] < [3, 0]
        assert len(steps) == 2
    assert reply(steps)["error"]["code"] == "protocol_version_unsupported"
    assert steps[1] == Close(1008, "protocol_version must be 3.0 or later")


@pytest.mark.parametrize("version", ["3.0", "3.1", "10.0"])
def test_a_later_version_is_fine(version: str) -> None:
    """Only missing or lower ones are refused."""
    assert isinstance(receive(new_session(), hello(protocol_version=version))[0], Ask)


def test_a_session_without_our_profile_is_acked_but_opens_no_channel_and_drops_chat() -> None:
    """contract.md, Refusals: `profile_not_supported`; chat of it silently dropped."""
    session = new_session()
    packet, _ = decode(hello(supported_profiles=["xagent.browser-runtime.v2"]))
    (step,) = session.receive(packet)
    session.said_hello(step.packet, "cn_1")  # type: ignore[union-attr,arg-type]
    answer = reply(receive(session, frame("channel.open")))
    assert (answer["type"], answer["error"]["code"]) == ("channel.open.ack", "profile_not_supported")
    assert receive(session, frame("chat.message", {"message_id": "m", "text": "x"}, "c1")) == ()


def test_a_second_hello_keeps_the_id_and_cannot_change_it(ready: Session) -> None:
    """connector_id_mismatch."""
    assert reply(receive(ready, hello()))["payload"]["connector_id"] == "cn_1"
    assert reply(receive(ready, hello(connector_id="cn_2")))["error"]["code"] == "connector_id_mismatch"


def test_finals_and_deltas_of_an_open_channel_are_forwarded_to_its_partition(ready: Session) -> None:
    """Deltas to the aggregator, all else to delivery."""
    final = frame("chat.message", {"message_id": "m", "text": "x"}, "c1")
    piece = frame("chat.message.delta", {"message_id": "m", "sequence": 1, "text": "x"}, "c1")
    assert receive(ready, final) == (Forward("delivery", 2),)
    assert receive(ready, piece) == (Forward("stream", 2),)


def test_a_message_on_a_channel_that_is_not_open_gets_its_ack(ready: Session) -> None:
    """A chat.message is always answered by an ack; this one can be sent again."""
    answer = reply(receive(ready, frame("chat.message", {"message_id": "m", "text": "x"}, "c2")))
    assert answer["type"] == "chat.message.ack"
    assert answer["reply_to"] == "p1"
    assert answer["payload"] == {
        "message_id": "m",
        "status": "rejected",
        "code": "channel_not_open",
        "message": "open the channel on this socket first",
        "retryable": True,
    }


@pytest.mark.parametrize(("channel", "code"), [("c2", "channel_not_open"), ("", "connector_channel_id_required")])
def test_other_packets_without_an_open_channel_get_an_error(ready: Session, channel: str, code: str) -> None:
    """Routing errors are `error` packets."""
    for raw in (
        frame("chat.message.delta", {"message_id": "m", "sequence": 1, "text": "x"}, channel),
        frame("chat.activity", {"status": "idle"}, channel),
        frame("connection.descriptor.get", {}, channel),
    ):
        answer = reply(receive(ready, raw))
        assert (answer["type"], answer["error"]["code"], answer["request_id"]) == ("error", code, "r1")


@pytest.mark.parametrize(
    "payload",
    [
        {"message_id": "m"},
        {"message_id": "m", "text": " \n\t"},
        {"message_id": "m", "text": "x" * (256 * 1024 + 1)},
        {"message_id": "m", "text": "é" * (128 * 1024 + 1)},
        {"message_id": "m", "text": "x", "files": [{"type": "file", "file_ref": "f"}] * 2},
        {"message_id": "m", "text": "x", "files": [{"type": "file", "file_ref": f"f{n}"} for n in range(11)]},
        {"message_id": "m", "text": "x", "role": "assistant"},
        {"message_id": "m", "text": "x", "files": [{"type": "sticker", "file_ref": "f"}]},
        {"message_id": "m", "text": "x", "files": [{"type": "file"}]},
        {"message_id": "m", "text": "x", "files": [{"type": "file", "file_ref": "f", "base64": "AAAA"}]},
    ],
)
def test_an_invalid_message_is_rejected_for_good(ready: Session, payload: object) -> None:
    """IM v2 §5 and §7: rejected, invalid_packet, retryable false."""
    answer = reply(receive(ready, frame("chat.message", payload, "c1")))
    assert answer["type"] == "chat.message.ack"
    assert (answer["payload"]["code"], answer["payload"]["retryable"]) == ("invalid_packet", False)


def test_text_at_the_limit_passes(ready: Session) -> None:
    """256 KiB of UTF-8."""
    for text in ("x" * (256 * 1024), "é" * (128 * 1024)):
        assert receive(ready, frame("chat.message", {"message_id": "m", "text": text}, "c1"))[0] == Forward(
            "delivery", 2
        )


@pytest.mark.parametrize(
    "payload",
    [
        {"status": "tool"},
        {"status": "thinking", "tool_name": "x"},
        {"status": "tool", "tool_name": "é" * 129},
        {"status": "dancing"},
    ],
)
def test_an_invalid_activity_is_an_error(ready: Session, payload: object) -> None:
    """IM v2 §8."""
    assert reply(receive(ready, frame("chat.activity", payload, "c1")))["error"]["code"] == "invalid_packet"


def test_pings_are_answered_and_acks_settled(ready: Session) -> None:
    """The request_id comes back."""
    answer = reply(receive(ready, frame("ping")))
    assert (answer["type"], answer["request_id"]) == ("pong", "r1")
    acked = receive(ready, frame("chat.message.ack", {"message_id": "m", "status": "accepted"}, "c1", reply_to="p9"))
    assert isinstance(acked[0], Settle)
    assert receive(ready, frame("pong")) == ()


def test_text_that_is_not_utf8_closes_the_socket(ready: Session) -> None:
    """1007 (contract.md)."""
    (step,) = receive(ready, b'{"type":"\xff"}')
    assert isinstance(step, Close)
    assert step.code == 1007
