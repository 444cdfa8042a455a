"""A stream that dies without its final (contract.md, Delivery)."""

from pathlib import Path

import aiohttp

from shared.agent.client import AgentClient
from tests.support.process import API_KEY, Recording, embedded, started, until


async def test_a_preview_whose_stream_dies_says_so_once_and_the_final_still_lands(tmp_path: Path) -> None:
    """One last edit, "[interrupted]"; the final that comes after all edits the same message."""
    limits = {"SLUICE_LIMIT_STREAM_SECONDS": "1", "SLUICE_LIMIT_STREAM_CLEANUP_SECONDS": "0.5"}
    async with started(embedded(tmp_path, **limits)) as up, aiohttp.ClientSession() as http:
        recording = Recording(http, up.url)
        async with AgentClient.connect(f"{up.url}/im.recording", API_KEY) as agent:
            channel = (await agent.open()).channel_id
            await agent.send_delta(channel, "m1", 1, "half a sen")

            async def interrupted() -> list[dict[str, object]]:
                return [call for call in await recording.calls("edit") if call["text"] == "[interrupted]"]

            assert len(await until(interrupted)) == 1
            assert (await agent.send_message(channel, "half a sentence", message_id="m1"))["status"] == "accepted"
        assert len(await interrupted()) == 1
        calls = await recording.calls()
    assert [call["kind"] for call in calls].count("send") == 1
    assert calls[-1]["text"] == "half a sentence"
