"""`/healthz`, `/readyz`, `/metrics`: liveness is this process alone, readiness is what it needs (field report 50)."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable

from aiohttp import web
from prometheus_client import CollectorRegistry

from shared.clock import Clock
from shared.telemetry.metrics import render

Probe = Callable[[], Awaitable[object]]

PROBE_SECONDS = 1.0
STEADY_SECONDS = 5.0
"""How long a change must last before readiness follows: what flaps faster changes nothing."""


class Readiness:
    """Whether a role should get traffic, slow to change its mind. Pure; the first observation counts at once."""

    def __init__(self) -> None:
        self.ready: bool | None = None
        self._other_since: float | None = None

    def observe(self, *, ok: bool, now: float) -> None:
        """Notes what all probes together came to, at a monotonic time."""
        if self.ready is None:
            self.ready = ok
        if ok is self.ready:
            self._other_since = None
        elif self._other_since is None:
            self._other_since = now
        elif now - self._other_since >= STEADY_SECONDS:
            self.ready, self._other_since = ok, None


class Probes:
    """What a role needs to be ready, asked every second.

    Args:
        clock: time.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._probes: dict[str, Probe] = {}
        self._readiness = Readiness()
        self._found: dict[str, str] = {}

    def add(self, name: str, probe: Probe) -> None:
        """A dependency; its probe raises when it is away."""
        self._probes[name] = probe

    @contextlib.asynccontextmanager
    async def watching(self) -> AsyncIterator[None]:
        """Asks once now, and then every second."""
        await self._look()
        task = asyncio.create_task(self._watch(), name="readiness")
        try:
            yield
        finally:
            task.cancel()

    def report(self) -> tuple[bool, dict[str, str]]:
        """Whether it is ready, and for each dependency "ok" or what was wrong at the last look."""
        return bool(self._readiness.ready), dict(self._found)

    async def _watch(self) -> None:
        while True:
            await self._clock.sleep(PROBE_SECONDS)
            await self._look()

    async def _look(self) -> None:
        states = await asyncio.gather(*(_ask(probe) for probe in self._probes.values()))
        self._found = dict(zip(self._probes, states, strict=True))
        self._readiness.observe(ok=all(state == "ok" for state in states), now=self._clock.monotonic())


async def _ask(probe: Probe) -> str:
    try:
        await probe()
    except Exception as error:  # noqa: BLE001 - whatever it is, it is the answer
        return type(error).__name__
    return "ok"


def admin_routes(registry: CollectorRegistry, probes: Probes) -> list[web.RouteDef]:
    """The routes of every role."""

    async def healthz(request: web.Request) -> web.Response:
        del request
        return web.json_response({"status": "ok"})

    async def readyz(request: web.Request) -> web.Response:
        del request
        ready, found = probes.report()
        body = {"status": "ok" if ready else "unavailable", "checks": found}
        return web.json_response(body, status=200 if ready else 503)

    async def metrics(request: web.Request) -> web.Response:
        del request
        return web.Response(body=render(registry), headers={"Content-Type": "text/plain; version=0.0.4"})

    return [web.get("/healthz", healthz), web.get("/readyz", readyz), web.get("/metrics", metrics)]
