"""The demo agent: dials the console as xAgent would, and streams an answer to what it is told."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

from shared.agent.client import AgentClient
from shared.wire.ids import namer

WORD_SECONDS = 0.06


@contextlib.asynccontextmanager
async def demo_agent(base_url: str, api_key: str, data_dir: str) -> AsyncIterator[str]:
    """Runs the agent; yields its channel, which is the same after a restart."""
    memory = Path(data_dir) / "demo_agent"
    connector_id, channel_id = memory.read_text().split() if memory.exists() else ("", "")
    async with AgentClient.connect(base_url, api_key, connector_id=connector_id) as agent:
        opened = await agent.open(channel_id)
        memory.write_text(f"{agent.connector_id} {opened.channel_id}\n")
        task = asyncio.create_task(_answer(agent))
        try:
            yield opened.channel_id
        finally:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task


async def _answer(agent: AgentClient) -> None:
    new_id = namer("demo")
    async for message in agent.messages:
        channel, text = message.channel, str(message.payload.get("text", ""))
        await agent.ack(message, status="accepted")
        message_id = new_id()
        await agent.send_activity(channel, "thinking")
        reply = reply_to(text)
        for sequence, word in enumerate(_words(reply), start=1):
            await agent.send_delta(channel, message_id, sequence, word)
            await asyncio.sleep(WORD_SECONDS)
        await agent.send_message(channel, reply, message_id=message_id)


def reply_to(text: str) -> str:
    """What the demo agent has to say."""
    count = len(text.split())
    return (
        f"You said “{text.strip()}”. That is {count} word{'' if count == 1 else 's'}, and they came to me over "
        "the edge, the bus and the outbox; these words come back as deltas, and the whole as one final."
    )


def _words(text: str) -> list[str]:
    words = text.split(" ")
    return [word if n == 0 else f" {word}" for n, word in enumerate(words)]
