"""What a rule works with: fresh sockets, fresh channels, and an ear for everything that comes back."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from typing import Any

import aiohttp

from services.conformance.record import Record
from services.conformance.report import Options
from services.conformance.signin import sign_in
from services.conformance.verdict import at, expect
from shared.agent.client import AgentClient
from shared.agent.errors import AgentError, ConnectionLost
from shared.agent.model import Packet
from shared.agent.socket import within
from shared.wire.packets import PROFILE


class Peer:
    """A socket that remembers what it heard.

    Attributes:
        agent: the socket itself.
        heard: all packets, in order.
    """

    agent: AgentClient

    def __init__(self, record: Record, timeout: float) -> None:
        self.heard: list[Packet] = []
        self._record, self._timeout = record, timeout
        self._news = asyncio.Event()

    def hear(self, packet: Packet | None) -> None:
        """The socket's tap."""
        if packet is not None:
            self.heard.append(packet)
            self._record.hear(packet)
        self._news.set()

    async def ask(self, kind: str, channel: str = "", payload: Any = None) -> Packet:
        """Sends a packet and returns its answer."""
        return await self.agent.request(kind, channel, payload)

    async def fence(self) -> None:
        """A ping's round trip: what was due at once before it has come by then."""
        answer = await self.ask("ping")
        expect(at(answer, "type") == "pong", f"ping was answered by {at(answer, 'type')}")

    async def fence_since(self, start: int) -> list[Packet]:
        """All that came after `start` packets and before a fence."""
        await self.fence()
        return [packet for packet in self.heard[start:] if packet.get("type") not in {"ping", "pong"}]

    async def until(self, awaited: str, matches: Callable[[Packet], bool], start: int = 0) -> Packet:
        """The first packet after `start` that matches, which may be there already."""
        return await within(self._timeout, self._search(matches, start), awaited)

    async def error_to(self, packet_id: str, start: int = 0) -> Packet:
        """The error packet that answers a packet."""
        return await self.until(
            f"an error packet with reply_to {packet_id}",
            lambda packet: packet.get("type") == "error" and packet.get("reply_to") == packet_id,
            start,
        )

    async def any_error(self, start: int) -> Packet:
        """The next error packet, for frames that are too broken to be named in reply_to."""
        return await self.until("an error packet", lambda packet: packet.get("type") == "error", start)

    async def _search(self, matches: Callable[[Packet], bool], start: int) -> Packet:
        while True:
            self._news.clear()
            for packet in self.heard[start:]:
                if matches(packet):
                    return packet
            start = max(start, len(self.heard))
            if self.agent.closed.done():
                raise ConnectionLost(self.agent.closed.result())
            await self._news.wait()


class Lane:
    """An open channel on a socket of its own."""

    def __init__(self, peer: Peer, channel: str, descriptor: dict[str, Any]) -> None:
        self.peer, self.agent, self.channel, self.descriptor = peer, peer.agent, channel, descriptor

    async def ask(self, kind: str, payload: Any = None) -> Packet:
        """Sends a packet of this channel and returns its answer."""
        return await self.peer.ask(kind, self.channel, payload)

    async def send(self, kind: str, payload: Any) -> str:
        """Sends a packet of this channel and returns its packet_id."""
        return await self.agent.send(kind, self.channel, payload)

    async def delta(self, message_id: str, sequence: int, text: str) -> str:
        """Sends a delta and returns its packet_id."""
        return await self.agent.send_delta(self.channel, message_id, sequence, text)

    async def final(self, message_id: str, text: str, **fields: Any) -> Packet:
        """Sends a final and returns what answers it."""
        return await self.ask("chat.message", {"message_id": message_id, "text": text} | fields)


class Probe:
    """One Connector under check.

    Attributes:
        card: as it was read at the start.
        record: see `Record`.
        connector_id: of the first hello; all later sockets restore it, so that a run leaves one id behind.
    """

    def __init__(
        self, base_url: str, api_key: str, *, options: Options, http: aiohttp.ClientSession, card: dict[str, Any],
        record: Record,
    ) -> None:  # fmt: skip
        self.base_url, self.api_key, self.options = base_url, api_key, options
        self.http, self.card, self.record = http, card, record
        self.connector_id = ""

    @property
    def card_id(self) -> str:
        """As the Card says."""
        return str(self.card.get("connector_card_id", ""))

    @contextlib.asynccontextmanager
    async def stranger(self) -> AsyncIterator[Peer]:
        """A socket that has not said hello."""
        peer = Peer(self.record, self.options.timeout)
        async with AgentClient.dial(self.base_url, self.api_key, timeout=self.options.timeout, tap=peer.hear) as agent:
            peer.agent = agent
            yield peer

    @contextlib.asynccontextmanager
    async def peer(self, profiles: tuple[str, ...] = (PROFILE,)) -> AsyncIterator[Peer]:
        """A socket that has."""
        async with self.stranger() as peer:
            await peer.agent.hello(self.card_id, self.connector_id, profiles)
            self.connector_id = peer.agent.connector_id
            yield peer

    @contextlib.asynccontextmanager
    async def lane(self) -> AsyncIterator[Lane]:
        """A fresh channel, signed in or not."""
        async with self.peer() as peer:
            opened = await peer.agent.open()
            expect(opened.channel_id, "channel.open.ack names no channel")
            yield Lane(peer, opened.channel_id, opened.descriptor)
            await self._leave(peer, opened.channel_id)

    @contextlib.asynccontextmanager
    async def connected(self) -> AsyncIterator[Lane]:
        """A fresh channel that can deliver; skips the rule where there is no way to sign in."""
        async with self.lane() as lane:
            if at(lane.descriptor, "connection", "status") not in {"connected", "degraded"}:
                await sign_in(lane.peer.ask, lane.channel, self.card, self.options)
            yield lane

    async def _leave(self, peer: Peer, channel: str) -> None:
        with contextlib.suppress(AgentError):
            await peer.ask("auth.logout", channel)
            await peer.ask("channel.close", channel)
