"""A real PostgreSQL for tests, and the fixtures that give it: Debian's postgresql on a free port of the loopback."""

import os
import pwd
import re
import secrets
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

import asyncpg
import pytest

from tests.support.containers import Container, wants_docker
from tests.support.redis import free_port

_STARTS_WITHIN = 30.0


class PostgresServer:
    """A PostgreSQL with fsync on, in a folder of its own; port and data stay the same over a restart."""

    def __init__(self) -> None:
        self._programs = _programs()
        self._account = pwd.getpwnam("postgres") if os.geteuid() == 0 else None  # it refuses to run as root
        self._folder = Path(tempfile.mkdtemp(prefix="sluice-pg-"))
        if self._account is not None:
            os.chown(self._folder, self._account.pw_uid, self._account.pw_gid)
        self._log = self._folder / "log"
        self.port = free_port()
        self._process: subprocess.Popen[bytes] | None = None
        options = ["-D", str(self._data), "-U", "sluice", "-A", "trust", "-E", "UTF8", "--locale=C"]
        if self._spawn("initdb", options).wait(timeout=60) != 0:
            pytest.fail(f"initdb fails: {self._log.read_text()[-2000:]}")

    @property
    def _data(self) -> Path:
        return self._folder / "data"

    @property
    def url(self) -> str:
        """Its address, as SLUICE_RECORDS_URL has it."""
        return f"postgresql://sluice@127.0.0.1:{self.port}/postgres"

    @property
    def pid(self) -> int:
        """Its process id, while it runs."""
        assert self._process is not None
        return self._process.pid

    def start(self) -> None:
        """Starts it and waits until it answers."""
        options = ["-D", str(self._data), "-p", str(self.port), "-h", "127.0.0.1", "-k", str(self._folder)]
        self._process = self._spawn("postgres", [*options, "-c", "max_connections=200"])
        deadline = time.monotonic() + _STARTS_WITHIN
        while not self._answers():
            if time.monotonic() > deadline or self._process.poll() is not None:
                pytest.fail(f"postgres does not start: {self._log.read_text()[-2000:]}")
            time.sleep(0.02)

    def stop(self) -> None:
        """Ends it and removes its folder."""
        self._end(signal.SIGINT)
        shutil.rmtree(self._folder, ignore_errors=True)

    def kill(self) -> None:
        """Ends it at once, as a crash would: it recovers from its log at the next start."""
        self._end(signal.SIGQUIT)

    def restart(self) -> None:
        """Crashes it and starts it anew."""
        self.kill()
        self.start()

    def _spawn(self, program: str, options: list[str]) -> subprocess.Popen[bytes]:
        with self._log.open("ab") as log:
            return subprocess.Popen(  # noqa: S603 - a program of the system with arguments of ours
                [self._programs / program, *options],
                stdout=log,
                stderr=log,
                cwd=self._folder,
                user=self._account.pw_uid if self._account else None,
                group=self._account.pw_gid if self._account else None,
                extra_groups=[] if self._account else None,
            )

    def _answers(self) -> bool:
        return self._spawn("pg_isready", ["-h", "127.0.0.1", "-p", str(self.port), "-q"]).wait(timeout=10) == 0

    def _end(self, how: signal.Signals) -> None:
        if self._process is not None:
            self._process.send_signal(how)
            self._process.wait(timeout=30)
            self._process = None


class PostgresContainer(PostgresServer):
    """The same in a container."""

    def __init__(self) -> None:
        self.port = free_port()
        self._container = Container("postgres", self.port, self._answers)

    def start(self) -> None:
        """See `PostgresServer.start`."""
        self._container.start()

    def stop(self) -> None:
        """See `PostgresServer.stop`."""
        self._container.close()

    def kill(self) -> None:
        """See `PostgresServer.kill`."""
        self._container.kill()

    def _answers(self) -> bool:
        try:
            self._container.run("psql", "-U", "sluice", "-d", "postgres", "-h", "127.0.0.1", "-c", "'SELECT 1'")
        except Exception:  # noqa: BLE001 - the plugin raises a bare one for whatever went wrong
            return False
        return True


def make_postgres() -> PostgresServer:
    """A server, not started yet: Debian's, or one in a container."""
    is_installed = any(_installed())
    return PostgresContainer() if wants_docker(is_installed, "apt-get install postgresql") else PostgresServer()


def _installed() -> list[Path]:
    return list(Path("/usr/lib/postgresql").glob("*/bin/postgres"))


def _programs() -> Path:
    found = _installed()
    return max(found, key=lambda path: int(re.sub(r"\D", "", path.parts[-3]) or 0)).parent


async def make_database(url: str) -> str:
    """Makes an empty database on the server at `url` and returns the URL of it."""
    name = f"sluice_{secrets.token_hex(6)}"
    await _run(url, f"CREATE DATABASE {name} TEMPLATE template0")
    return urlunsplit(urlsplit(url)._replace(path=f"/{name}"))


async def drop_database(url: str, database_url: str) -> None:
    """Removes a database that `make_database` has made, whoever is still connected."""
    await _run(url, f"DROP DATABASE {urlsplit(database_url).path[1:]} WITH (FORCE)")


async def _run(url: str, statement: str) -> None:
    connection = await asyncpg.connect(url)
    try:
        await connection.execute(statement)
    finally:
        await connection.close()


@pytest.fixture(scope="session")
def postgres_url() -> Iterator[str]:
    """The address of a PostgreSQL to share: SLUICE_TEST_POSTGRES_URL, or a server of our own."""
    given = os.environ.get("SLUICE_TEST_POSTGRES_URL")
    if given:
        yield given
        return
    server = make_postgres()
    try:
        server.start()
        yield server.url
    finally:
        server.stop()


@pytest.fixture
def postgres_server() -> Iterator[PostgresServer]:
    """A server of the test's own, to be broken."""
    server = make_postgres()
    try:
        server.start()
        yield server
    finally:
        server.stop()
