"""`/healthz`, `/readyz`, `/metrics`: liveness is this process alone, readiness is what it needs (field report 50)."""

from collections.abc import Awaitable, Callable

from aiohttp import web
from prometheus_client import CollectorRegistry

from shared.telemetry.metrics import render

Probe = Callable[[], Awaitable[object]]


class Probes:
    """What a role needs to be ready."""

    def __init__(self) -> None:
        self._probes: dict[str, Probe] = {}

    def add(self, name: str, probe: Probe) -> None:
        """A dependency; its probe raises when it is away."""
        self._probes[name] = probe

    async def check(self) -> dict[str, str]:
        """Each dependency: "ok", or what is wrong."""
        return {name: await _ask(probe) for name, probe in self._probes.items()}


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
        found = await probes.check()
        ready = all(state == "ok" for state in found.values())
        body = {"status": "ok" if ready else "unavailable", "checks": found}
        return web.json_response(body, status=200 if ready else 503)

    async def metrics(request: web.Request) -> web.Response:
        del request
        return web.Response(body=render(registry), headers={"Content-Type": "text/plain; version=0.0.4"})

    return [web.get("/healthz", healthz), web.get("/readyz", readyz), web.get("/metrics", metrics)]
