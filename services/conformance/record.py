"""Everything that the Connector says in a run passes here, whatever rule it was said to."""

from collections.abc import Iterator
from typing import Any, Final

import msgspec

from services.conformance.verdict import at
from shared.wire.packets import SCHEMA

_KEPT: Final = 5
_INTERNAL: Final = frozenset({"session_id", "user_id", "user_connector_id", "role"})
_BYTES: Final = frozenset({"data", "base64", "path", "local_path", "bytes"})
_SHORTEST_SECRET: Final = 6
_MAY_SAY: Final = frozenset(
    {
        "connector.hello.ack", "channel.open.ack", "channel.close.ack", "auth.start.ack", "auth.status.ack",
        "auth.cancel.ack", "auth.logout.ack", "connection.descriptor.get.ack", "tool.invoke.ack", "ping", "pong",
        "connection.descriptor.push", "tool.progress.push", "chat.message", "chat.message.ack", "error",
    }
)  # fmt: skip


class Record:
    """Notes what is wrong with what was heard, by subject.

    Args:
        secrets: what must never be said.
    """

    def __init__(self, secrets: tuple[str, ...]) -> None:
        self.packets = 0
        self.inbound_files = 0
        self._secrets = tuple(secret for secret in secrets if len(secret) >= _SHORTEST_SECRET)
        self._ids: set[str] = set()
        self._notes: dict[str, list[str]] = {}

    def about(self, subject: str) -> list[str]:
        """The first few faults found: envelope, direction, identity, secret or files."""
        return self._notes.get(subject, [])

    def hear(self, packet: dict[str, Any]) -> None:
        """Looks a packet over."""
        self.packets += 1
        kind = packet.get("type")
        self._look_at_envelope(packet, kind)
        if kind not in _MAY_SAY:
            self._note("direction", f"the Connector sent {kind}")
        forbidden = _INTERNAL | ({"connector_id"} if str(kind).startswith("chat.") else set())
        for key in forbidden & set(_keys(packet.get("payload"))):
            self._note("identity", f"{kind} carries {key}")
        self.hear_text(msgspec.json.encode(packet).decode(), str(kind))
        if kind == "chat.message":
            self._look_at_files(at(packet, "payload", "files"))

    def hear_text(self, text: str, where: str) -> None:
        """Looks for secrets in anything that the Connector wrote."""
        if any(secret in text for secret in self._secrets):
            self._note("secret", f"{where} gives a secret away")

    def _look_at_envelope(self, packet: dict[str, Any], kind: object) -> None:
        packet_id = packet.get("packet_id")
        if packet.get("schema") != SCHEMA:
            self._note("envelope", f"{kind} has schema {packet.get('schema')!r}")
        if not isinstance(packet_id, str) or not packet_id:
            self._note("envelope", f"{kind} has no packet_id")
        elif packet_id in self._ids:
            self._note("envelope", f"{kind} repeats packet_id {packet_id}")
        else:
            self._ids.add(packet_id)

    def _look_at_files(self, files: object) -> None:
        for file in files if isinstance(files, list) else []:
            self.inbound_files += 1
            if not at(file, "download_url") or not at(file, "file_ref"):
                self._note("files", "an inbound file lacks file_ref or download_url")
            if set(_keys(file)) & _BYTES:
                self._note("files", "an inbound file carries bytes or a path")

    def _note(self, subject: str, fault: str) -> None:
        notes = self._notes.setdefault(subject, [])
        if len(notes) < _KEPT and fault not in notes:
            notes.append(fault)


def _keys(value: object) -> Iterator[str]:
    if isinstance(value, dict):
        for key, item in value.items():
            yield key
            yield from _keys(item)
    elif isinstance(value, list):
        for item in value:
            yield from _keys(item)
