"""The two systems, as processes against the same RabbitMQ, Redis and PostgreSQL."""

import asyncio
import contextlib
import os
import secrets
import sys
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Protocol

import aiohttp
import asyncpg
import msgspec
from prometheus_client.parser import text_string_to_metric_families
from redis.asyncio import Redis

from tests.support.postgres import PostgresServer
from tests.support.process import API_KEY, Fleet
from tests.support.rabbitmq import RabbitServer
from tests.support.redis import RedisServer


class Servers:
    """RabbitMQ, Redis and PostgreSQL of this run."""

    def __init__(self, rabbit: RabbitServer, redis: RedisServer, postgres: PostgresServer) -> None:
        self.rabbit = rabbit
        self.redis = redis
        self.postgres = postgres

    def cpu(self) -> dict[str, float]:
        """CPU seconds so far, by server."""
        named = {"rabbitmq": self.rabbit.pid, "redis": self.redis.pid, "postgresql": self.postgres.pid}
        return {name: cpu_of(pid) for name, pid in named.items()}


def cpu_of(root: int) -> float:
    """CPU seconds of a process and all its descendants."""
    parents: dict[int, int] = {}
    ticks: dict[int, int] = {}
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
            parents[int(folder.name)] = int(fields[1])
            ticks[int(folder.name)] = sum(int(field) for field in fields[11:15])
    total = 0
    for pid, spent in ticks.items():
        at: int | None = pid
        while at is not None and at != root:
            at = parents.get(at)
        total += spent if at == root else 0
    return total / os.sysconf("SC_CLK_TCK")


@contextlib.asynccontextmanager
async def servers() -> AsyncIterator[Servers]:
    """Starts them on free ports, in temporary folders."""
    rabbit, redis, postgres = RabbitServer(), RedisServer(), PostgresServer()
    try:
        for server in (rabbit, redis, postgres):
            await asyncio.to_thread(server.start)
        yield Servers(rabbit, redis, postgres)
    finally:
        rabbit.close()
        redis.stop()
        postgres.stop()


class System(Protocol):
    """What is measured."""

    name: str
    url: str
    headers: dict[str, str]
    card: str

    async def observe(self, streams: Sequence[tuple[str, str]]) -> list[int]:
        """The last stored sequence of each stream."""
        ...

    def cpu(self) -> dict[str, float]:
        """CPU seconds so far, by role."""
        ...

    async def calls(self) -> list[tuple[str, str]]:
        """What reached the platform as a complete message: (channel, message_id), in order; and forgets it."""
        ...


class Baseline:
    """See `bench.baseline`."""

    name = "baseline"
    card = "im.recording"

    def __init__(self, redis: Redis) -> None:
        self.url = ""
        self.headers: dict[str, str] = {}
        self._redis = redis
        self._pids: dict[str, int] = {}

    @classmethod
    @contextlib.asynccontextmanager
    async def started(cls, having: Servers) -> AsyncIterator["Baseline"]:
        """Runs its two processes."""
        async with contextlib.AsyncExitStack() as stack:
            redis = await stack.enter_async_context(Redis.from_url(having.redis.url))
            system = cls(redis)
            for role in ("edge", "worker"):
                command = ("-m", "bench.baseline", role, "--bus", having.rabbit.url, "--state", having.redis.url)
                process = await asyncio.create_subprocess_exec(sys.executable, *command, stdout=asyncio.subprocess.PIPE)
                stack.push_async_callback(process.wait)
                stack.callback(process.terminate)
                system._pids[role] = process.pid
                assert process.stdout is not None
                line = (await asyncio.wait_for(process.stdout.readline(), 30)).decode()
                if role == "edge":
                    system.url = line.split()[1]
            yield system

    async def observe(self, streams: Sequence[tuple[str, str]]) -> list[int]:
        """See `System.observe`."""
        found = await self._redis.mget([f"baseline:seq:{channel}:{message}" for channel, message in streams])
        return [int(value or 0) for value in found]

    def cpu(self) -> dict[str, float]:
        """See `System.cpu`."""
        return {role: cpu_of(pid) for role, pid in self._pids.items()}

    async def calls(self) -> list[tuple[str, str]]:
        """See `System.calls`."""
        found = await self._redis.lrange("baseline:calls", 0, -1)
        await self._redis.delete("baseline:calls")
        packets = [msgspec.json.decode(call) for call in found]
        return [(p["connector_channel_id"], p["payload"]["message_id"]) for p in packets]


_HEADS = """
local out = {}
for i = 1, #KEYS do out[i] = redis.call('GETRANGE', KEYS[i], 0, 15) end
return out
"""


class Sluice:
    """The fleet with every role in a process of its own and everything on."""

    card = "im.recording"

    def __init__(self, redis: Redis, fleet: Fleet, name: str) -> None:
        self.name = name
        self.headers = {"Authorization": f"Bearer {API_KEY}"}
        self.url = ""
        self.fleet = fleet
        self._redis = redis
        self._heads = redis.register_script(_HEADS)

    @classmethod
    @contextlib.asynccontextmanager
    async def started(cls, having: Servers, folder: Path, name: str = "sluice", **env: str) -> AsyncIterator["Sluice"]:
        """Runs its processes; another name is another fleet beside it, with a vhost and databases of its own."""
        own = name == "sluice"
        bus = having.rabbit.url if own else await asyncio.to_thread(having.rabbit.add_vhost)
        state = having.redis.url if own else having.redis.url.removesuffix("0") + "1"
        database = "bench_" + secrets.token_hex(6)
        connection = await asyncpg.connect(having.postgres.url)
        await connection.execute(f"CREATE DATABASE {database}")
        await connection.close()
        records = having.postgres.url.rsplit("/", 1)[0] + "/" + database
        fleet = Fleet(folder, bus, state, records, **env)
        async with Redis.from_url(state) as redis:
            system = cls(redis, fleet, name)
            try:
                edge = await fleet.add("edge", f"{name}-edge")
                for role in ("delivery", "aggregator", "listener"):
                    await fleet.add(role, f"{name}-{role}")
                system.url = edge.url.replace("http", "ws", 1) + "/im.recording/ws"
                yield system
            finally:
                await fleet.stop()

    async def observe(self, streams: Sequence[tuple[str, str]]) -> list[int]:
        """See `System.observe`."""
        keys = [f"stream:text:{len(channel)}:{channel}:{message}" for channel, message in streams]
        return [int(head or 0) for head in await self._heads(keys=keys)]

    def cpu(self) -> dict[str, float]:
        """See `System.cpu`."""
        return {key.removeprefix(f"{self.name}-"): cpu_of(p.pid) for key, p in self.fleet.processes.items()}

    async def calls(self) -> list[tuple[str, str]]:
        """See `System.calls`: the last send or edit of each message is its complete text."""
        found = [msgspec.json.decode(call) for call in await self._redis.lrange("recording:calls", 0, -1)]
        await self._redis.delete("recording:calls", "recording:total", "recording:seen")
        sends = Counter((c["channel"], c["message_id"]) for c in found if c["kind"] == "send")
        last: dict[tuple[str, str], int] = {
            (c["channel"], c["message_id"]): n for n, c in enumerate(found) if c["kind"] in ("send", "edit")
        }
        ordered = sorted(last, key=lambda key: last[key])
        return [key for key in ordered for _ in range(sends[key])]

    async def metric(self, role: str, name: str, **labels: str) -> float:
        """The sum of a metric at a role's /metrics."""
        url = self.fleet.processes[f"{self.name}-{role}"].admin_url
        async with aiohttp.ClientSession() as session, session.get(f"{url}/metrics") as answer:
            text = await answer.text()
        return sum(
            sample.value
            for family in text_string_to_metric_families(text)
            for sample in family.samples
            if sample.name == name and labels.items() <= sample.labels.items()
        )

    def rss(self, role: str) -> int:
        """Resident bytes of a role."""
        lines = Path(f"/proc/{self.fleet.processes[f'{self.name}-{role}'].pid}/status").read_text().splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmRSS"))
