"""Sluice as an operator runs it: real processes on loopback, free ports, temporary folders; they stop by themselves."""

import asyncio
import contextlib
import os
import signal
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from pathlib import Path
from typing import TypeVar

import aiohttp

T = TypeVar("T")
API_KEY = "sk_test_only"
SECRET_KEY = "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA="
START_SECONDS = 60


class Process:
    """One `sluice` process.

    Args:
        arguments: after `sluice`.
        env: its settings.
        log: where its output goes.
    """

    def __init__(self, arguments: tuple[str, ...], env: Mapping[str, str], log: Path) -> None:
        self.arguments = arguments
        self.log = log
        self._env = {**{k: v for k, v in os.environ.items() if not k.startswith("SLUICE_")}, **env}
        self._process: asyncio.subprocess.Process | None = None
        self.url = ""
        self.admin_url = ""

    async def start(self) -> None:
        """Starts it and waits until it has printed where it listens."""
        offset = self.log.stat().st_size if self.log.exists() else 0
        with self.log.open("ab") as out:
            self._process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                "services.cli",
                *self.arguments,
                env=self._env,
                stdout=out,
                stderr=out,
                stdin=asyncio.subprocess.DEVNULL,
            )
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline:
            with self.log.open("rb") as stream:
                stream.seek(offset)
                lines = stream.read().decode().splitlines()
            told = {line.split()[0]: line.split()[1] for line in lines if line.startswith(("listening", "health"))}
            if "health" in told:
                self.admin_url = told["health"].removesuffix("/healthz")
                self.url = told.get("listening", self.admin_url)
                return
            if self._process.returncode is not None:
                break
            await asyncio.sleep(0.05)
        raise AssertionError(f"sluice {' '.join(self.arguments)} did not start:\n{self.log.read_text()[-4000:]}")

    @property
    def pid(self) -> int:
        """Its process id."""
        assert self._process is not None
        return self._process.pid

    @property
    def running(self) -> bool:
        """Whether it has not ended."""
        return self._process is not None and self._process.returncode is None

    def signal(self, which: signal.Signals) -> None:
        """Sends a signal."""
        assert self._process is not None
        self._process.send_signal(which)

    async def kill(self) -> None:
        """SIGKILL."""
        assert self._process is not None
        if self.running:
            self._process.kill()
        await self._process.wait()

    async def stop(self) -> int:
        """SIGTERM; returns the exit code."""
        assert self._process is not None
        if self.running:
            self._process.send_signal(signal.SIGTERM)
        try:
            return await asyncio.wait_for(self._process.wait(), 30)
        except TimeoutError:
            self._process.kill()
            await self._process.wait()
            raise AssertionError(f"it did not stop:\n{self.log.read_text()[-4000:]}") from None

    async def wait_dead(self) -> None:
        """Waits until it has ended by itself."""
        assert self._process is not None
        await asyncio.wait_for(self._process.wait(), 60)


def embedded(folder: Path, **env: str) -> Process:
    """`sluice up` in one process."""
    settings = {"SLUICE_API_KEY": API_KEY, "SLUICE_RECORDING": "1", "SLUICE_PARTITIONS": "4", **env}
    arguments = ("up", "--port", "0", "--data-dir", str(folder / "data"))
    return Process(arguments, settings, folder / "up.log")


class Fleet:
    """Roles in processes of their own, against real servers.

    Args:
        folder: for logs and files.
        amqp, redis, postgres: URLs.
        env: further settings.
    """

    def __init__(self, folder: Path, amqp: str, redis: str, postgres: str, **env: str) -> None:
        self._folder = folder
        self._env = {
            "SLUICE_BUS_URL": amqp,
            "SLUICE_STATE_URL": redis,
            "SLUICE_RECORDS_URL": postgres,
            "SLUICE_FILES_URL": f"file://{folder / 'files'}",
            "SLUICE_DATA_DIR": str(folder / "data"),
            "SLUICE_API_KEY": API_KEY,
            "SLUICE_SECRET_KEY": SECRET_KEY,
            "SLUICE_RECORDING": "1",
            "SLUICE_PARTITIONS": "4",
            "SLUICE_PORT": "0",
            "SLUICE_ADMIN_PORT": "0",
            "SLUICE_ALLOW_PRIVATE_TARGETS": "127.0.0.0/8",
            **env,
        }
        self.processes: dict[str, Process] = {}

    async def add(self, role: str, name: str = "") -> Process:
        """Starts one more process of a role."""
        name = name or f"{role}{len(self.processes)}"
        process = Process(("run", role), self._env, self._folder / f"{name}.log")
        self.processes[name] = process
        await process.start()
        return process

    async def stop(self) -> None:
        """Stops whatever still runs, workers last."""
        for process in list(self.processes.values()):
            if process.running:
                await process.stop()

    def logs(self) -> str:
        """All output of all processes."""
        return "\n".join(process.log.read_text() for process in self.processes.values())


@contextlib.asynccontextmanager
async def started(process: Process) -> AsyncIterator[Process]:
    """A process for the length of a block."""
    await process.start()
    try:
        yield process
    finally:
        if process.running:
            await process.stop()


class Recording:
    """The control plane of the recording target at a running edge."""

    def __init__(self, session: aiohttp.ClientSession, root: str) -> None:
        self._session = session
        self._root = f"{root}/im.recording/control"
        self._headers = {"Authorization": f"Bearer {API_KEY}"}

    async def script(self, **script: object) -> None:
        """Replaces the script."""
        async with self._session.put(f"{self._root}/script", json=script, headers=self._headers) as answer:
            assert answer.status == 200, await answer.text()

    async def calls(self, kind: str = "", outcome: str = "stored") -> list[dict[str, object]]:
        """What was called, in order."""
        async with self._session.get(f"{self._root}/calls", headers=self._headers) as answer:
            assert answer.status == 200, await answer.text()
            calls = (await answer.json())["calls"]
        return [c for c in calls if kind in ("", c["kind"]) and outcome in ("", c["outcome"])]

    async def says(self, channel: str, message_id: str, text: str) -> int:
        """A person writes; returns the HTTP status."""
        body = {"channel_id": channel, "message_id": message_id, "text": text}
        async with self._session.post(f"{self._root}/inbound", json=body, headers=self._headers) as answer:
            return answer.status


async def until(what: Callable[[], Awaitable[T]], seconds: float = 30.0) -> T:
    """Polls an async predicate until it returns something true, within bounds."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if found := await what():
            return found
        await asyncio.sleep(0.05)
    raise AssertionError("it did not come to pass in time")
