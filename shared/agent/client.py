"""xAgent's side of a Connector: hello, channels, finals, deltas, activity, uploads (IM v2; connector-protocol.md)."""

import contextlib
from collections.abc import AsyncIterator, Sequence
from typing import Any, Final, Self

from msgspec import Struct

from shared.agent import http
from shared.agent.errors import HttpRefused, RequestFailed
from shared.agent.model import Packet
from shared.agent.socket import AgentSocket, now_ms
from shared.wire.ids import namer
from shared.wire.packets import PROFILE, PROTOCOL_VERSION

new_message_id: Final = namer("msg")


class OpenedChannel(Struct, frozen=True):
    """A channel and its Connection Descriptor."""

    channel_id: str
    descriptor: dict[str, Any]


class AgentClient(AgentSocket):
    """Made by `connect`; by `dial` for a socket without its hello.

    Attributes:
        card_id: the card that the hello named.
        connector_id: as issued by the hello; pass it to `connect` to restore what it had.
    """

    card_id: str = ""
    connector_id: str = ""

    @classmethod
    @contextlib.asynccontextmanager
    async def connect(
        cls, base_url: str, api_key: str, card_id: str = "", connector_id: str = "", **settings: Any
    ) -> AsyncIterator[Self]:
        """Opens a socket and says hello.

        Args:
            base_url: the card's base URL.
            api_key: the system key.
            card_id: read from the Card when empty.
            connector_id: as issued before; empty asks for a new one.
            settings: fields of `Settings`: timeout, queue_size, auto_ack, tap.

        Raises:
            RequestFailed: the hello was refused.
            HttpRefused: the handshake was, or there is no Card.
            ConnectionLost: nobody answered at that address.
        """
        async with cls.dial(base_url, api_key, **settings) as agent:
            await agent.hello(card_id or await agent.read_card_id(), connector_id)
            yield agent

    async def read_card_id(self) -> str:
        """The id that the Card gives."""
        return str((await http.fetch_card(self.http, self.base_url)).get("connector_card_id", ""))

    async def hello(self, card_id: str, connector_id: str = "", profiles: Sequence[str] = (PROFILE,)) -> Packet:
        """Says hello and returns its ack; raises `RequestFailed`."""
        answer = succeeded(
            await self.request(
                "connector.hello",
                "",
                {
                    "connector_card_id": card_id,
                    "connector_id": connector_id,
                    "protocol_version": PROTOCOL_VERSION,
                    "supported_profiles": list(profiles),
                },
            )
        )
        self.card_id = card_id
        self.connector_id = str(answer["payload"].get("connector_id", ""))
        return answer

    async def open(self, channel_id: str = "") -> OpenedChannel:
        """Opens a new channel, or restores the one named; raises `RequestFailed`."""
        payload = succeeded(await self.request("channel.open", channel_id))["payload"]
        descriptor = payload.get("connection_descriptor")
        return OpenedChannel(
            str(payload.get("connector_channel_id", "")), descriptor if isinstance(descriptor, dict) else {}
        )

    async def send_message(
        self,
        channel_id: str,
        text: str,
        files: Sequence[dict[str, Any]] = (),
        message_id: str | None = None,
        timeout: float | None = None,  # noqa: ASYNC109 - told in words
    ) -> dict[str, Any]:
        """Sends a final and returns the payload of its ack, whatever the status; raises `RequestFailed` on an error."""
        payload: dict[str, Any] = {"message_id": message_id or new_message_id(), "text": text, "created_at": now_ms()}
        if files:
            payload["files"] = list(files)
        answer = succeeded(await self.request("chat.message", channel_id, payload, timeout))
        acked: dict[str, Any] = answer["payload"]
        return acked

    async def send_delta(self, channel_id: str, message_id: str, sequence: int, text: str) -> str:
        """Sends a piece of a message; returns its packet_id, which an error names in reply_to."""
        payload = {"message_id": message_id, "sequence": sequence, "text": text}
        return await self.send("chat.message.delta", channel_id, payload)

    async def send_activity(self, channel_id: str, status: str, tool_name: str = "") -> str:
        """Sends the whole state of the channel; returns its packet_id."""
        payload = {"status": status} | ({"tool_name": tool_name} if tool_name else {})
        return await self.send("chat.activity", channel_id, payload)

    async def upload(self, channel_id: str, data: bytes, filename: str, mime: str) -> str:
        """Uploads a file to the channel and returns its file_ref; raises `HttpRefused`."""
        answer = await http.upload(
            self.http, self.base_url, self.api_key, channel_id, data=data, filename=filename, mime=mime
        )
        file_ref = answer.get("file_ref")
        if not isinstance(file_ref, str) or not file_ref:
            raise HttpRefused("POST", "/files/uploads", 200, "the answer names no file_ref")
        return file_ref


def succeeded(answer: Packet) -> Packet:
    """The answer, or `RequestFailed` when it is an error or carries one; its payload is an object from here on."""
    if answer.get("type") == "error" or answer.get("error") or not isinstance(answer.get("payload"), dict):
        raise RequestFailed(answer)
    return answer
