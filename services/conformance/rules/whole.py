"""What must hold of everything that was heard; these rules come last."""

from functools import partial
from typing import Final

from services.conformance.probe import Probe
from services.conformance.rule import Rule
from services.conformance.verdict import expect, skip


async def _no_fault(subject: str, probe: Probe) -> None:
    if not probe.record.packets:
        skip("nothing was heard")
    faults = probe.record.about(subject)
    expect(not faults, "; ".join(faults))


async def inbound_files(probe: Probe) -> None:
    """Inbound files can be downloaded."""
    await _no_fault("files", probe)
    if not probe.record.inbound_files:
        skip("no person sent a file in this run")


_ENVELOPE: Final = "Every packet has its schema and a packet_id of its own"
_DIRECTION: Final = "Nothing but what a Connector may send was sent: no deltas, no activity, no session.*"
_IDENTITY: Final = "No session, user or role field in any payload"
_SECRET: Final = "No packet, card or skill gives a key or a credential away"  # noqa: S105 - a title
RULES: Final = (
    Rule("whole.envelope", "Common: envelope", _ENVELOPE, partial(_no_fault, "envelope")),
    Rule("whole.direction", "IM v2 §1, §4, §6, §11.10", _DIRECTION, partial(_no_fault, "direction")),
    Rule("whole.identity", "IM v2 §3, §11.7", _IDENTITY, partial(_no_fault, "identity")),
    Rule("whole.secret", "Common: secrets", _SECRET, partial(_no_fault, "secret")),
    Rule("whole.files", "IM v2 §5, §11.8", "Every inbound file has a download_url and no bytes", inbound_files),
)
