"""The control plane as xAgent calls it: the Card, its health, its files (connector-protocol.md, Control plane)."""

from typing import Any

import aiohttp
import msgspec

from shared.agent.errors import HttpRefused

CHANNEL_HEADER = "X-XAgent-Connector-Channel-ID"


def bearer(api_key: str) -> dict[str, str]:
    """The header that carries the system key; none for an empty key."""
    return {"Authorization": f"Bearer {api_key}"} if api_key else {}


async def fetch_card(session: aiohttp.ClientSession, base_url: str) -> dict[str, Any]:
    """The Connector Card.

    Raises:
        HttpRefused: there is none, or it is no JSON object.
    """
    path = "/connector-card.json"
    async with session.get(base_url + path) as response:
        body = await response.read()
        if response.status != 200:  # noqa: PLR2004 - the one success that carries a Card
            raise HttpRefused("GET", path, response.status, body.decode(errors="replace"))
    return _object(body, "GET", path, response.status)


async def upload(
    session: aiohttp.ClientSession, base_url: str, api_key: str, channel: str, *, data: bytes, filename: str, mime: str
) -> dict[str, Any]:
    """Uploads a file to a channel and returns the whole answer, `file_ref` in it.

    Raises:
        HttpRefused: it was not taken.
    """
    form = aiohttp.FormData(quote_fields=False)  # RFC 7578: the name goes as UTF-8, not percent-encoded
    form.add_field("file", data, filename=filename, content_type=mime)
    path = "/files/uploads"
    headers = bearer(api_key) | {CHANNEL_HEADER: channel}
    async with session.post(base_url + path, data=form, headers=headers) as response:
        body = await response.read()
        if not response.ok:
            raise HttpRefused("POST", path, response.status, body.decode(errors="replace"))
    return _object(body, "POST", path, response.status)


def _object(body: bytes, method: str, path: str, status: int) -> dict[str, Any]:
    try:
        return msgspec.json.decode(body, type=dict[str, Any])
    except msgspec.MsgspecError as error:
        raise HttpRefused(method, path, status, f"not a JSON object: {error}") from error
