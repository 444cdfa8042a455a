"""An agent as xAgent's sender is: it keeps what is not acked and sends it again, over any number of sockets."""

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator, Callable
from typing import Any

from shared.agent.client import AgentClient
from shared.agent.errors import AgentError
from tests.support.process import API_KEY

LONGEST = 100.0


class PersistentAgent:
    """One connector over many sockets.

    Args:
        url: where an edge is just now.
        patience: seconds to wait for an ack before the message is sent again.

    Attributes:
        acks: of finals, by status and code.
        sockets: how many were opened.
    """

    def __init__(self, url: Callable[[], str], card: str = "im.recording", patience: float = 10.0) -> None:
        self.acks: Counter[str] = Counter()
        self.sockets = 0
        self.channels: list[str] = []
        self._url = url
        self._card = card
        self._patience = patience
        self._connector_id = ""
        self._client: AgentClient | None = None
        self._connected = asyncio.Event()
        self._runner: asyncio.Task[None] | None = None

    async def open(self, channels: int) -> None:
        """Connects and opens that many new channels."""
        self._runner = asyncio.create_task(self._run())
        await asyncio.wait_for(self._connected.wait(), LONGEST)
        assert self._client is not None
        self.channels = [(await self._client.open()).channel_id for _ in range(channels)]

    async def close(self) -> None:
        """Ends it."""
        if self._runner is not None:
            self._runner.cancel()
            await asyncio.wait([self._runner])

    async def send(self, channel: str, message_id: str, text: str) -> dict[str, Any]:
        """Sends a final until it is acked; what may be sent again is."""
        async with asyncio.timeout(LONGEST):
            while True:
                client = await self._ready()
                try:
                    ack = await client.send_message(channel, text, message_id=message_id, timeout=self._patience)
                except AgentError:
                    await asyncio.sleep(0.2)
                    continue
                if ack["status"] == "rejected" and ack.get("retryable"):
                    await asyncio.sleep(0.2)
                    continue
                self.acks[f"{ack['status']} {ack.get('code', '')}".strip()] += 1
                return ack

    async def delta(self, channel: str, message_id: str, sequence: int, text: str) -> None:
        """Sends a delta once; what is lost with its socket is lost."""
        client = await self._ready()
        with contextlib.suppress(AgentError):
            await client.send_delta(channel, message_id, sequence, text)

    async def _ready(self) -> AgentClient:
        await self._connected.wait()
        assert self._client is not None
        return self._client

    async def _run(self) -> None:
        while True:
            with contextlib.suppress(AgentError, TimeoutError, OSError):
                url = f"{self._url()}/{self._card}"
                async with AgentClient.connect(url, API_KEY, self._card, self._connector_id, timeout=20) as client:
                    self._connector_id = client.connector_id
                    for channel in self.channels:
                        await client.open(channel)
                    self.sockets += 1
                    self._client = client
                    self._connected.set()
                    try:
                        await asyncio.shield(client.closed)
                    finally:
                        self._connected.clear()
            await asyncio.sleep(0.3)


@contextlib.asynccontextmanager
async def persistent(url: Callable[[], str], channels: int, patience: float = 10.0) -> AsyncIterator[PersistentAgent]:
    """An agent with open channels for the length of a block."""
    agent = PersistentAgent(url, patience=patience)
    try:
        await agent.open(channels)
        yield agent
    finally:
        await agent.close()
