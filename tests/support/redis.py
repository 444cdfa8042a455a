"""A real Redis for tests, and the fixtures that give it: Debian's redis-server on a free port of the loopback."""

import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from redis.client import Redis
from redis.exceptions import ConnectionError as RedisConnectionError

from tests.support.containers import Container, wants_docker

_STARTS_WITHIN = 10.0


class RedisServer:
    """A redis-server that keeps nothing over a restart, in a folder of its own; the port stays the same."""

    def __init__(self) -> None:
        self._program = shutil.which("redis-server") or "redis-server"
        self._folder = Path(tempfile.mkdtemp(prefix="sluice-redis-"))
        self.port = free_port()
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        """Its address, as SLUICE_STATE_URL has it."""
        return f"redis://127.0.0.1:{self.port}/0"

    @property
    def pid(self) -> int:
        """Its process id, while it runs."""
        assert self._process is not None
        return self._process.pid

    def start(self) -> None:
        """Starts it and waits until it answers."""
        options = ["--port", str(self.port), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"]
        self._process = subprocess.Popen(  # noqa: S603 - a program of the system with arguments of ours
            [self._program, *options, "--dir", str(self._folder), "--logfile", "log"]
        )
        with self.admin() as redis:
            deadline = time.monotonic() + _STARTS_WITHIN
            while not _answers(redis):
                if time.monotonic() > deadline or self._process.poll() is not None:
                    pytest.fail(f"redis-server does not start: {(self._folder / 'log').read_text()[-2000:]}")
                time.sleep(0.01)

    def stop(self) -> None:
        """Ends it and removes its folder."""
        self._end(signal.SIGTERM)
        shutil.rmtree(self._folder, ignore_errors=True)

    def kill(self) -> None:
        """Ends it without a word."""
        self._end(signal.SIGKILL)

    def restart(self) -> None:
        """Kills it and starts it anew, empty."""
        self.kill()
        self.start()

    def admin(self) -> Redis:
        """A plain client, for faults and for looking inside."""
        return Redis(host="127.0.0.1", port=self.port, socket_timeout=5)

    def _end(self, how: signal.Signals) -> None:
        if self._process is not None:
            self._process.send_signal(how)
            self._process.wait(timeout=10)
            self._process = None


class RedisContainer(RedisServer):
    """The same in a container."""

    def __init__(self) -> None:
        self.port = free_port()
        self._container = Container("redis", self.port, lambda: _answers_at(self.port))

    def start(self) -> None:
        """See `RedisServer.start`."""
        self._container.start()

    def stop(self) -> None:
        """See `RedisServer.stop`."""
        self._container.close()

    def kill(self) -> None:
        """See `RedisServer.kill`."""
        self._container.kill()


def make_redis() -> RedisServer:
    """A server, not started yet: Debian's, or one in a container."""
    is_installed = shutil.which("redis-server") is not None
    return RedisContainer() if wants_docker(is_installed, "apt-get install redis-server") else RedisServer()


def free_port() -> int:
    """A port of the loopback that nobody listens on just now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _answers(redis: Redis) -> bool:
    try:
        return bool(redis.ping())
    except RedisConnectionError:
        return False


def _answers_at(port: int) -> bool:
    with Redis(host="127.0.0.1", port=port, socket_timeout=5) as redis:
        return _answers(redis)


@pytest.fixture(scope="session")
def redis_url() -> Iterator[str]:
    """The address of a Redis to share: SLUICE_TEST_REDIS_URL, or a server of our own."""
    given = os.environ.get("SLUICE_TEST_REDIS_URL")
    if given:
        yield given
        return
    server = make_redis()
    server.start()
    yield server.url
    server.stop()


@pytest.fixture
def redis_server() -> Iterator[RedisServer]:
    """A server of the test's own, to be broken."""
    server = make_redis()
    server.start()
    yield server
    server.stop()
