"""Frames and envelopes: a bad one gets its answer, and the socket lives on (connector-protocol.md, Data plane)."""

import json
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, Final

from services.conformance.probe import Peer, Probe
from services.conformance.rule import Rule
from services.conformance.verdict import at, brief, expect, expect_error
from shared.agent.errors import ConnectionLost
from shared.wire.packets import SCHEMA

_MIB: Final = 1024 * 1024
_NOT_UTF8: Final = 1007
_TOO_BIG: Final = 1009
_DEEP: Final = 50_000


async def ping(probe: Probe) -> None:
    """A ping is answered, its request_id unchanged."""
    async with probe.peer() as peer:
        start = len(peer.heard)
        await peer.agent.send("ping", request_id="req_conformance")
        pong = await peer.until("a pong", lambda packet: packet.get("type") == "pong", start)
        expect(pong.get("request_id") == "req_conformance", f"the pong has request_id {pong.get('request_id')!r}")


async def unknown_type(probe: Probe) -> None:
    """A type that nobody knows."""
    async with probe.peer() as peer:
        expect_error(await peer.ask("conformance.unheard_of"), "unsupported_packet")
        await peer.fence()


async def internal_types(probe: Probe) -> None:
    """What is xAgent's own is dropped without a word."""
    async with probe.lane() as lane:
        start = len(lane.peer.heard)
        for kind in ("session.sync_request", "session.sync_message", "session.sync_end", "session.history_snapshot"):
            await lane.send(kind, {"messages": [{"text": "from the past"}]})
        said = await lane.peer.fence_since(start)
        expect(not said, f"session.* was answered by: {brief(said[0]) if said else ''}")


async def _bad_text(frame: str, probe: Probe) -> None:
    async with probe.peer() as peer:
        await _expect_invalid(peer, lambda: peer.agent.send_raw(frame))


async def binary(probe: Probe) -> None:
    """A binary frame."""
    packet = json.dumps(_envelope("ping")).encode()
    async with probe.peer() as peer:
        await _expect_invalid(peer, lambda: peer.agent.send_raw(packet))


async def _expect_invalid(peer: Peer, send: Callable[[], Awaitable[None]]) -> None:
    start = len(peer.heard)
    await send()
    expect_error(await peer.any_error(start), "invalid_packet")
    await peer.fence()


async def others_live(probe: Probe) -> None:
    """A bad frame leaves every channel of its socket open."""
    async with probe.lane() as lane:
        start = len(lane.peer.heard)
        await lane.agent.send_raw("{")
        await lane.peer.any_error(start)
        answer = await lane.ask("connection.descriptor.get")
        expect(at(answer, "type") == "connection.descriptor.get.ack", f"the channel was lost: {brief(answer)}")


async def not_utf8(probe: Probe) -> None:
    """Text that is none."""
    async with probe.peer() as peer:
        frame = json.dumps(_envelope("ping")).encode()
        await peer.agent.send_as_text(frame.replace(b'"ping"', b'"pi\xff\xfeng"'))
        code = await peer.agent.wait_closed()
        expect(code == _NOT_UTF8, f"the socket closed with {code}")


async def too_big(probe: Probe) -> None:
    """More than a packet may be."""
    async with probe.peer() as peer:
        try:
            await peer.agent.send("ping", payload={"pad": "x" * (_MIB + 1024)})
        except ConnectionLost as lost:
            expect(lost.code == _TOO_BIG, f"the socket closed with {lost.code}")
        code = await peer.agent.wait_closed()
        expect(code == _TOO_BIG, f"the socket closed with {code}")


async def big_enough(probe: Probe) -> None:
    """As much as a packet may be."""
    async with probe.peer() as peer:
        answer = await peer.ask("ping", "", {"pad": "x" * (_MIB - 2048)})
        expect(at(answer, "type") == "pong", f"a packet below the limit was answered by: {brief(answer)}")


async def unknown_fields(probe: Probe) -> None:
    """A newer sender is understood."""
    async with probe.peer() as peer:
        start = len(peer.heard)
        await peer.agent.send("ping", request_id="req_newer", newer_field="x")
        await peer.until("a pong", lambda packet: packet.get("request_id") == "req_newer", start)


def _envelope(kind: str, **change: Any) -> dict[str, Any]:
    fields = {"schema": SCHEMA, "packet_id": "pkt_conformance", "type": kind, "time": 0, "payload": {}} | change
    return {key: value for key, value in fields.items() if value is not None}


_BROKEN: Final = {
    "empty": ("An empty frame", ""),
    "not_json": ("A frame that is no JSON", '{"schema":'),
    "null": ("The frame null", "null"),
    "array": ("The frame []", "[]"),
    "empty_object": ("The frame {}", "{}"),
    "number": ("A bare number", "1"),
    "deep": ("A frame nested without end", "[" * _DEEP),
    "no_schema": ("A packet without schema", json.dumps(_envelope("ping", schema=None))),
    "other_schema": ("A packet of another schema", json.dumps(_envelope("ping", schema="xagent.other/v1"))),
    "no_packet_id": ("A packet without packet_id", json.dumps(_envelope("ping", packet_id=None))),
    "no_type": ("A packet without type", json.dumps(_envelope("ping", type=None))),
    "type_number": ("A packet whose type is a number", json.dumps(_envelope("ping", type=7))),
    "payload_list": ("A message whose payload is a list", json.dumps(_envelope("chat.message", payload=[]))),
}
_FRAMES: Final = "Common: data plane"
_LIMITS: Final = "Sluice: refusals"
RULES: Final = (
    Rule("frame.ping", _FRAMES, "A ping gets a pong with the same request_id", ping),
    Rule("frame.unknown_type", _FRAMES, "An unknown type gets unsupported_packet", unknown_type),
    Rule("frame.internal", "IM v2 §1, §10, §11.10", "Internal session.* packets are dropped silently", internal_types),
    *(
        Rule(f"frame.{name}", _FRAMES, f"{title} gets invalid_packet and the socket lives", partial(_bad_text, frame))
        for name, (title, frame) in _BROKEN.items()
    ),
    Rule("frame.binary", _FRAMES, "A binary frame gets invalid_packet and the socket lives", binary),
    Rule("frame.others_live", _FRAMES, "A bad frame leaves the other channels of its socket open", others_live),
    Rule("frame.unknown_fields", _FRAMES, "Unknown envelope fields are ignored", unknown_fields),
    Rule("frame.not_utf8", _LIMITS, "A text frame that is not UTF-8 closes the socket with 1007", not_utf8),
    Rule("frame.too_big", _LIMITS, "A frame over 1 MiB closes the socket with 1009", too_big),
    Rule("frame.big_enough", _LIMITS, "A frame just below 1 MiB is read", big_enough),
)
