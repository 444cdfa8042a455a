"""`sluice smoke` and `sluice doctor --wait`: what an installation is tried with."""

import asyncio
import os
import sys
from pathlib import Path

import pytest

from services.cli.smoke import TEXT, carry
from tests.support.process import API_KEY, embedded, started

CLEAN = {name: value for name, value in os.environ.items() if not name.startswith("SLUICE_")}


async def sluice(*arguments: str, **env: str) -> tuple[int, str]:
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "services.cli",
        *arguments,
        env={**CLEAN, **env},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    output, _ = await process.communicate()
    assert process.returncode is not None
    return process.returncode, output.decode()


@pytest.mark.parametrize("card", ["im.recording", "im.console"])
async def test_one_message_is_carried_the_whole_way(tmp_path: Path, card: str) -> None:
    """On the scripted platform, and where that is off on the console, which needs nobody to watch it."""
    async with started(embedded(tmp_path)) as process:
        code, output = await sluice("smoke", f"{process.url}/{card}", SLUICE_API_KEY=API_KEY)
    assert (code, output.split()[0]) == (0, "accepted"), output


async def test_what_is_wrong_is_one_line_and_an_exit_code(tmp_path: Path) -> None:
    """A wrong key, a Card that is not there, nobody who listens: never a traceback."""
    async with started(embedded(tmp_path)) as process:
        url = process.url
        wrong_key = await sluice("smoke", f"{url}/im.recording", "--api-key", "sk_wrong")
        no_card = await sluice("smoke", f"{url}/im.nowhere", "--api-key", API_KEY)
    nobody = await sluice("smoke", f"{url}/im.recording", "--api-key", API_KEY)
    for code, output in (wrong_key, no_card, nobody):
        assert (code, output.split()[0], output.count("\n")) == (1, "failed", 1), output
        assert API_KEY not in output


async def test_a_card_that_needs_signing_in_is_refused_by_its_code(tmp_path: Path) -> None:
    """A channel without a binding cannot carry a message; the code says so."""
    async with started(embedded(tmp_path)) as process:
        carried = await carry(f"{process.url}/im.webhook/", API_KEY, 5.0)
    assert (carried.status, carried.detail) == ("rejected", "connection_not_authenticated")
    assert TEXT not in carried.detail


async def test_the_doctor_waits_for_what_comes_late(tmp_path: Path) -> None:
    """The files' folder is there a second after the start."""
    files = tmp_path / "files"
    files.write_text("in the way")
    waiting = asyncio.create_task(
        sluice("doctor", "--wait", "30", SLUICE_DATA_DIR=str(tmp_path / "data"), SLUICE_FILES_URL=f"file://{files}")
    )
    await asyncio.sleep(1.5)
    assert not waiting.done()
    files.unlink()
    code, output = await waiting
    assert code == 0, output
    assert output.count("secret key") == 1
