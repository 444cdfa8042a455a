"""Health, handshake and hello (connector-protocol.md, Control plane and Data plane)."""

from typing import Any, Final

from services.conformance.probe import Peer, Probe
from services.conformance.rule import Rule
from services.conformance.verdict import at, brief, expect, expect_code, expect_error
from shared.agent.client import AgentClient
from shared.agent.errors import HttpRefused
from shared.agent.http import bearer
from shared.wire.packets import PROFILE, PROTOCOL_VERSION, SUBPROTOCOL

_OK: Final = 200
_REFUSED: Final = frozenset({401, 403})
_POLICY_VIOLATION: Final = 1008


async def health(probe: Probe) -> None:
    """Up, and says what it is."""
    async with probe.http.get(probe.base_url + "/health", headers=bearer(probe.api_key)) as response:
        expect(response.status == _OK, f"health answered {response.status}")
        answer = await response.json()
    expect(at(answer, "status") == "ok", f"status is {at(answer, 'status')!r}")
    expect(at(answer, "connector_card_id") == probe.card_id, "connector_card_id is not the Card's")
    version, wanted = at(answer, "connector_card_version"), at(probe.card, "connector", "version")
    expect(version == wanted, f"connector_card_version is {version!r}, the Card says {wanted!r}")
    expect(at(answer, "protocol_version") == PROTOCOL_VERSION, "protocol_version is not 3.0")
    expect(at(answer, "build") == probe.card.get("build"), "build is not the Card's")


async def health_key(probe: Probe) -> None:
    """A wrong key is refused by its own statuses."""
    async with probe.http.get(probe.base_url + "/health", headers=bearer(probe.api_key + "-wrong")) as response:
        expect(response.status in _REFUSED, f"health with a wrong key answered {response.status}")


async def subprotocol(probe: Probe) -> None:
    """The subprotocol is echoed."""
    async with probe.stranger() as peer:
        expect(peer.agent.subprotocol == SUBPROTOCOL, f"the server chose {peer.agent.subprotocol!r}")


async def no_key(probe: Probe) -> None:
    """No key, no socket."""
    await _expect_refused(probe, "")


async def wrong_key(probe: Probe) -> None:
    """Nor with a wrong one."""
    await _expect_refused(probe, probe.api_key + "-wrong")


async def _expect_refused(probe: Probe, key: str) -> None:
    try:
        async with AgentClient.dial(probe.base_url, key, timeout=probe.options.timeout):
            expect(False, "the handshake succeeded")
    except HttpRefused as refused:
        expect(refused.status == 401, f"the handshake answered {refused.status}")  # noqa: PLR2004 - HTTP


async def hello_ack(probe: Probe) -> None:
    """Who is there."""
    async with probe.stranger() as peer:
        answer = await peer.ask("connector.hello", "", _hello(probe, connector_id=probe.connector_id))
        expect(at(answer, "type") == "connector.hello.ack", f"hello was answered by: {brief(answer)}")
        payload = at(answer, "payload")
        expect(at(payload, "connector_card_id") == probe.card_id, "connector_card_id is not the Card's")
        expect(at(payload, "protocol_version") == PROTOCOL_VERSION, "protocol_version is not 3.0")
        issued = at(payload, "connector_id")
        expect(isinstance(issued, str) and issued, f"connector_id is {issued!r}")
        probe.connector_id = probe.connector_id or issued


async def known_id(probe: Probe) -> None:
    """A known connector_id is kept."""
    async with probe.peer():
        first = probe.connector_id
    async with probe.peer() as peer:
        expect(peer.agent.connector_id == first, "a known connector_id was replaced")


async def unknown_id(probe: Probe) -> None:
    """An unknown one is no reason to refuse."""
    invented = "cid_conformance_never_issued"
    async with probe.stranger() as peer:
        answer = await peer.ask("connector.hello", "", _hello(probe, connector_id=invented))
        expect(at(answer, "type") == "connector.hello.ack", f"hello was answered by: {brief(answer)}")
        issued = at(answer, "payload", "connector_id")
        expect(issued and issued != invented, f"connector_id {issued!r} was not newly issued")


async def hello_first(probe: Probe) -> None:
    """Nothing before the hello."""
    async with probe.stranger() as peer:
        expect_error(await peer.ask("channel.open"), "hello_required")


async def message_before_hello(probe: Probe) -> None:
    """No user-level packet either."""
    async with probe.stranger() as peer:
        payload = {"message_id": "msg_early", "text": "early"}
        expect_code(await peer.ask("chat.message", "cch_none", payload), "hello_required")


async def wrong_card(probe: Probe) -> None:
    """A hello for another card."""
    async with probe.stranger() as peer:
        hello = _hello(probe) | {"connector_card_id": "im.of-somebody-else"}
        expect_error(await peer.ask("connector.hello", "", hello), "connector_card_id_mismatch")


async def version_missing(probe: Probe) -> None:
    """A hello without a version."""
    await _expect_version_refused(probe, {"protocol_version": None})


async def version_lower(probe: Probe) -> None:
    """A hello of an older version."""
    await _expect_version_refused(probe, {"protocol_version": "2.9"})


async def version_code(probe: Probe) -> None:
    """The refusal has its own code."""
    async with probe.stranger() as peer:
        expect_code(await _refused_hello(probe, peer, {"protocol_version": "2.9"}), "protocol_version_unsupported")


async def _expect_version_refused(probe: Probe, change: dict[str, Any]) -> None:
    async with probe.stranger() as peer:
        expect_code(await _refused_hello(probe, peer, change))
        code = await peer.agent.wait_closed()
        expect(code == _POLICY_VIOLATION, f"the socket closed with {code}")


async def _refused_hello(probe: Probe, peer: Peer, change: dict[str, Any]) -> Any:
    hello = {key: value for key, value in (_hello(probe) | change).items() if value is not None}
    return await peer.ask("connector.hello", "", hello)


async def no_profile(probe: Probe) -> None:
    """No profile in common."""
    async with probe.peer(("xagent.conformance.v9",)) as peer:
        expect_code(await peer.ask("channel.open"), "profile_not_supported")


def _hello(probe: Probe, connector_id: str = "") -> dict[str, Any]:
    return {
        "connector_card_id": probe.card_id,
        "connector_id": connector_id,
        "protocol_version": PROTOCOL_VERSION,
        "supported_profiles": [PROFILE],
    }


_HEALTH: Final = "Common: health"
_SOCKET: Final = "Common: data plane"
_HELLO: Final = "Common: connector.hello"
RULES: Final = (
    Rule("health.answer", _HEALTH, "Health is ok and gives the Card's id, version and build", health),
    Rule("health.wrong_key", _HEALTH, "Health refuses a wrong key with 401 or 403", health_key),
    Rule("socket.subprotocol", _SOCKET, "The subprotocol is echoed", subprotocol),
    Rule("socket.no_key", _SOCKET, "A handshake without a key answers 401", no_key),
    Rule("socket.wrong_key", _SOCKET, "A handshake with a wrong key answers 401", wrong_key),
    Rule("hello.ack", _HELLO, "Hello is acked with card id, connector id and version", hello_ack),
    Rule("hello.known_id", _HELLO, "A known connector_id is restored", known_id),
    Rule("hello.unknown_id", _HELLO, "An unknown connector_id gets a new one", unknown_id),
    Rule("hello.first", _HELLO, "A packet before hello gets hello_required", hello_first),
    Rule("hello.before_message", _HELLO, "A message before hello gets hello_required", message_before_hello),
    Rule("hello.wrong_card", _HELLO, "Another card's hello gets connector_card_id_mismatch", wrong_card),
    Rule("hello.version_missing", _HELLO, "A hello without a version is refused and closed 1008", version_missing),
    Rule("hello.version_lower", _HELLO, "A hello of a lower version is refused and closed 1008", version_lower),
    Rule("hello.version_code", "Sluice: refusals", "The refusal says protocol_version_unsupported", version_code),
    Rule("hello.no_profile", "Sluice: refusals", "Without a common profile channel.open is refused", no_profile),
)
