"""Activity (IM v2 §8)."""

from typing import Any, Final

from services.conformance.probe import Lane, Probe
from services.conformance.rule import Rule
from services.conformance.verdict import at, brief, expect, expect_ack
from shared.agent.client import new_message_id

_LONGEST: Final = 256
_VALID: Final[tuple[dict[str, Any], ...]] = (
    {"status": "thinking"},
    {"status": "tool", "tool_name": "web_search"},
    {"status": "tool", "tool_name": "x" * _LONGEST},
    {"status": "idle"},
)
_INVALID: Final[dict[str, dict[str, Any]]] = {
    "an unknown status": {"status": "dreaming"},
    "no status": {},
    "tool without tool_name": {"status": "tool"},
    "thinking with tool_name": {"status": "thinking", "tool_name": "web_search"},
    "idle with tool_name": {"status": "idle", "tool_name": "web_search"},
    "a tool_name of 257 bytes": {"status": "tool", "tool_name": "x" * (_LONGEST + 1)},
    "a tool_name of 86 characters and 258 bytes": {"status": "tool", "tool_name": "\u4e2d" * 86},
    "a tool_name that is a number": {"status": "tool", "tool_name": 7},
}
_LEAKS: Final[dict[str, dict[str, Any]]] = {
    "reasoning": {"status": "thinking", "reasoning": "first, I would"},
    "arguments": {"status": "tool", "tool_name": "web_search", "arguments": {"q": "x"}},
    "result": {"status": "tool", "tool_name": "web_search", "result": "x"},
    "session_id": {"status": "thinking", "session_id": "x"},
}


async def silent(probe: Probe) -> None:
    """Good activity is not answered."""
    async with probe.lane() as lane:
        start = len(lane.peer.heard)
        for payload in _VALID:
            await lane.send("chat.activity", payload)
        said = await lane.peer.fence_since(start)
        expect(not said, f"activity was answered by: {brief(said[0]) if said else ''}")


async def messages_unaffected(probe: Probe) -> None:
    """Between activity, messages are what they were."""
    async with probe.connected() as lane:
        start, message_id = len(lane.peer.heard), new_message_id()
        await lane.send("chat.activity", _VALID[0])
        await lane.delta(message_id, 1, "With ")
        await lane.send("chat.activity", _VALID[1])
        expect_ack(await lane.final(message_id, "With activity."), "accepted")
        await lane.send("chat.activity", _VALID[-1])
        expect_ack(await lane.final(message_id, "With activity."), "duplicate")
        answers = [packet for packet in lane.peer.heard[start:] if packet.get("type") in {"error", "chat.message.ack"}]
        expect(len(answers) == 2, f"heard: {', '.join(map(brief, answers))}")  # noqa: PLR2004 - two acks


async def invalid(probe: Probe) -> None:
    """What is no state."""
    async with probe.lane() as lane:
        await _expect_refused(lane, _INVALID)


async def leaks(probe: Probe) -> None:
    """What must not be told."""
    async with probe.lane() as lane:
        await _expect_refused(lane, _LEAKS)


async def refused_is_harmless(probe: Probe) -> None:
    """Bad activity leaves messages alone."""
    async with probe.connected() as lane:
        await lane.send("chat.activity", {"status": "dreaming"})
        expect_ack(await lane.final(new_message_id(), "In spite of it."), "accepted")


async def _expect_refused(lane: Lane, payloads: dict[str, dict[str, Any]]) -> None:
    for what, payload in payloads.items():
        start = len(lane.peer.heard)
        packet_id = await lane.send("chat.activity", payload)
        said = await lane.peer.fence_since(start)
        errors = [packet for packet in said if packet.get("reply_to") == packet_id]
        expect(errors, f"{what} was not refused")
        code = at(errors[0], "error", "code")
        expect(errors[0].get("type") == "error" and code == "invalid_packet", f"{what}: {brief(errors[0])}")


_TITLE: Final = "Activity with reasoning, arguments, results or identities gets invalid_packet"
RULES: Final = (
    Rule("activity.silent", "IM v2 §8, §11.12", "Good activity is taken without an answer", silent),
    Rule("activity.messages", "IM v2 §8, §11.12", "Activity leaves messages and acks as they are", messages_unaffected),
    Rule("activity.invalid", "IM v2 §8, §10", "A bad status or tool_name gets invalid_packet", invalid),
    Rule("activity.leaks", "IM v2 §8", _TITLE, leaks),
    Rule("activity.harmless", "IM v2 §8", "Refused activity rejects no message", refused_is_harmless),
)
