"""Every rule can fail: each fault below is one that a Connector could have, with the rules that must find it."""

from collections.abc import Callable
from typing import Any

import pytest

from services.conformance import RULES, Options, check
from tests.support.scripted_connector import API_KEY, Packet, ScriptedConnector, Spoil

Fault = Callable[[ScriptedConnector], None]


def card(*path: str | int, value: Any) -> Fault:
    def apply(connector: ScriptedConnector) -> None:
        place: Any = connector.card
        for key in path[:-1]:
            place = place[key]
        place[path[-1]] = value

    return apply


def switch(name: str, value: Any) -> Fault:
    return lambda connector: setattr(connector, name, value)


def spoil(change: Spoil) -> Fault:
    return switch("spoil", change)


def put(kind: str, path: str, value: Any) -> Fault:
    """Changes a field of every packet of a type."""

    def change(_received: Packet, answer: Packet) -> list[Packet]:
        *parents, last = path.split(".")
        if answer["type"] == kind:
            place = answer
            for key in parents:
                place = place[key]
            place[last] = value
        return [answer]

    return spoil(change)


def recode(code: str) -> Fault:
    """Gives one code for another, in errors and in acks."""

    def change(_received: Packet, answer: Packet) -> list[Packet]:
        for holder in (answer.get("error"), answer["payload"]):
            if holder and holder.get("code") == code:
                holder["code"] = "something_else"
        return [answer]

    return spoil(change)


def mute(*kinds: str) -> Fault:
    return spoil(lambda _received, answer: [] if answer["type"] in kinds else [answer])


def chatter(kind: str) -> Fault:
    """Says something that nobody asked for before every pong."""

    def change(_received: Packet, answer: Packet) -> list[Packet]:
        extra = answer | {"type": kind, "packet_id": answer["packet_id"] + "x", "request_id": "", "reply_to": ""}
        return [extra, answer] if answer["type"] == "pong" else [answer]

    return spoil(change)


def by_message(change: Callable[[Packet], None]) -> Fault:
    def apply(_received: Packet, answer: Packet) -> list[Packet]:
        if answer["type"] == "chat.message.ack":
            change(answer)
        return [answer]

    return spoil(apply)


def always(status: str) -> Fault:
    """Answers every message alike."""
    return by_message(lambda ack: ack.update(payload={"message_id": ack["payload"]["message_id"], "status": status}))


def descriptor(section: str, key: str, value: Any) -> Fault:
    def change(_received: Packet, answer: Packet) -> list[Packet]:
        if found := answer["payload"].get("connection_descriptor"):
            (found[section][0] if section == "tools" else found[section])[key] = value
        return [answer]

    return spoil(change)


def with_files(packet: Packet) -> Packet:
    return packet | {"payload": packet["payload"] | {"files": [{"type": "file", "file_ref": "f"}]}}


def inbound_without_urls(_received: Packet, answer: Packet) -> list[Packet]:
    return [with_files(answer)] if answer["type"] == "chat.message" else [answer]


def one_packet_id(_received: Packet, answer: Packet) -> list[Packet]:
    return [answer | {"packet_id": "pkt_always"}]


def saying_the_key(_received: Packet, answer: Packet) -> list[Packet]:
    return [answer | {"note": API_KEY}]


def fresh_connector_id(_received: Packet, answer: Packet) -> list[Packet]:
    if answer["type"] == "connector.hello.ack":
        answer["payload"]["connector_id"] = answer["packet_id"]
    return [answer]


def swap_acks(connector: ScriptedConnector) -> None:
    """Sends the acks in pairs, the later one first."""
    held: list[Packet] = []

    def change(_received: Packet, answer: Packet) -> list[Packet]:
        if answer["type"] != "chat.message.ack":
            return [answer]
        if not held:
            held.append(answer)
            return []
        return [answer, held.pop()]

    connector.spoil = change


def upload_says(change: dict[str, Any]) -> Fault:
    return switch("upload_answer", change)


CODES = (
    ("invalid_packet", "frame.empty frame.not_json frame.null frame.array frame.empty_object frame.number frame.deep"),
    ("invalid_packet", "frame.no_schema frame.other_schema frame.no_packet_id frame.no_type frame.type_number"),
    ("invalid_packet", "frame.payload_list frame.binary message.empty message.blank message.identity"),
    (
        "invalid_packet",
        "message.text_number message.no_id message.nul_id delta.invalid activity.invalid activity.leaks",
    ),
    ("hello_required", "hello.first hello.before_message"),
    ("connector_card_id_mismatch", "hello.wrong_card"),
    ("protocol_version_unsupported", "hello.version_code"),
    ("profile_not_supported", "hello.no_profile"),
    ("channel_not_open", "channel.closed channel.not_open reconnect.reopen"),
    ("connector_channel_id_required", "channel.required"),
    ("unknown_flow", "auth.unknown_flow"),
    ("auth_session_not_found", "auth.unknown_session"),
    ("connection_not_authenticated", "auth.required"),
    ("unsupported_packet", "frame.unknown_type"),
    ("message_conflict", "message.conflict file.conflict"),
    ("file_not_found", "file.unknown_ref"),
    ("sequence_gap", "delta.gap delta.gap_at_start delta.gap_keeps_place"),
    ("sequence_conflict", "delta.conflict"),
    ("too_many_streams", "delta.streams_bounded"),
    ("stream_too_large", "delta.stream_bounded"),
)
TOOL, FIELD = ("tools", 0), ("auth_flows", 0, "fields", 0)
FAULTS: list[tuple[Fault, str]] = [
    *((recode(code), rules) for code, rules in CODES),
    (card("schema", value="other/v1"), "card.schema"),
    (card("build", value={}), "card.build"),
    (card("connector", "vendor", value=None), "card.connector"),
    (card("supports", "target_types", value=["browser"]), "card.supports"),
    (card("supports", "profiles", value=["xagent.im.v1"]), "card.profile card.tools descriptor.profiles"),
    (card(*TOOL, "tool_id", value="not an id"), "card.tools descriptor.tools"),
    (card(*TOOL, "input_schema", "required", value=[]), "card.tool_schemas"),
    (card("auth_flows", 0, "type", value="magic"), "card.auth_flows"),
    (card(*FIELD, "input_type", value="number"), "card.form_fields"),
    (card(*FIELD, "default_value", value="x"), "card.secret_defaults"),
    (card("security", value={}), "card.security"),
    (card("ui", value={"base_url": "http://here"}), "card.no_secrets"),
    (switch("skill", "---\nname: other\n---\n"), "skill.name"),
    (switch("health", {"status": "tired"}), "health.answer"),
    (switch("statuses", {"health": 500}), "health.wrong_key"),
    (switch("statuses", {"ws": 403}), "socket.no_key socket.wrong_key"),
    (switch("statuses", {"upload_key": 403}), "upload.no_key upload.wrong_key"),
    (switch("statuses", {"upload_channel": 400}), "upload.unknown_channel"),
    (switch("statuses", {"upload_file": 200}), "upload.no_file"),
    (switch("statuses", {"refs": 500}), "refs.unknown"),
    (switch("subprotocols", ()), "socket.subprotocol"),
    (switch("max_frame", 4 * 1024 * 1024), "frame.too_big"),
    (switch("max_frame", 64 * 1024), "frame.big_enough message.too_long"),
    (put("connector.hello.ack", "payload.connector_id", ""), "hello.ack hello.unknown_id"),
    (put("channel.open.ack", "connector_channel_id", "cch_other"), "channel.open_new"),
    (put("channel.close.ack", "payload.status", "no"), "channel.close"),
    (put("auth.start.ack", "payload.message", ""), "auth.wrong_form"),
    (put("auth.cancel.ack", "payload.status", "canceled"), "auth.cancel_unknown"),
    (put("tool.invoke.ack", "error", None), "tool.unknown"),
    (put("chat.message.ack", "reply_to", "pkt_other"), "ack.matches"),
    (put("chat.message.ack", "connector_channel_id", "cch_other"), "ack.matches"),
    (put("chat.message.ack", "payload.retryable", True), "message.empty message.conflict auth.required file.bad_items"),
    (put("chat.message", "payload.message_id", ""), "inbound.shape"),
    (put("pong", "request_id", "req_other"), "frame.ping"),
    (put("pong", "payload.role", "assistant"), "frame.ping whole.identity"),
    (descriptor("connection", "status", "fine"), "descriptor.shape"),
    (descriptor("connection", "profiles", ["xagent.im.v2", "x.y.v1"]), "descriptor.profiles descriptor.negotiated"),
    (descriptor("connection", "connector_channel_id", "cch_other"), "descriptor.get"),
    (descriptor("tools", "status", "fine"), "descriptor.tools"),
    (
        always("accepted"),
        "message.duplicate message.too_long message.too_many_files file.foreign_ref reconnect.duplicate",
    ),
    (always("duplicate"), "message.accepted message.same_text message.packet_id message.channels message.odd_text"),
    (
        always("rejected"),
        "delta.final delta.final_decides file.referenced file.alone activity.messages channel.keeps_auth",
    ),
    (chatter("error"), "frame.internal activity.silent delta.final"),
    (chatter("chat.message"), "reconnect.no_replay"),
    (chatter("chat.message.ack"), "ack.once"),
    (chatter("session.sync_message"), "frame.internal whole.direction"),
    (spoil(one_packet_id), "frame.ping whole.envelope"),
    (spoil(saying_the_key), "frame.ping whole.secret"),
    (spoil(inbound_without_urls), "inbound.shape whole.files"),
    (mute("pong"), "frame.ping frame.unknown_fields"),
    (
        mute("error"),
        "frame.others_live hello.version_missing hello.version_lower delta.late delta.repeated delta.halves",
    ),
    (mute("channel.open.ack"), "channel.open_known channel.open_unknown"),
    (mute("chat.message"), "inbound.redelivered inbound.done"),
    (spoil(fresh_connector_id), "hello.known_id"),
    (switch("lives_through_bad_text", True), "frame.not_utf8"),
    (always("rejected"), "activity.harmless"),
    (swap_acks, "message.order"),
    (upload_says({"byte_size": 1}), "upload.answer"),
    (upload_says({"file_ref": "file_always"}), "upload.refs"),
    (upload_says({}), "upload.too_large"),
    (by_message(lambda ack: ack.update(connector_channel_id="")), "ack.matches"),
    (switch("shows_deltas", True), "message.shown_once"),
]


@pytest.mark.parametrize(
    ("fault", "rules"), FAULTS, ids=[f"{number}-{rules[:40]}" for number, (_, rules) in enumerate(FAULTS)]
)
async def test_a_fault_fails_its_rules(fault: Fault, rules: str) -> None:
    wanted, connector = set(rules.split()), ScriptedConnector()
    fault(connector)
    async with connector.serve() as url:
        options = Options(
            auth_input={"token": "a-token-of-the-target"},
            timeout=0.5,
            upload_limit=1000,
            shown=connector.shown,
            speak=connector.speak,
        )
        report = await check(url, API_KEY, options, [rule for rule in RULES if rule.rule_id in wanted])
    unfound = {one.rule_id: one.status for one in report.results if one.status != "fail"}
    # The rules over the whole of a run need something to have been said: those that only provoke it may pass.
    assert not set(unfound) - ({"frame.ping", "inbound.shape"} if "whole." in rules else set()), unfound
