"""Assistant text deltas (IM v2 §6, §9, §10; contract.md, Refusals)."""

import json
from typing import Any, Final

from services.conformance.probe import Lane, Probe
from services.conformance.rule import Rule
from services.conformance.verdict import at, brief, expect, expect_ack, expect_code, expect_error, skip
from shared.agent.client import new_message_id
from shared.agent.errors import AnswerTimeout
from shared.agent.model import Packet
from shared.wire.packets import SCHEMA

_STREAMS: Final = 40
_PIECES: Final = 12
_PIECE: Final = "x" * 32 * 1024


async def deltas_and_final(probe: Probe) -> None:
    """The usual course; a delta has no ack."""
    async with probe.connected() as lane:
        start, message_id = len(lane.peer.heard), new_message_id()
        for sequence, text in enumerate(("Word ", "by ", "word."), 1):
            await lane.delta(message_id, sequence, text)
        expect_ack(await lane.final(message_id, "Word by word."), "accepted")
        said = [
            packet
            for packet in await lane.peer.fence_since(start)
            if packet.get("type") != "connection.descriptor.push"
        ]
        expect(len(said) == 1, f"three deltas and a final were answered by: {', '.join(map(brief, said))}")
        expect_ack(await lane.final(message_id, "Word by word."), "duplicate")


async def final_decides(probe: Probe) -> None:
    """The final may say something else than its deltas."""
    async with probe.connected() as lane:
        message_id = new_message_id()
        await lane.delta(message_id, 1, "A first thought")
        expect_ack(await lane.final(message_id, "A second thought."), "accepted")


async def repeated(probe: Probe) -> None:
    """A delta sent again."""
    async with probe.connected() as lane:
        start, message_id = len(lane.peer.heard), new_message_id()
        for sequence in (1, 1, 2, 1, 2):
            await lane.delta(message_id, sequence, f"piece {sequence} ")
        await _expect_no_error(lane, start)
        expect_ack(await lane.final(message_id, "piece 1 piece 2 "), "accepted")


async def gap(probe: Probe) -> None:
    """One is missing: said so, not glued."""
    async with probe.connected() as lane:
        message_id = new_message_id()
        await lane.delta(message_id, 1, "one ")
        await _expect_gap(lane, message_id, 3, 2)
        expect_ack(await lane.final(message_id, "one two three"), "accepted")


async def gap_at_start(probe: Probe) -> None:
    """A stream begins at 1."""
    async with probe.connected() as lane:
        await _expect_gap(lane, new_message_id(), 2, 1)


async def gap_keeps_place(probe: Probe) -> None:
    """What was refused can be sent again in its turn."""
    async with probe.connected() as lane:
        message_id = new_message_id()
        await lane.delta(message_id, 1, "one ")
        await _expect_gap(lane, message_id, 3, 2)
        start = len(lane.peer.heard)
        await lane.delta(message_id, 2, "two ")
        await lane.delta(message_id, 3, "three, in other words ")
        await _expect_no_error(lane, start)


async def conflict(probe: Probe) -> None:
    """The same place, other words."""
    async with probe.connected() as lane:
        message_id = new_message_id()
        await lane.delta(message_id, 1, "one ")
        packet_id = await lane.delta(message_id, 1, "another one ")
        error = await lane.peer.error_to(packet_id)
        expect_error(error, "sequence_conflict")
        expect(at(error, "payload", "message_id") == message_id, "the error names another message")
        expect_ack(await lane.final(message_id, "one "), "accepted")


async def late(probe: Probe) -> None:
    """After its final a delta means nothing."""
    async with probe.connected() as lane:
        message_id = new_message_id()
        await lane.delta(message_id, 1, "one ")
        expect_ack(await lane.final(message_id, "one two"), "accepted")
        start = len(lane.peer.heard)
        await lane.delta(message_id, 2, "two")
        await _expect_no_error(lane, start)
        expect_ack(await lane.final(message_id, "one two"), "duplicate")


async def invalid(probe: Probe) -> None:
    """Sequences and texts that are none, and files."""
    wrong: tuple[dict[str, Any], ...] = (
        {"sequence": 0, "text": "x"},
        {"sequence": "1", "text": "x"},
        {"text": "x"},
        {"sequence": 1},
        {"sequence": 1, "text": "x", "role": "assistant"},
        {"sequence": 1, "text": "x", "files": [{"type": "file", "file_ref": "file_1"}]},
    )
    async with probe.lane() as lane:
        for fields in wrong:
            packet_id = await lane.send("chat.message.delta", {"message_id": new_message_id()} | fields)
            error = await lane.peer.error_to(packet_id)
            expect(at(error, "error", "code") == "invalid_packet", f"{fields} was answered by: {brief(error)}")


async def halves(probe: Probe) -> None:
    """One character in two deltas."""
    async with probe.connected() as lane:
        start, message_id = len(lane.peer.heard), new_message_id()
        for sequence, half in ((1, "\ud83d"), (2, "\ude00")):
            payload = {"message_id": message_id, "sequence": sequence, "text": half}
            await lane.agent.send_raw(json.dumps(_delta_packet(lane, f"{message_id}_{sequence}", payload)))
        await _expect_no_error(lane, start)
        expect_ack(await lane.final(message_id, "\U0001f600"), "accepted")


async def streams_bounded(probe: Probe) -> None:
    """Open streams have a limit, and the refusal of one more is typed."""
    async with probe.connected() as lane:
        start = len(lane.peer.heard)
        for _ in range(_STREAMS):
            await lane.delta(new_message_id(), 1, "opened")
        await _expect_limit(lane, start, "too_many_streams", f"{_STREAMS} open streams were taken")


async def stream_bounded(probe: Probe) -> None:
    """So has the text of one."""
    async with probe.connected() as lane:
        start, message_id = len(lane.peer.heard), new_message_id()
        for sequence in range(1, _PIECES + 1):
            await lane.delta(message_id, sequence, _PIECE)
        await _expect_limit(lane, start, "stream_too_large", f"a stream of {_PIECES * len(_PIECE)} bytes was taken")
        expect_ack(await lane.final(message_id, "Short after all."), "accepted")


async def _expect_limit(lane: Lane, start: int, code: str, otherwise: str) -> None:
    try:
        error = await lane.peer.any_error(start)
    except AnswerTimeout:
        skip(f"{otherwise}: the limit, if any, lies beyond")
    expect_code(error, code)
    expect(error.get("connector_channel_id") == lane.channel, "the error names another channel")
    expect(error.get("reply_to"), "the error has no reply_to")


async def _expect_gap(lane: Lane, message_id: str, sequence: int, expected: int) -> None:
    packet_id = await lane.delta(message_id, sequence, "out of turn ")
    error = await lane.peer.error_to(packet_id)
    expect_error(error, "sequence_gap")
    expect(error.get("connector_channel_id") == lane.channel, "the error names another channel")
    wanted = {"message_id": message_id, "expected_sequence": expected}
    expect(error.get("payload") == wanted, f"the payload is {error.get('payload')}, expected {wanted}")


async def _expect_no_error(lane: Lane, start: int) -> None:
    # An error may come later than a pong, but not later than that of the next delta: a gap is the better fence.
    fence = await lane.delta(new_message_id(), 2, "a fence")
    await lane.peer.error_to(fence)
    errors = [packet for packet in lane.peer.heard[start:] if _is_error(packet) and packet.get("reply_to") != fence]
    expect(not errors, f"a good delta was answered by: {brief(errors[0]) if errors else ''}")


def _delta_packet(lane: Lane, packet_id: str, payload: dict[str, Any]) -> Packet:
    return {
        "schema": SCHEMA, "packet_id": packet_id, "type": "chat.message.delta", "time": 0,
        "connector_channel_id": lane.channel, "payload": payload,
    }  # fmt: skip


def _is_error(packet: Packet) -> bool:
    return packet.get("type") == "error"


_SLUICE: Final = "Sluice: refusals"
_REFUSED: Final = "IM v2 §6, §10"
RULES: Final = (
    Rule("delta.final", "IM v2 §6, §11.2", "Deltas and their final make one accepted message", deltas_and_final),
    Rule("delta.final_decides", "IM v2 §5", "The final's text is the complete content", final_decides),
    Rule("delta.repeated", "IM v2 §6", "A repeated delta is ignored", repeated),
    Rule("delta.gap", _REFUSED, "A gap gets sequence_gap and the sequence expected", gap),
    Rule("delta.gap_at_start", _REFUSED, "A stream that begins at 2 gets sequence_gap", gap_at_start),
    Rule("delta.gap_keeps_place", _SLUICE, "A refused delta does not use up its sequence", gap_keeps_place),
    Rule("delta.conflict", _REFUSED, "Other text under a used sequence gets sequence_conflict", conflict),
    Rule("delta.late", _SLUICE, "A delta after its final is dropped silently", late),
    Rule(
        "delta.invalid", "IM v2 §6, §10, §11.9", "A bad sequence, a missing text or files get invalid_packet", invalid
    ),
    Rule("delta.halves", _SLUICE, "The halves of one character may come in two deltas", halves),
    Rule("delta.streams_bounded", "IM v2 §6, §11.6", "Open streams are bounded, the refusal is typed", streams_bounded),
    Rule("delta.stream_bounded", "IM v2 §6, §11.6", "A stream's text is bounded, the refusal is typed", stream_bounded),
)
