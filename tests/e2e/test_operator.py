"""What an operator does with messages that were given up, by the command, while the fabric runs."""

import asyncio
import os
import sys
from pathlib import Path

import aiohttp
import pytest

from shared.agent.client import AgentClient
from tests.support.process import API_KEY, Recording, embedded, started, until
from tests.support.redis import free_port


async def sluice(folder: Path, *arguments: str, **settings: str) -> str:
    """Runs the command on the same data folder; returns what it prints."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("SLUICE_")}
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *("-m", "services.cli", *arguments, "--data-dir", str(folder / "data")),
        env=environment | {"COLUMNS": "400", "SLUICE_PARTITIONS": "4"} | settings,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    said, _ = await asyncio.wait_for(process.communicate(), 60)
    return said.decode()


@pytest.mark.parametrize("keyed", [True, False])
async def test_a_dead_letter_is_sent_once_more_by_hand(
    tmp_path: Path,
    keyed: bool,  # noqa: FBT001
) -> None:
    """Refused for good, filed, retried by hand: it lands once, a repeat is a duplicate, nobody gets an unasked ack."""
    async with started(embedded(tmp_path)) as up, aiohttp.ClientSession() as http:
        recording = Recording(http, up.url)
        await recording.script(keyed=keyed, steps=[{"kind": "send", "refusal": "permanent"}])
        async with AgentClient.connect(f"{up.url}/im.recording", API_KEY) as agent:
            channel = (await agent.open()).channel_id
            ack = await agent.send_message(channel, "pay 30", message_id="m1")
            assert (ack["status"], ack["code"]) == ("rejected", "target_delivery_failed")
            assert (await agent.send_message(channel, "pay 30", message_id="m1"))["status"] == "rejected"
            letter = f"out:{channel}:m1"
            assert letter in await sluice(tmp_path, "dead-letters")
            assert "pay 30" in await sluice(tmp_path, "dead-letters", "show", letter)
            assert "sent once more" in await sluice(tmp_path, "dead-letters", "retry", letter)
            assert len(await until(lambda: recording.calls("send"))) == 1

            async def repeated() -> bool:
                return (await agent.send_message(channel, "pay 30", message_id="m1"))["status"] == "duplicate"

            await until(repeated)
            assert agent.notices.empty()
        assert len(await recording.calls("send")) == 1
        assert letter not in await sluice(tmp_path, "dead-letters")


async def test_parked_work_and_the_outbox_are_shown_and_dropped_with_a_record(tmp_path: Path) -> None:
    """A lane that waits for its platform is listed; what an operator drops is a dead letter that says so."""
    async with started(embedded(tmp_path)) as up, aiohttp.ClientSession() as http:
        recording = Recording(http, up.url)
        await recording.script(steps=[{"kind": "send", "refusal": "throttled", "retry_after": 600, "times": 0}])
        async with AgentClient.connect(f"{up.url}/im.recording", API_KEY, auto_ack=False) as agent:
            channel = (await agent.open()).channel_id
            payload = {"message_id": "m1", "text": "later"}
            await agent.send("chat.message", channel, payload)

            async def parked() -> str:
                shown = await sluice(tmp_path, "parked")
                return shown if channel in shown else ""

            assert "target_rate_limited" in await until(parked)
            assert await recording.says(channel, "p1", "anybody there?") == 202
            assert f"{channel}/p1" in await sluice(tmp_path, "outbox")
            assert channel in await sluice(tmp_path, "channels")

            async def measured() -> bool:
                async with http.get(f"{up.url}/metrics") as answer:
                    lines = (await answer.text()).splitlines()
                return {"sluice_outbox_pending 1.0", "sluice_parked_messages 1.0"} <= set(lines)

            await until(measured)
            number = (await parked()).splitlines()[-1].split()[0]
            await sluice(tmp_path, "parked", "drop", number)
            assert "by an operator" in await sluice(tmp_path, "dead-letters")
            assert channel not in await sluice(tmp_path, "parked")
            await sluice(tmp_path, "outbox", "drop", f"{channel}/p1")
            assert "no dead letter" in await sluice(tmp_path, "dead-letters", "show", "nonsense")


async def test_the_doctor_says_what_is_wrong_and_what_to_do(tmp_path: Path) -> None:
    """Each dependency by name, every limit, exit code 1; a password in a URL is not shown."""
    nobody = f"127.0.0.1:{free_port()}"
    well = await sluice(tmp_path, "doctor")
    assert "wrong" not in well
    assert "limit text_bytes" in well
    ill = await sluice(
        tmp_path,
        "doctor",
        SLUICE_BUS_URL=f"amqp://guest:hidden@{nobody}/",
        SLUICE_STATE_URL=f"redis://:hidden@{nobody}/0",
        SLUICE_RECORDS_URL=f"postgresql://u:hidden@{nobody}/x",
    )
    for setting in ("SLUICE_BUS_URL", "SLUICE_STATE_URL", "SLUICE_RECORDS_URL"):
        assert setting in ill
    assert "hidden" not in ill
    assert "Traceback" not in ill
