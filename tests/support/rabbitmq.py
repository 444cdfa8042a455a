"""A real RabbitMQ for tests, and the fixtures that give it: Debian's rabbitmq-server on free ports of the loopback."""

import os
import secrets
import shlex
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.containers import Container, wants_docker

_STARTS_WITHIN = 60.0
_STOPS_WITHIN = 20.0
_PROGRAMS = Path("/usr/lib/rabbitmq/bin")  # the wrappers on the path insist on a user of their own


class RabbitServer:
    """A RabbitMQ node with its own port mapper, data and cookie, in a folder that goes with it."""

    def __init__(self) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="sluice-rabbitmq-"))
        self.port, distribution, mapper = free_ports(3)
        self._node = f"sluice-{secrets.token_hex(4)}@localhost"
        self._process: subprocess.Popen[bytes] | None = None
        self._mapper: subprocess.Popen[bytes] | None = None
        self._environment = self._environment_of(distribution, mapper)

    @property
    def url(self) -> str:
        """Its address, as SLUICE_BUS_URL has it."""
        return f"amqp://guest:guest@127.0.0.1:{self.port}/"

    @property
    def pid(self) -> int:
        """Its process id, while it runs."""
        assert self._process is not None
        return self._process.pid

    def start(self) -> None:
        """Starts it and waits until it answers."""
        if self._mapper is None:
            self._mapper = self._spawn("epmd", "-port", self._environment["ERL_EPMD_PORT"])
        self._process = self._spawn(str(_PROGRAMS / "rabbitmq-server"))
        deadline = time.monotonic() + _STARTS_WITHIN
        while not speaks_amqp(self.port):
            if time.monotonic() > deadline or self._process.poll() is not None:
                pytest.fail(f"rabbitmq-server does not start: {(self._folder / 'output').read_text()[-2000:]}")
            time.sleep(0.1)

    def stop(self) -> None:
        """Ends it in order, keeping its data."""
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        """Ends it without a word, keeping its data."""
        self._end(signal.SIGKILL)

    def restart(self) -> None:
        """Stops it and starts it anew, on the same port and data."""
        self.stop()
        self.start()

    def close(self) -> None:
        """Ends it, its port mapper too, and removes its folder."""
        self._end(signal.SIGKILL)
        if self._mapper is not None:
            _end_group(self._mapper, signal.SIGKILL)
            self._mapper = None
        shutil.rmtree(self._folder, ignore_errors=True)

    def close_connections(self) -> None:
        """Has the broker close every client's connection."""
        self.control("close_all_connections", "a test")

    def add_vhost(self) -> str:
        """The address of a new, empty vhost."""
        name = f"test-{secrets.token_hex(4)}"
        self.control("add_vhost", name)
        self.control("set_permissions", "-p", name, "guest", ".*", ".*", ".*")
        return f"{self.url}{name}"

    def control(self, *arguments: str) -> str:
        """Runs rabbitmqctl and returns what it says."""
        done = subprocess.run(  # noqa: S603 - a program of the system with arguments of ours
            [str(_PROGRAMS / "rabbitmqctl"), "-n", self._node, *arguments],
            env=self._environment,
            check=True,
            capture_output=True,
            timeout=60,
        )
        return done.stdout.decode()

    def _environment_of(self, distribution: int, mapper: int) -> dict[str, str]:
        folder = self._folder
        for name, text in (("plugins", "[]."), (".erlang.cookie", secrets.token_hex(16)), ("env.conf", "")):
            (folder / name).write_text(text)
        (folder / "rabbitmq.conf").write_text("loopback_users.guest = true\nvm_memory_high_watermark.absolute = 1GB\n")
        (folder / ".erlang.cookie").chmod(0o400)
        return os.environ | {
            "HOME": str(folder),
            "LANG": "C.UTF-8",
            "ERL_EPMD_PORT": str(mapper),
            "ERL_EPMD_ADDRESS": "127.0.0.1",
            "RABBITMQ_NODENAME": self._node,
            "RABBITMQ_NODE_IP_ADDRESS": "127.0.0.1",
            "RABBITMQ_NODE_PORT": str(self.port),
            "RABBITMQ_DIST_PORT": str(distribution),
            "RABBITMQ_MNESIA_BASE": str(folder / "data"),
            "RABBITMQ_LOG_BASE": str(folder / "log"),
            "RABBITMQ_PID_FILE": str(folder / "pid"),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(folder / "plugins"),
            "RABBITMQ_CONF_ENV_FILE": str(folder / "env.conf"),
            "RABBITMQ_CONFIG_FILE": str(folder / "rabbitmq.conf"),
            # One scheduler that does not spin, and a stop on SIGTERM by the server itself.
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "+S 1:1 +sbwt none +sbwtdcpu none +sbwtdio none",
            "RABBITMQ_ALLOW_INPUT": "",
        }

    def _spawn(self, *command: str) -> subprocess.Popen[bytes]:
        with (self._folder / "output").open("ab") as output:
            return subprocess.Popen(  # noqa: S603 - programs of the system with arguments of ours
                command,
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,  # the server is a shell and its child: both get the signal
            )

    def _end(self, how: signal.Signals) -> None:
        if self._process is not None:
            _end_group(self._process, how)
            self._process = None


class RabbitContainer(RabbitServer):
    """The same in a container."""

    def __init__(self) -> None:
        (self.port,) = free_ports(1)
        self._container = Container("rabbitmq", self.port, lambda: speaks_amqp(self.port))

    def start(self) -> None:
        """See `RabbitServer.start`."""
        self._container.start()

    def stop(self) -> None:
        """See `RabbitServer.stop`."""
        self._container.stop()

    def kill(self) -> None:
        """See `RabbitServer.kill`."""
        self._container.kill()

    def close(self) -> None:
        """See `RabbitServer.close`."""
        self._container.close()

    def control(self, *arguments: str) -> str:
        """See `RabbitServer.control`."""
        return self._container.run("rabbitmqctl", *(shlex.quote(argument) for argument in arguments))


def rabbit_server() -> RabbitServer:
    """A server, not started yet: Debian's, or one in a container."""
    is_installed = (_PROGRAMS / "rabbitmq-server").exists()
    return RabbitContainer() if wants_docker(is_installed, "apt-get install rabbitmq-server") else RabbitServer()


def _end_group(process: subprocess.Popen[bytes], how: signal.Signals) -> None:
    try:
        os.killpg(process.pid, how)
        process.wait(timeout=_STOPS_WITHIN)
    except ProcessLookupError:
        process.wait(timeout=_STOPS_WITHIN)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait(timeout=_STOPS_WITHIN)


def free_ports(count: int) -> list[int]:
    """Ports of the loopback that nobody listens on just now, all different."""
    probes = [socket.socket() for _ in range(count)]
    try:
        for probe in probes:
            probe.bind(("127.0.0.1", 0))
        return [int(probe.getsockname()[1]) for probe in probes]
    finally:
        for probe in probes:
            probe.close()


def speaks_amqp(port: int) -> bool:
    """Whether a broker answers the protocol's greeting there."""
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=1) as probe:
            probe.sendall(b"AMQP\x00\x00\x09\x01")
            return len(probe.recv(7)) > 0
    except OSError:
        return False


@pytest.fixture(scope="session")
def rabbitmq_url() -> Iterator[str]:
    """The address of a RabbitMQ to share: SLUICE_TEST_RABBITMQ_URL, or a server of our own."""
    given = os.environ.get("SLUICE_TEST_RABBITMQ_URL")
    if given:
        yield given
        return
    server = rabbit_server()
    try:
        server.start()
        yield server.url
    finally:
        server.close()


@pytest.fixture(scope="module")
def rabbitmq_server() -> Iterator[RabbitServer]:
    """A server of the module's own, to be broken; each test leaves it running."""
    server = rabbit_server()
    try:
        server.start()
        yield server
    finally:
        server.close()
