"""Channels, descriptors, sign-in and tools (connector-protocol.md, Data plane and Connection Descriptor)."""

from typing import Any, Final

from services.conformance.probe import Probe
from services.conformance.rule import Rule
from services.conformance.signin import form_flow, missing_fields
from services.conformance.verdict import at, brief, expect, expect_code, expect_rejected, skip
from shared.wire.packets import PROFILE

_STATUSES: Final = frozenset(
    {"created", "authenticating", "connected", "degraded", "offline", "expired", "revoked", "error"}
)
_TOOL_STATUSES: Final = frozenset({"available", "unavailable", "denied_by_target", "requires_reauth", "not_supported"})
_PERMISSIONS: Final = frozenset({"unknown", "granted", "denied", "requires_reauth"})


async def open_new(probe: Probe) -> None:
    """A new channel."""
    async with probe.peer() as peer:
        answer = await peer.ask("channel.open")
        expect(at(answer, "type") == "channel.open.ack", f"channel.open was answered by: {brief(answer)}")
        channel = at(answer, "payload", "connector_channel_id")
        expect(isinstance(channel, str) and channel, f"connector_channel_id is {channel!r}")
        expect(answer.get("connector_channel_id") == channel, "the envelope does not carry the channel's id")
        expect((await peer.agent.open()).channel_id != channel, "two new channels have one id")


async def open_known(probe: Probe) -> None:
    """A stored one, on a new socket."""
    async with probe.lane() as lane, probe.peer() as later:
        restored = await later.agent.open(lane.channel)
        expect(restored.channel_id == lane.channel, f"opening {lane.channel} gave {restored.channel_id}")


async def open_unknown(probe: Probe) -> None:
    """An id that was never issued."""
    async with probe.peer() as peer:
        answer = await peer.ask("channel.open", "cch_conformance_never_issued")
        expect(at(answer, "payload", "connector_channel_id"), f"channel.open was answered by: {brief(answer)}")


async def close(probe: Probe) -> None:
    """The route goes."""
    async with probe.lane() as lane:
        answer = await lane.ask("channel.close")
        expect(at(answer, "type") == "channel.close.ack", f"channel.close was answered by: {brief(answer)}")
        expect(at(answer, "payload", "status") == "ok", f"status is {at(answer, 'payload', 'status')!r}")


async def closed_is_shut(probe: Probe) -> None:
    """And nothing travels on it."""
    async with probe.lane() as lane:
        await lane.ask("channel.close")
        expect_code(await lane.final("msg_after_close", "late"), "channel_not_open")


async def never_opened(probe: Probe) -> None:
    """Nor on one that this socket did not open."""
    async with probe.peer() as peer:
        answer = await peer.ask("connection.descriptor.get", "cch_conformance_never_opened")
        expect_code(answer, "channel_not_open")


async def channel_required(probe: Probe) -> None:
    """A user-level packet names its channel."""
    async with probe.peer() as peer:
        for kind, payload in (
            ("connection.descriptor.get", {}),
            ("tool.invoke", {"tool_id": "any", "arguments": {}}),
            ("chat.message", {"message_id": "msg_nowhere", "text": "nowhere"}),
        ):
            expect_code(await peer.ask(kind, "", payload), "connector_channel_id_required")


async def descriptor_shape(probe: Probe) -> None:
    """Ids, status and target."""
    async with probe.lane() as lane:
        descriptor, connection = lane.descriptor, at(lane.descriptor, "connection")
        expect(descriptor.get("schema") == "xagent.connection/v2", f"schema is {descriptor.get('schema')!r}")
        for key, wanted in (
            ("connector_card_id", probe.card_id),
            ("connector_id", lane.agent.connector_id),
            ("connector_channel_id", lane.channel),
            ("target_type", "im"),
        ):
            expect(at(connection, key) == wanted, f"connection.{key} is {at(connection, key)!r}, expected {wanted!r}")
        expect(at(connection, "status") in _STATUSES, f"connection.status is {at(connection, 'status')!r}")
        expect(isinstance(at(descriptor, "target", "provider"), str), "target.provider is missing")


async def descriptor_profiles(probe: Probe) -> None:
    """The profiles of the channel."""
    async with probe.lane() as lane:
        profiles = at(lane.descriptor, "connection", "profiles")
        expect(isinstance(profiles, list) and PROFILE in profiles, f"connection.profiles is {profiles!r}")
        expect(len(set(profiles)) == len(profiles), f"connection.profiles repeats itself: {profiles}")
        supported = at(probe.card, "supports", "profiles") or []
        expect(set(profiles) <= set(supported), f"connection.profiles {profiles} exceeds the Card's {supported}")


async def descriptor_negotiated(probe: Probe) -> None:
    """Only what both sides support."""
    async with probe.peer((PROFILE, "xagent.conformance.v9")) as peer:
        profiles = at((await peer.agent.open()).descriptor, "connection", "profiles")
        expect(profiles == [PROFILE], f"connection.profiles is {profiles!r}")


async def descriptor_tools(probe: Probe) -> None:
    """The tools of the channel."""
    declared = {at(tool, "tool_id") for tool in probe.card.get("tools") or []}
    async with probe.lane() as lane:
        tools = lane.descriptor.get("tools")
        expect(isinstance(tools, list), f"tools is {tools!r}")
        for tool in tools or []:
            tool_id = at(tool, "tool_id")
            expect(tool_id in declared, f"{tool_id!r} is not in the Card")
            expect(at(tool, "status") in _TOOL_STATUSES, f"{tool_id}: status {at(tool, 'status')!r}")
            permission = at(tool, "target_permission_state")
            expect(permission in _PERMISSIONS, f"{tool_id}: target_permission_state {permission!r}")


async def descriptor_get(probe: Probe) -> None:
    """It can be asked for."""
    async with probe.lane() as lane:
        answer = await lane.ask("connection.descriptor.get")
        kind = at(answer, "type")
        expect(kind == "connection.descriptor.get.ack", f"it was answered by: {brief(answer)}")
        channel = at(answer, "payload", "connection_descriptor", "connection", "connector_channel_id")
        expect(channel == lane.channel, f"the descriptor is of channel {channel!r}")


async def auth_unknown_flow(probe: Probe) -> None:
    """A flow that the Card does not have."""
    async with probe.lane() as lane:
        expect_code(await lane.ask("auth.start", {"flow_id": "conformance_none", "input": {}}), "unknown_flow")


async def auth_wrong_form(probe: Probe) -> None:
    """A form left empty."""
    flow = form_flow(probe.card)
    if flow is None or not (missing := missing_fields(flow, {})):
        skip("no form flow requires a field")
    async with probe.lane() as lane:
        answer = await lane.ask("auth.start", {"flow_id": flow["id"], "input": {}})
        status, message = at(answer, "payload", "status"), at(answer, "payload", "message")
        expect(status == "failed", f"an empty form was answered by: {brief(answer)}")
        expect(any(name in str(message) for name in missing), f"the message names no missing field: {message!r}")


async def auth_unknown_session(probe: Probe) -> None:
    """A session that never was."""
    flow_id = at(form_flow(probe.card), "id") or ""
    async with probe.lane() as lane:
        answer = await lane.ask("auth.status", {"flow_id": flow_id, "auth_session_id": "aus_none", "refresh": False})
        expect_code(answer, "auth_session_not_found")


async def auth_cancel_unknown(probe: Probe) -> None:
    """Giving up what never was."""
    async with probe.lane() as lane:
        answer = await lane.ask("auth.cancel", {"auth_session_id": "aus_none"})
        expect(at(answer, "type") == "auth.cancel.ack", f"auth.cancel was answered by: {brief(answer)}")
        status = at(answer, "payload", "status")
        expect(status == "not_found", f"status is {status!r}")


async def auth_required(probe: Probe) -> None:
    """A message to a channel that nobody signed in."""
    async with probe.lane() as lane:
        if at(lane.descriptor, "connection", "status") in {"connected", "degraded"}:
            skip("a fresh channel is connected at once")
        answer = await lane.final("msg_unsigned", "to nobody")
        expect_rejected(answer, "connection_not_authenticated", retryable=False)


async def tool_unknown(probe: Probe) -> None:
    """A tool that the Card does not have."""
    async with probe.lane() as lane:
        call: dict[str, Any] = {"tool_id": "conformance_none", "arguments": {"connector_channel_id": lane.channel}}
        expect_code(await lane.ask("tool.invoke", call))


_CHANNEL: Final = "Common: channels"
_DESCRIPTOR: Final = "Common: Connection Descriptor"
_AUTH: Final = "Common: auth"
RULES: Final = (
    Rule("channel.open_new", _CHANNEL, "A new channel gets an id of its own, in payload and envelope", open_new),
    Rule("channel.open_known", _CHANNEL, "A known channel is restored on another socket", open_known),
    Rule("channel.open_unknown", _CHANNEL, "An unknown channel id is no reason to refuse", open_unknown),
    Rule("channel.close", _CHANNEL, "channel.close is acked with ok", close),
    Rule("channel.closed", "IM v2 §10", "A message on a closed channel gets channel_not_open", closed_is_shut),
    Rule("channel.not_open", _CHANNEL, "A packet on a channel never opened gets channel_not_open", never_opened),
    Rule("channel.required", _CHANNEL, "A packet without its channel gets its code", channel_required),
    Rule("descriptor.shape", _DESCRIPTOR, "Schema, ids, status and target are right", descriptor_shape),
    Rule("descriptor.profiles", "IM v2 §2, §11.1", "It declares xagent.im.v2 and no more than the Card",
         descriptor_profiles),
    Rule("descriptor.negotiated", _DESCRIPTOR, "Its profiles are those of both sides", descriptor_negotiated),
    Rule("descriptor.tools", _DESCRIPTOR, "Its tools are in the Card and have known states", descriptor_tools),
    Rule("descriptor.get", _DESCRIPTOR, "connection.descriptor.get returns it", descriptor_get),
    Rule("auth.unknown_flow", _AUTH, "An unknown flow gets unknown_flow", auth_unknown_flow),
    Rule("auth.wrong_form", "Sluice: refusals", "An empty form fails, naming the field", auth_wrong_form),
    Rule("auth.unknown_session", _AUTH, "An unknown session gets auth_session_not_found", auth_unknown_session),
    Rule("auth.cancel_unknown", _AUTH, "Canceling an unknown session says not_found", auth_cancel_unknown),
    Rule("auth.required", "IM v2 §7", "A message to an unauthenticated channel is refused for good", auth_required),
    Rule("tool.unknown", "Common: tools", "An unknown tool is an error with a code", tool_unknown),
)  # fmt: skip
