"""What outlives a socket, in both directions (IM v2 §1, §9; connector-protocol.md, Lifecycles)."""

from typing import Final

from services.conformance.probe import Lane, Peer, Probe
from services.conformance.rule import Rule
from services.conformance.verdict import at, expect, expect_ack, expect_code, skip
from shared.agent.client import new_message_id
from shared.agent.model import Packet

_HEARD_IN_SILENCE: Final = frozenset({"connection.descriptor.push", "channel.open.ack"})


async def no_replay(probe: Probe) -> None:
    """After a reconnect nothing completed comes again."""
    async with probe.connected() as lane:
        expect_ack(await lane.final(new_message_id(), "Done before the reconnect."), "accepted")
        await lane.agent.close()
        async with probe.peer() as later:
            start = len(later.heard)
            await later.agent.open(lane.channel)
            said = [packet for packet in await later.fence_since(start) if packet["type"] not in _HEARD_IN_SILENCE]
            expect(not said, f"the Connector sent {[packet.get('type') for packet in said]}")


async def repeat_after_reconnect(probe: Probe) -> None:
    """And what was done is known to be."""
    async with probe.connected() as lane:
        message_id = new_message_id()
        expect_ack(await lane.final(message_id, "Once, over two sockets."), "accepted")
        await lane.agent.close()
        async with probe.peer() as later:
            again = await _reopen(later, lane.channel)
            expect_ack(await again.final(message_id, "Once, over two sockets."), "duplicate")


async def must_reopen(probe: Probe) -> None:
    """A new socket opens its channels itself."""
    async with probe.lane() as lane, probe.peer() as later:
        expect_code(await later.ask("connection.descriptor.get", lane.channel), "channel_not_open")


async def stays_signed_in(probe: Probe) -> None:
    """Closing a channel keeps its authentication."""
    async with probe.connected() as lane:
        await lane.ask("channel.close")
        status = at((await lane.agent.open(lane.channel)).descriptor, "connection", "status")
        expect(status in {"connected", "degraded"}, f"after close and open its status is {status!r}")
        expect_ack(await lane.final(new_message_id(), "Still here."), "accepted")


async def inbound_shape(probe: Probe) -> None:
    """A person's message."""
    async with probe.connected() as lane:
        packet = await _spoken(probe, lane, "Hello, agent.")
        expect(packet.get("connector_channel_id") == lane.channel, "it names another channel")
        expect(at(packet, "payload", "message_id"), "it has no message_id")
        await lane.agent.ack(packet)


async def inbound_redelivered(probe: Probe) -> None:
    """One that was not acked comes again, as the same."""
    async with probe.connected() as lane:
        first = await _spoken(probe, lane, "Did you get this?")
        await lane.agent.close()
        async with probe.peer() as later:
            await later.agent.open(lane.channel)
            again = await later.until("the redelivery of an unacked message", _is_message)
            for key in ("message_id", "text"):
                expect(at(again, "payload", key) == at(first, "payload", key), f"it came with another {key}")
            expect(again.get("packet_id") != first.get("packet_id"), "it came with the same packet_id")
            await later.agent.ack(again)
            await later.fence()


async def inbound_done(probe: Probe) -> None:
    """One that was acked does not."""
    async with probe.connected() as lane:
        await lane.agent.ack(await _spoken(probe, lane, "Got it."))
        await lane.peer.fence()
        await lane.agent.close()
        async with probe.peer() as later:
            await later.agent.open(lane.channel)
            await _speak(probe, lane.channel, "And this?")
            second = await later.until("a person's message", _is_message)
            text = at(second, "payload", "text")
            expect(text == "And this?", f"an acked message came again: {text!r}")
            await later.agent.ack(second)
            await later.fence()


async def _reopen(peer: Peer, channel: str) -> Lane:
    opened = await peer.agent.open(channel)
    return Lane(peer, opened.channel_id, opened.descriptor)


async def _spoken(probe: Probe, lane: Lane, text: str) -> Packet:
    start = len(lane.peer.heard)
    await _speak(probe, lane.channel, text)
    return await lane.peer.until("a person's message", _is_message, start)


async def _speak(probe: Probe, channel: str, text: str) -> None:
    if probe.options.speak is None:
        skip("nobody can speak to the channel from here")
    await probe.options.speak(channel, text)


def _is_message(packet: Packet) -> bool:
    return packet.get("type") == "chat.message"


_RECONNECT: Final = "IM v2 §1, §11.11"
_INBOUND: Final = "IM v2 §9; Common: lifecycles"
RULES: Final = (
    Rule("reconnect.no_replay", _RECONNECT, "A reconnect replays no completed message", no_replay),
    Rule("reconnect.duplicate", "IM v2 §9", "A repeat on a new socket gets duplicate", repeat_after_reconnect),
    Rule("reconnect.reopen", "Common: channels", "A new socket has no channel open", must_reopen),
    Rule("channel.keeps_auth", "Common: channels", "A closed channel stays authenticated", stays_signed_in),
    Rule("inbound.shape", "IM v2 §5", "A person's message has its channel and message_id", inbound_shape),
    Rule("inbound.redelivered", _INBOUND, "An unacked message comes again with its message_id", inbound_redelivered),
    Rule("inbound.done", _INBOUND, "An acked message does not come again", inbound_done),
)
