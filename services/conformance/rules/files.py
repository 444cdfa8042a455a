"""Files: uploads, references and the messages that carry them (IM v2 §5; connector-protocol.md, Control plane)."""

from typing import Any, Final

import aiohttp

from services.conformance.probe import Lane, Probe
from services.conformance.rule import Rule
from services.conformance.verdict import at, brief, expect, expect_ack, expect_code, expect_rejected, skip
from shared.agent import http
from shared.agent.client import new_message_id
from shared.agent.errors import HttpRefused

_TYPES: Final = frozenset({"image", "video", "audio", "file"})
_TEXT: Final = b"A small file of the conformance run."


async def no_key(probe: Probe) -> None:
    """Without the key."""
    async with probe.lane() as lane:
        await _expect_status(probe, "", lane.channel, 401)


async def wrong_key(probe: Probe) -> None:
    """With a wrong one."""
    async with probe.lane() as lane:
        await _expect_status(probe, probe.api_key + "-wrong", lane.channel, 401)


async def unknown_channel(probe: Probe) -> None:
    """To nowhere."""
    await _expect_status(probe, probe.api_key, "cch_conformance_never_issued", 404)


async def no_file(probe: Probe) -> None:
    """A form without a file."""
    async with probe.lane() as lane:
        form = aiohttp.FormData({"recipient_ref": "somebody"}, default_to_multipart=True)
        headers = http.bearer(probe.api_key) | {http.CHANNEL_HEADER: lane.channel}
        async with probe.http.post(probe.base_url + "/files/uploads", data=form, headers=headers) as response:
            expect(response.status == 400, f"it answered {response.status}")  # noqa: PLR2004 - HTTP


async def too_large(probe: Probe) -> None:
    """More than may be uploaded."""
    limit = probe.options.upload_limit
    if not limit:
        skip("the upload limit was not given")
    async with probe.lane() as lane:
        await _expect_status(probe, probe.api_key, lane.channel, 413, b"x" * (limit + 1))


async def upload_answer(probe: Probe) -> None:
    """What an upload says."""
    async with probe.connected() as lane:
        answer = await _upload(probe, lane)
        expect(isinstance(answer.get("file_ref"), str) and answer["file_ref"], f"file_ref: {answer.get('file_ref')!r}")
        expect(answer.get("file_type") in _TYPES, f"file_type is {answer.get('file_type')!r}")
        expect(answer.get("byte_size") == len(_TEXT), f"byte_size is {answer.get('byte_size')!r}")
        expect(isinstance(answer.get("filename"), str), "filename is missing")
        expect(isinstance(answer.get("expires_at"), int), f"expires_at is {answer.get('expires_at')!r}")


async def refs_unlike(probe: Probe) -> None:
    """Two uploads, two references."""
    async with probe.connected() as lane:
        refs = {(await _upload(probe, lane))["file_ref"] for _ in range(2)}
        expect(len(refs) == 2, "one file_ref for two uploads")  # noqa: PLR2004 - see above


async def referenced(probe: Probe) -> None:
    """Text and file are one message with one ack."""
    async with probe.connected() as lane:
        file = _file(await _upload(probe, lane))
        start, message_id = len(lane.peer.heard), new_message_id()
        answer = await lane.final(message_id, "With a file.", files=[file])
        _expect_taken_or_typed(answer)
        acks = [packet for packet in await lane.peer.fence_since(start) if packet.get("type") == "chat.message.ack"]
        expect(len(acks) == 1, f"one message with a file got {len(acks)} acks")
        if at(answer, "payload", "status") == "accepted":
            expect_ack(await lane.final(message_id, "With a file.", files=[file]), "duplicate")


async def file_alone(probe: Probe) -> None:
    """A file needs no text."""
    async with probe.connected() as lane:
        file = _file(await _upload(probe, lane))
        _expect_taken_or_typed(await lane.ask("chat.message", {"message_id": new_message_id(), "files": [file]}))


async def other_file_conflicts(probe: Probe) -> None:
    """The file list is part of the content."""
    async with probe.connected() as lane:
        message_id = new_message_id()
        expect_ack(await lane.final(message_id, "Alone."), "accepted")
        answer = await lane.final(message_id, "Alone.", files=[_file(await _upload(probe, lane))])
        expect_rejected(answer, "message_conflict", retryable=False)


async def unknown_ref(probe: Probe) -> None:
    """A file that was never uploaded."""
    async with probe.connected() as lane:
        file = {"type": "file", "file_ref": "file_conformance_never_uploaded"}
        answer = await lane.final(new_message_id(), "Where is it?", files=[file])
        expect_rejected(answer, "file_not_found", retryable=False)


async def foreign_ref(probe: Probe) -> None:
    """A file of another channel."""
    async with probe.connected() as owner, probe.connected() as other:
        file = _file(await _upload(probe, owner))
        answer = await other.final(new_message_id(), "Not mine.", files=[file])
        expect_rejected(answer, retryable=False)


async def bad_items(probe: Probe) -> None:
    """Items that are no file of a message."""
    good = {"type": "file", "file_ref": "file_1"}
    wrong: tuple[dict[str, Any], ...] = (
        good | {"type": "hologram"},
        {"type": "file"},
        good | {"data": "AAAA"},
        good | {"base64": "AAAA"},
        good | {"path": "/etc/hostname"},
    )
    async with probe.lane() as lane:
        for file in wrong:
            answer = await lane.final(new_message_id(), "bad file", files=[file])
            expect(at(answer, "type") == "chat.message.ack", f"{sorted(file)} was answered by: {brief(answer)}")
            expect_rejected(answer, retryable=False)


async def unknown_download(probe: Probe) -> None:
    """A reference that was never given."""
    async with probe.http.get(probe.base_url + "/files/refs/file_conformance_never_given") as response:
        expect(response.status == 404, f"it answered {response.status}")  # noqa: PLR2004 - HTTP


def _expect_taken_or_typed(answer: object) -> None:
    expect_ack(answer, "accepted", "rejected")
    if at(answer, "payload", "status") == "rejected":
        expect_code(answer)
        expect_rejected(answer)


async def _expect_status(probe: Probe, key: str, channel: str, status: int, data: bytes = _TEXT) -> None:
    try:
        await _post(probe, key, channel, data)
    except HttpRefused as refused:
        expect(refused.status == status, f"it answered {refused.status}, expected {status}")
    else:
        expect(False, f"the upload was taken, expected {status}")


async def _upload(probe: Probe, lane: Lane) -> dict[str, Any]:
    return await _post(probe, probe.api_key, lane.channel, _TEXT)


async def _post(probe: Probe, key: str, channel: str, data: bytes) -> dict[str, Any]:
    answer = await http.upload(
        probe.http, probe.base_url, key, channel, data=data, filename="note.txt", mime="text/plain"
    )
    probe.record.hear_text(str(answer), "the answer to an upload")
    return answer


def _file(answer: dict[str, Any]) -> dict[str, Any]:
    return {"type": answer.get("file_type", "file"), "file_ref": answer.get("file_ref", ""), "filename": "note.txt"}


_UPLOADS: Final = "Common: POST /files/uploads"
_SLUICE: Final = "Sluice: files"
_ITEMS: Final = "IM v2 §5"
RULES: Final = (
    Rule("upload.no_key", _UPLOADS, "An upload without a key answers 401", no_key),
    Rule("upload.wrong_key", _UPLOADS, "An upload with a wrong key answers 401", wrong_key),
    Rule("upload.unknown_channel", _SLUICE, "An upload to an unknown channel answers 404", unknown_channel),
    Rule("upload.no_file", _SLUICE, "An upload without a file answers 400", no_file),
    Rule("upload.too_large", _SLUICE, "An upload over the limit answers 413", too_large),
    Rule("upload.answer", _UPLOADS, "An upload answers with ref, type, name, size and expiry", upload_answer),
    Rule("upload.refs", _UPLOADS, "Two uploads get two references", refs_unlike),
    Rule("file.referenced", "IM v2 §5, §11.8, §11.9", "Text and files are one message with one ack", referenced),
    Rule("file.alone", _ITEMS, "A file message can omit its text", file_alone),
    Rule("file.conflict", "IM v2 §9", "Another file list under a used id gets message_conflict", other_file_conflicts),
    Rule("file.unknown_ref", "IM v2 §5, §11.8", "A file that was not uploaded first is file_not_found", unknown_ref),
    Rule("file.foreign_ref", _UPLOADS, "A file uploaded to another channel is refused", foreign_ref),
    Rule("file.bad_items", _ITEMS, "A bad type, a missing ref, bytes and paths are rejected for good", bad_items),
    Rule("refs.unknown", "Common: GET /files/refs", "An unknown reference answers 404", unknown_download),
)
