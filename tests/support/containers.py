"""Servers in containers, for machines with Docker: one service of infra/compose.yaml, in a project of its own."""

import os
import secrets
import shutil
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from pytest_docker.plugin import DockerComposeExecutor

COMPOSE_FILE = Path(__file__).parents[2] / "infra" / "compose.yaml"
_STARTS_WITHIN = 120.0


def wants_docker(is_installed: bool, install: str) -> bool:  # noqa: FBT001 - reads well where it is called
    """Whether a test server is to run in a container: SLUICE_TEST_SERVERS=docker, or there is nothing else.

    Fails, saying what to install, where there is neither.
    """
    wanted = os.environ.get("SLUICE_TEST_SERVERS", "")
    if wanted not in ("", "docker", "debian"):
        pytest.fail("SLUICE_TEST_SERVERS: docker or debian is needed")
    if is_installed and wanted != "docker":
        return False
    if wanted == "debian" or compose_command() is None:
        pytest.fail(f"a server is missing: {install}, or a Docker with compose, or its URL in SLUICE_TEST_*_URL")
    return True


def compose_command() -> str | None:
    """How compose is called on this machine, where a Docker engine answers."""
    if shutil.which("docker") is None or not _succeeds("docker", "info"):
        return None
    if _succeeds("docker", "compose", "version"):
        return "docker compose"
    return "docker-compose" if shutil.which("docker-compose") else None


class Container:
    """One service of the compose file; its data lives until `close`.

    Args:
        service: its name there.
        port: of the loopback, where it is to be reached.
        answers: whether it serves by now.
    """

    def __init__(self, service: str, port: int, answers: Callable[[], bool]) -> None:
        self._service = service
        self._answers = answers
        setting = f"SLUICE_{service.upper()}_PORT={port}"
        project = f"sluice-test-{secrets.token_hex(4)}"
        self._compose = DockerComposeExecutor(f"{setting} {compose_command()}", str(COMPOSE_FILE), project)

    def start(self) -> None:
        """Starts it and waits until it answers."""
        self._compose.execute(f"up --detach {self._service}")
        deadline = time.monotonic() + _STARTS_WITHIN
        while not self._answers():
            if time.monotonic() > deadline:
                logs = self._compose.execute(f"logs --tail 50 {self._service}")
                pytest.fail(f"{self._service} does not start: {logs!r}")
            time.sleep(0.2)

    def stop(self) -> None:
        """Ends it in order, keeping its data."""
        self._compose.execute(f"stop {self._service}")

    def kill(self) -> None:
        """Ends it without a word, keeping its data."""
        self._compose.execute(f"kill {self._service}")

    def run(self, *command: str) -> str:
        """Runs a command inside and returns what it says."""
        said = self._compose.execute(f"exec -T {self._service} {' '.join(command)}")
        return bytes(said).decode()

    def close(self) -> None:
        """Removes it with its data."""
        self._compose.execute("down --volumes --timeout 5")


def _succeeds(*command: str) -> bool:
    done = subprocess.run(command, check=False, capture_output=True, timeout=30)  # noqa: S603 - the names are ours
    return done.returncode == 0
