"""The HTTP face of the edge: Cards, skills, health, the socket and the files (connector-protocol.md, Control plane)."""

import hmac
import re
from collections.abc import AsyncIterator

from aiohttp import BodyPartReader, hdrs, web
from aiohttp.http_exceptions import HttpProcessingError

from services.edge.service import EdgeService
from shared.cards.card import Card, skill_markdown
from shared.clock import Clock
from shared.files.names import clean_filename, content_disposition, sniff
from shared.files.port import FileStore, MissingFileError, TooLargeError
from shared.records.model import FileRow
from shared.records.records import Records
from shared.wire.ids import namer
from shared.wire.packets import PROTOCOL_VERSION, SUBPROTOCOL

CHANNEL_HEADER = "X-XAgent-Connector-Channel-ID"
_BEARER = re.compile(r"Bearer\s+(\S+)", re.IGNORECASE)
_CHUNK = 64 * 1024
_BROKEN = (ValueError, AssertionError, HttpProcessingError, web.RequestPayloadError)
"""How the library says that a multipart body is malformed or cut short."""


class BrokenUploadError(Exception):
    """The body of an upload is no whole file."""


def is_authorized(request: web.Request, keys: tuple[str, ...]) -> bool:
    """Whether the request carries one of the API keys; compared in constant time."""
    match = _BEARER.fullmatch(request.headers.get(hdrs.AUTHORIZATION, "").strip())
    given = match.group(1).encode() if match else b""
    return any(hmac.compare_digest(given, key.encode()) for key in keys)


def refusal(status: int, code: str, message: str) -> web.Response:
    """An HTTP answer that names a stable code."""
    return web.json_response({"error": {"code": code, "message": message}}, status=status)


class EdgeHttp:
    """The handlers under each base URL.

    Args:
        edge: the sockets.
        records: channels and file refs.
        files: where bytes are.
        clock: for lifetimes.
    """

    def __init__(self, edge: EdgeService, records: Records, files: FileStore, clock: Clock) -> None:
        self._edge = edge
        self._records = records
        self._files = files
        self._clock = clock
        self._new_ref = namer("file")
        self._limits = edge.settings.limits
        self._keys = edge.settings.api_keys

    def routes(self) -> list[web.RouteDef]:
        """Every route, for each Card under its own base URL."""
        return [
            web.get("/{card}/connector-card.json", self.card),
            web.get("/{card}/skill.md", self.skill),
            web.get("/{card}/health", self.health),
            web.get("/{card}/ws", self.socket),
            web.post("/{card}/files/uploads", self.upload),
            web.get("/{card}/files/refs/{ref}", self.ref),
        ]

    async def card(self, request: web.Request) -> web.Response:
        """The Connector Card."""
        return web.json_response(self._card(request).to_json())

    async def skill(self, request: web.Request) -> web.Response:
        """The skill that tells an agent how to use the tools."""
        return web.Response(text=skill_markdown(self._card(request)), content_type="text/markdown")

    async def health(self, request: web.Request) -> web.Response:
        """Whether this Connector is up; a key that is sent must be right."""
        card = self._card(request)
        if hdrs.AUTHORIZATION in request.headers and not is_authorized(request, self._keys):
            return refusal(401, "unauthorized", "the API key is not accepted")
        document = card.to_json()
        return web.json_response(
            {
                "status": "ok",
                "connector_card_id": card.card_id,
                "connector_card_version": card.version,
                "protocol_version": PROTOCOL_VERSION,
                "build": document["build"],
            }
        )

    async def socket(self, request: web.Request) -> web.StreamResponse:
        """The data plane."""
        card = self._card(request)
        if not is_authorized(request, self._keys):
            return refusal(401, "unauthorized", "send Authorization: Bearer <API key>")
        socket = web.WebSocketResponse(
            protocols=(SUBPROTOCOL,),
            compress=False,
            autoping=False,
            decode_text=False,
            max_msg_size=self._limits.packet_bytes + 1,
            timeout=2.0,
        )
        if not socket.can_prepare(request):
            return refusal(426, "websocket_required", "this URL speaks WebSocket")
        await socket.prepare(request)
        await self._edge.serve(card.card_id, socket)
        return socket

    async def upload(self, request: web.Request) -> web.Response:
        """Takes a file from xAgent for one channel (IM v2 §5; contract.md, Sessions, files)."""
        card = self._card(request)
        if not is_authorized(request, self._keys):
            return refusal(401, "unauthorized", "send Authorization: Bearer <API key>")
        channel = await self._records.channels.get(request.headers.get(CHANNEL_HEADER, ""))
        if channel is None or channel.card_id != card.card_id:
            return refusal(404, "connection_not_found", f"{CHANNEL_HEADER} names no channel of this Connector")
        if not channel.edge_id:
            return refusal(403, "channel_not_open", "open the channel first")
        if (request.content_length or 0) > self._limits.upload_bytes + _CHUNK:
            return self._too_large()
        part = await self._file_part(request)
        if part is None:
            return refusal(400, "file_required", "send multipart/form-data with a part named file")
        try:
            stored = await self._files.put(_chunks(part), self._limits.upload_bytes)
        except TooLargeError:
            return self._too_large()
        except BrokenUploadError:
            return refusal(400, "file_required", "the part named file is malformed or cut short")
        kind = sniff(stored.head, part.headers.get(hdrs.CONTENT_TYPE, ""), part.filename or "")
        row = FileRow(
            ref=self._new_ref() + self._files.secret(),
            channel=channel.channel_id,
            card=card.card_id,
            direction="out",
            filename=clean_filename(part.filename or "", "file"),
            mime_type=kind.mime_type,
            file_type=kind.file_type,
            byte_size=stored.byte_size,
            storage_key=stored.key,
            expires_at=self._clock.now() + self._limits.ref_seconds,
        )
        await self._records.files.add(row)
        return web.json_response(
            {
                "file_ref": row.ref,
                "file_type": row.file_type,
                "filename": row.filename,
                "byte_size": row.byte_size,
                "expires_at": int(row.expires_at * 1000),
            }
        )

    async def ref(self, request: web.Request) -> web.StreamResponse:
        """Serves a file; the URL is the secret."""
        card = self._card(request)
        row = await self._records.files.get(request.match_info["ref"], self._clock.now())
        if row is None or row.card != card.card_id:
            return refusal(404, "file_not_found", "unknown or expired")
        if request.headers.get(CHANNEL_HEADER, row.channel) != row.channel:
            return refusal(403, "file_not_found", "the file belongs to another channel")
        try:
            chunks = await self._files.open(row.storage_key)
        except MissingFileError:
            return refusal(404, "file_not_found", "unknown or expired")
        response = web.StreamResponse(
            headers={
                hdrs.CONTENT_TYPE: row.mime_type,
                hdrs.CONTENT_LENGTH: str(row.byte_size),
                hdrs.CONTENT_DISPOSITION: content_disposition(
                    row.filename, row.file_type in ("image", "video", "audio")
                ),
                "X-Content-Type-Options": "nosniff",
                hdrs.CACHE_CONTROL: "private, no-store",
            }
        )
        await response.prepare(request)
        async for chunk in chunks:
            await response.write(chunk)
        await response.write_eof()
        return response

    def _card(self, request: web.Request) -> Card:
        card = self._edge.cards.get(request.match_info["card"])
        if card is None:
            raise web.HTTPNotFound(text="no such Connector here")
        return card

    def _too_large(self) -> web.Response:
        return refusal(413, "file_too_large", f"a file may have {self._limits.upload_bytes} bytes")

    @staticmethod
    async def _file_part(request: web.Request) -> BodyPartReader | None:
        if not request.content_type.startswith("multipart/"):
            return None
        try:
            reader = await request.multipart()
            async for part in reader:
                if isinstance(part, BodyPartReader) and part.name == "file":
                    return part
        except _BROKEN:  # a body that is no multipart
            return None
        return None


async def _chunks(part: BodyPartReader) -> AsyncIterator[bytes]:
    declared, size = part.headers.get(hdrs.CONTENT_LENGTH), 0
    try:
        while chunk := await part.read_chunk(_CHUNK):
            size += len(chunk)
            yield chunk
    except _BROKEN as error:
        raise BrokenUploadError from error
    if not part.at_eof() or declared not in (None, str(size)):
        raise BrokenUploadError
