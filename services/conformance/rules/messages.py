"""Complete messages and their acks (IM v2 §3, §5, §7, §9)."""

import json
from typing import Any, Final

from services.conformance.probe import Lane, Probe
from services.conformance.rule import Rule
from services.conformance.verdict import at, brief, expect, expect_ack, expect_code, expect_rejected, skip
from shared.agent.client import new_message_id
from shared.agent.model import Packet
from shared.wire.packets import SCHEMA

_IDENTITY: Final = ("session_id", "user_connector_id", "user_id", "connector_id", "role")
_KIB: Final = 1024


async def accepted(probe: Probe) -> None:
    """A final with no delta before it."""
    async with probe.connected() as lane:
        expect_ack(await lane.final(new_message_id(), "A direct final."), "accepted")


async def ack_matches(probe: Probe) -> None:
    """The ack names what it acks, strictly."""
    async with probe.connected() as lane:
        message_id, start = new_message_id(), len(lane.peer.heard)
        packet_id = await lane.send("chat.message", {"message_id": message_id, "text": "Which ack is mine?"})
        ack = await lane.peer.until("a chat.message.ack", _is_ack, start)
        expect(ack.get("reply_to") == packet_id, f"reply_to is {ack.get('reply_to')!r}, sent {packet_id!r}")
        channel = ack.get("connector_channel_id")
        expect(channel == lane.channel, f"connector_channel_id is {channel!r}")
        expect(at(ack, "payload", "message_id") == message_id, f"message_id is {at(ack, 'payload', 'message_id')!r}")


async def acked_once(probe: Probe) -> None:
    """One packet, one ack."""
    async with probe.connected() as lane:
        start = len(lane.peer.heard)
        await lane.final(new_message_id(), "One.")
        await lane.final(new_message_id(), "Two.")
        acks = [packet for packet in await lane.peer.fence_since(start) if _is_ack(packet)]
        expect(len(acks) == 2, f"two messages got {len(acks)} acks")  # noqa: PLR2004 - see above


async def duplicate(probe: Probe) -> None:
    """A repeat, with another packet_id."""
    async with probe.connected() as lane:
        message_id = new_message_id()
        expect_ack(await lane.final(message_id, "Once."), "accepted")
        expect_ack(await lane.final(message_id, "Once."), "duplicate")


async def same_text(probe: Probe) -> None:
    """Other messages of the same text are other messages."""
    async with probe.connected() as lane:
        for _ in range(2):
            expect_ack(await lane.final(new_message_id(), "The same words."), "accepted")


async def packet_id_is_no_key(probe: Probe) -> None:
    """A packet_id used twice makes no duplicate."""
    async with probe.connected() as lane:
        for _ in range(2):
            start, payload = len(lane.peer.heard), {"message_id": new_message_id(), "text": "By packet?"}
            await lane.agent.send("chat.message", lane.channel, payload, packet_id="pkt_twice_" + lane.channel[-32:])
            expect_ack(await lane.peer.until("a chat.message.ack", _is_ack, start), "accepted")


async def channels_apart(probe: Probe) -> None:
    """A message_id means something within its channel only."""
    message_id = new_message_id()
    async with probe.connected() as one, probe.connected() as other:
        expect_ack(await one.final(message_id, "Here."), "accepted")
        expect_ack(await other.final(message_id, "There."), "accepted")


async def conflict(probe: Probe) -> None:
    """The same id, other words."""
    async with probe.connected() as lane:
        message_id = new_message_id()
        expect_ack(await lane.final(message_id, "The truth."), "accepted")
        expect_rejected(await lane.final(message_id, "Another truth."), "message_conflict", retryable=False)
        expect_ack(await lane.final(message_id, "The truth."), "duplicate")


async def in_order(probe: Probe) -> None:
    """Messages in flight together are acked each."""
    async with probe.connected() as lane:
        start = len(lane.peer.heard)
        sent = [new_message_id() for _ in range(8)]
        for number, message_id in enumerate(sent):
            await lane.send("chat.message", {"message_id": message_id, "text": f"Number {number}."})
        await lane.peer.until(
            "the acks of 8 messages in flight",
            lambda _: len(_acked(lane, start)) >= len(sent),
            start,
        )
        expect(_acked(lane, start) == sent, f"acked in the order {_acked(lane, start)}, sent {sent}")


async def empty(probe: Probe) -> None:
    """Neither text nor files."""
    await _expect_invalid(probe, {"text": "", "files": []})


async def blank(probe: Probe) -> None:
    """Nothing to be seen."""
    await _expect_invalid(probe, {"text": " \n\t "})


async def identity(probe: Probe) -> None:
    """What names a session, a user or an author."""
    for field in _IDENTITY:
        await _expect_invalid(probe, {"text": "hello", field: "x"})


async def text_number(probe: Probe) -> None:
    """Text that is no string."""
    await _expect_invalid(probe, {"text": 7})


async def no_message_id(probe: Probe) -> None:
    """A message without its name."""
    async with probe.lane() as lane:
        expect_code(await lane.ask("chat.message", {"text": "nameless"}), "invalid_packet")
        await lane.peer.fence()


async def nul_in_id(probe: Probe) -> None:
    """A name that no database can hold."""
    async with probe.lane() as lane:
        expect_code(await lane.final("msg\x00nul", "hello"), "invalid_packet")
        await lane.peer.fence()


async def too_long(probe: Probe) -> None:
    """Text over its limit."""
    await _expect_invalid(probe, {"text": "x" * (256 * _KIB + 1)}, "")


async def too_many_files(probe: Probe) -> None:
    """Files over their limit."""
    files = [{"type": "file", "file_ref": f"file_{number}"} for number in range(11)]
    await _expect_invalid(probe, {"text": "many", "files": files}, "")


async def odd_text(probe: Probe) -> None:
    """A NUL and half a character are replaced, not refused."""
    async with probe.connected() as lane:
        start, message_id = len(lane.peer.heard), new_message_id()
        packet = {
            "schema": SCHEMA, "packet_id": message_id + "_p", "type": "chat.message", "time": 0,
            "connector_channel_id": lane.channel, "payload": {"message_id": message_id, "text": "odd \x00 \ud800 text"},
        }  # fmt: skip
        await lane.agent.send_raw(json.dumps(packet))
        expect_ack(await lane.peer.until("a chat.message.ack", _is_ack, start), "accepted")


async def whole_content(probe: Probe) -> None:
    """The target shows a streamed message once, as its final says."""
    if probe.options.shown is None:
        skip("what the target shows can be seen at the target only")
    async with probe.connected() as lane:
        message_id = new_message_id()
        for sequence, text in enumerate(("Draft ", "only"), 1):
            await lane.delta(message_id, sequence, text)
        expect_ack(await lane.final(message_id, "The whole content."), "accepted")
        texts = list(await probe.options.shown(lane.channel))
        expect(texts == ["The whole content."], f"the target shows {texts}")


async def _expect_invalid(probe: Probe, fields: dict[str, Any], code: str = "invalid_packet") -> None:
    async with probe.lane() as lane:
        message_id = new_message_id()
        answer = await lane.ask("chat.message", {"message_id": message_id} | fields)
        odd = ", ".join(fields)
        expect(at(answer, "type") == "chat.message.ack", f"with {odd} it was answered by: {brief(answer)}")
        expect_rejected(answer, *([code] if code else []), retryable=False)
        expect(at(answer, "payload", "message_id") == message_id, "the rejection names another message")


def _is_ack(packet: Packet) -> bool:
    return packet.get("type") == "chat.message.ack"


def _acked(lane: Lane, start: int) -> list[Any]:
    return [at(packet, "payload", "message_id") for packet in lane.peer.heard[start:] if _is_ack(packet)]


_SLUICE: Final = "Sluice: refusals"
RULES: Final = (
    Rule("message.accepted", "IM v2 §5, §11.2", "A direct final without deltas is accepted", accepted),
    Rule("ack.matches", "IM v2 §7, §11.4", "The ack matches reply_to, channel and message_id", ack_matches),
    Rule("ack.once", "IM v2 §7", "Every message gets one ack", acked_once),
    Rule("message.duplicate", "IM v2 §7, §9", "A repeat gets duplicate", duplicate),
    Rule("message.same_text", "IM v2 §5, §11.3", "Two ids with one text are two messages", same_text),
    Rule("message.packet_id", "IM v2 §3, §11.3", "packet_id is no idempotency key", packet_id_is_no_key),
    Rule("message.channels", "IM v2 §3", "A message_id belongs to its channel", channels_apart),
    Rule("message.conflict", "IM v2 §9", "Other content under a used id gets message_conflict", conflict),
    Rule("message.order", "Sluice: invariants", "Messages in flight together are acked in order", in_order),
    Rule("message.empty", "IM v2 §5", "A message without text and files is rejected for good", empty),
    Rule("message.blank", _SLUICE, "White space alone counts as empty", blank),
    Rule("message.identity", "IM v2 §3, §11.7", "Session, user, connector and role fields are rejected", identity),
    Rule("message.text_number", "IM v2 §7, §10", "Text that is no string is rejected for good", text_number),
    Rule("message.no_id", _SLUICE, "A message without message_id is an error", no_message_id),
    Rule("message.nul_id", _SLUICE, "A NUL in message_id is invalid_packet", nul_in_id),
    Rule("message.too_long", _SLUICE, "Text over 256 KiB is rejected for good", too_long),
    Rule("message.too_many_files", _SLUICE, "More than 10 files are rejected for good", too_many_files),
    Rule("message.odd_text", _SLUICE, "A NUL and a lone surrogate in text are no reason to refuse", odd_text),
    Rule("message.shown_once", "IM v2 §5, §11.5", "The target shows a streamed message once, whole", whole_content),
)
