"""The Bot API over HTTP: one call, and what is truly known of it afterwards.

The token is a part of the URL, so no text of the HTTP client ever gets into an error of ours, nor behind it as a cause.
Source: https://core.telegram.org/bots/api#making-requests and #responseparameters.
"""

import math
from collections.abc import AsyncIterator
from typing import Any, Final

import aiohttp
import msgspec
from msgspec import Struct
from yarl import URL

from services.delivery.targets.port import Failed, NeverLeft, Refused, Throttled, Unknown
from shared.files.names import clean_filename
from shared.files.port import FilesError, FileStore, MissingFileError
from shared.records.model import FileRow

CONNECTIONS: Final = 1024
"""All bots talk to one host: hundreds of long polls must leave room for the sends."""

SLOWEST_UPLOAD: Final = 64 * 1024
"""Bytes a second; what comes slower is given up."""

CONNECT_SECONDS: Final = 10.0
UNAUTHORIZED: Final = 401
_FORBIDDEN: Final = 403
_NOT_FOUND: Final = 404
"""For a call of a known method: the token is none."""

_NO_ACCOUNT: Final = frozenset({UNAUTHORIZED, _FORBIDDEN, _NOT_FOUND})
_TIMEOUT: Final = 408
_TOO_MANY: Final = 429
_LONGEST_DESCRIPTION: Final = 200


class BotRefused(Refused):
    """The Bot API said no.

    Attributes:
        code: as HTTP has it.
        description: as Telegram words it.
        moved_to: the id of the supergroup that the chat has become, or empty.
    """

    def __init__(self, code: int, description: str, moved_to: str = "") -> None:
        super().__init__(f"Telegram answered {code}: {description}", revoked=code in _NO_ACCOUNT)
        self.code = code
        self.description = description
        self.moved_to = moved_to

    def says(self, *words: str) -> bool:
        """Whether one of the words is in the description, whatever its case."""
        description = self.description.lower()
        return any(word in description for word in words)


class Answer(Struct, frozen=True):
    """What every method answers; the parameters of a refusal are taken as they come."""

    ok: bool
    result: Any = None
    error_code: int = 0
    description: str = ""
    parameters: dict[str, Any] | None = None


class BotApi:
    """Calls methods.

    Args:
        root: the operator's `SLUICE_TELEGRAM_API_URL`; trusted.
        session: one of `bot_session`.
        files: where the bytes of uploads are.
        call_seconds: how long an answer may take.

    Raises:
        ValueError: the root is no http(s) URL; the message names the setting.
    """

    def __init__(self, root: str, session: aiohttp.ClientSession, files: FileStore, call_seconds: float) -> None:
        self._root = root.rstrip("/")
        if URL(self._root).scheme not in ("http", "https") or not URL(self._root).host:
            raise ValueError("SLUICE_TELEGRAM_API_URL: an http(s) URL is required")
        self._session = session
        self._files = files
        self._seconds = call_seconds

    async def call(self, token: str, method: str, **fields: Any) -> Any:
        """The result of a method; raises a `TargetError`."""
        data = msgspec.json.encode(fields)
        return await self._post(
            token, method, aiohttp.BytesPayload(data, content_type="application/json"), self._seconds
        )

    async def upload(self, token: str, method: str, name: str, row: FileRow, **fields: str) -> Any:
        """The result of a method that takes a file as the field `name`; raises a `TargetError`."""
        try:
            source = _Source(await self._files.open(row.storage_key))
        except MissingFileError as error:
            raise Refused("the file is gone") from error
        except FilesError as error:
            raise NeverLeft("the file cannot be read") from error
        form = aiohttp.FormData(fields, quote_fields=False)  # names in UTF-8 as they are (field report 29)
        filename = clean_filename(row.filename, "file")
        form.add_field(name, source.chunks(), filename=filename, content_type=row.mime_type)
        try:
            return await self._post(token, method, form, self._seconds + row.byte_size / SLOWEST_UPLOAD)
        except Unknown:
            if source.exhausted:
                raise
            raise NeverLeft("the file was not sent to its end") from None

    async def _post(
        self, token: str, method: str, data: aiohttp.BytesPayload | aiohttp.FormData, seconds: float
    ) -> Any:
        url = URL(f"{self._root}/bot{token}/{method}", encoded=True)
        timeout = aiohttp.ClientTimeout(total=seconds, connect=CONNECT_SECONDS, sock_read=self._seconds)
        try:
            async with self._session.post(url, data=data, timeout=timeout, allow_redirects=False) as response:
                return judged(response.status, await response.read())
        except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError) as error:
            raise NeverLeft(f"could not connect: {type(error).__name__}") from None
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise Unknown(f"no answer: {type(error).__name__}") from None


class _Source:
    """The bytes of a file, and whether all of them were taken: a body without its end cannot have been obeyed."""

    def __init__(self, chunks: AsyncIterator[bytes]) -> None:
        self._chunks = chunks
        self.exhausted = False

    async def chunks(self) -> AsyncIterator[bytes]:
        async for chunk in self._chunks:
            yield chunk
        self.exhausted = True


def bot_session() -> aiohttp.ClientSession:
    """An HTTP client for the Bot API, which the operator names; idle connections go before the server drops them."""
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=CONNECTIONS, limit_per_host=0, keepalive_timeout=15.0),
        cookie_jar=aiohttp.DummyCookieJar(),
        trust_env=False,
    )


def judged(status: int, body: bytes) -> Any:
    """The result in an answer. Pure.

    Raises:
        Throttled, Failed, BotRefused: as Telegram said.
        Unknown: it is not Telegram's answer but a gateway's.
    """
    try:
        answer = msgspec.json.decode(body, type=Answer)
    except msgspec.MsgspecError:
        raise Unknown(f"a gateway answered {status}") from None
    if answer.ok:
        return answer.result
    code, parameters = answer.error_code or status, answer.parameters or {}
    description = answer.description[:_LONGEST_DESCRIPTION]
    if code == _TOO_MANY:
        raise Throttled(seconds(parameters.get("retry_after")))
    if code == _TIMEOUT or code >= 500:  # noqa: PLR2004 - the 5xx class
        raise Failed(f"Telegram answered {code}: {description}")
    moved_to = parameters.get("migrate_to_chat_id")
    raise BotRefused(code, description, str(moved_to) if isinstance(moved_to, int | str) else "")


def seconds(given: object) -> float | None:
    """A time to wait; None where there is none or it is nonsense (field report 22)."""
    if isinstance(given, bool) or not isinstance(given, int | float | str):
        return None
    try:
        wait = float(given)
    except (ValueError, OverflowError):
        return None
    return wait if math.isfinite(wait) and wait >= 0 else None
