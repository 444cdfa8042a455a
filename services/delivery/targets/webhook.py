"""`im.webhook`: finals as signed POSTs (Standard Webhooks; contract.md, im.webhook)."""

import base64
import binascii
import hashlib
from datetime import UTC, datetime
from typing import Any

import aiohttp
import msgspec
from standardwebhooks import Webhook
from yarl import URL

from services.delivery import retry_after
from services.delivery.targets.port import (
    Binding,
    Failed,
    NeverLeft,
    OutFile,
    Part,
    Refused,
    SignedIn,
    SignInError,
    TargetError,
    Throttled,
    Traits,
    Unknown,
)
from shared.cards.card import Card
from shared.clock import Clock
from shared.net.guard import BlockedUrlError, Guard
from shared.records.model import Receipt
from shared.wire.packets import MessagePayload

SECRET_PREFIX = "whsec_"  # noqa: S105 - the prefix of the format, not a secret
SECRET_BYTES = range(24, 65)
GONE = 410
RETRIED = frozenset({408, 425})
TOO_MANY = 429
CONNECT_SECONDS = 10.0


class WebhookTarget:
    """Posts to a URL that the user supplied.

    Args:
        card: the Connector Card.
        session: an HTTP client whose connector checks and pins every address.
        guard: checks a URL at sign-in.
        clock: for the signature's time and Retry-After dates.
        call_seconds: how long the receiver may take to answer.
    """

    def __init__(
        self, card: Card, session: aiohttp.ClientSession, guard: Guard, clock: Clock, call_seconds: float
    ) -> None:
        self.card = card
        self._session = session
        self._guard = guard
        self._clock = clock
        self._timeout = aiohttp.ClientTimeout(total=call_seconds, connect=min(CONNECT_SECONDS, call_seconds))

    async def traits(self, binding: Binding) -> Traits:
        """The receiver dedupes by webhook-id; nothing can be edited."""
        del binding
        return Traits(keyed=True, edits=False)

    async def plan(self, binding: Binding, message: MessagePayload, files: tuple[OutFile, ...]) -> tuple[Part, ...]:
        """One POST carries it all."""
        key = "msg_" + hashlib.sha256(f"{binding.channel}\0{message.message_id}".encode()).hexdigest()[:40]
        return (Part(message.message_id, 0, key, message.text, files, message.created_at),)

    async def send(self, binding: Binding, part: Part) -> Receipt:
        """See `Target.send`."""
        url, secret = binding.credential["url"], binding.credential["secret"]
        body = self._body(binding, part)
        now = datetime.fromtimestamp(self._clock.now(), UTC)
        headers = {
            "content-type": "application/json",
            "webhook-id": part.key,
            "webhook-timestamp": str(int(now.timestamp())),
            "webhook-signature": Webhook(secret).sign(part.key, now, body.decode()),
        }
        try:
            async with self._session.post(
                url, data=body, headers=headers, allow_redirects=False, timeout=self._timeout
            ) as response:
                return self._judge(response, part)
        except BlockedUrlError as error:
            raise Refused(f"blocked_url: {error}") from error
        except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError) as error:
            raise NeverLeft("could not connect") from error
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise Unknown(f"no answer: {type(error).__name__}") from error

    async def edit(self, binding: Binding, shown: Receipt, part: Part) -> Receipt:
        """A webhook cannot be edited."""
        raise Refused("a webhook cannot be edited")

    async def remove(self, binding: Binding, shown: Receipt) -> None:
        """A webhook cannot be taken back."""
        raise Refused("a webhook cannot be taken back")

    async def activity(self, binding: Binding, status: str, tool_name: str) -> None:
        """A webhook shows no activity."""

    async def sign_in(self, channel: str, flow_id: str, values: dict[str, Any]) -> SignedIn:
        """Checks the URL and the secret."""
        del channel, flow_id
        url, secret = values.get("url"), values.get("secret")
        if not isinstance(url, str) or not url.strip():
            raise SignInError("url: an http(s) URL is required")
        try:
            await self._guard.check_url(url)
        except BlockedUrlError as error:
            raise SignInError(f"url: blocked_url: {error}") from error
        except ValueError as error:
            raise SignInError(f"url: {error}") from error
        if not isinstance(secret, str) or not is_secret(secret):
            raise SignInError("secret: whsec_ and the base64 of 24 to 64 bytes is required")
        host = URL(url).host or ""
        return SignedIn({"url": url, "secret": secret}, {"display_name": host, "label": host, "account_hint": host})

    async def sign_out(self, binding: Binding) -> None:
        """There is nothing to forget at the receiver."""

    def _body(self, binding: Binding, part: Part) -> bytes:
        return msgspec.json.encode(
            {
                "type": "message",
                "channel_id": binding.channel,
                "message_id": part.message_id,
                "text": part.text,
                "files": [
                    {
                        "type": file.row.file_type,
                        "filename": file.row.filename,
                        "mime_type": file.row.mime_type,
                        "byte_size": file.row.byte_size,
                        "url": file.url,
                    }
                    for file in part.files
                ],
                "created_at": part.created_at,
            }
        )

    def _judge(self, response: aiohttp.ClientResponse, part: Part) -> Receipt:
        status = response.status
        if 200 <= status < 300:  # noqa: PLR2004 - the 2xx class
            return Receipt(part.ordinal, part.key, len(part.text))
        error: TargetError
        if status == TOO_MANY:
            error = Throttled(retry_after.of_header(response.headers, self._clock.now()))
        elif status in RETRIED or status >= 500:  # noqa: PLR2004 - the 5xx class
            error = Failed(f"the receiver answered {status}")
        else:
            error = Refused(f"the receiver answered {status}", revoked=status == GONE)
        raise error


def is_secret(secret: str) -> bool:
    """Whether it is `whsec_` + base64 of 24 to 64 bytes."""
    if not secret.startswith(SECRET_PREFIX):
        return False
    try:
        return len(base64.b64decode(secret.removeprefix(SECRET_PREFIX), validate=True)) in SECRET_BYTES
    except (binascii.Error, ValueError):
        return False
