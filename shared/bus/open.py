"""Which bus the setting asks for."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from urllib.parse import urlsplit

from shared.bus.amqp import AmqpBus
from shared.bus.memory import MemoryBus
from shared.bus.port import Bus
from shared.clock import Clock


@asynccontextmanager
async def open_bus(url: str, clock: Clock) -> AsyncIterator[Bus]:
    """The bus at the address, closed on leaving.

    Args:
        url: `memory://`, or `amqp://` / `amqps://` with user, host and vhost.
        clock: for waits between tries.

    Raises:
        ValueError: the address names no bus; it tells the setting, never the password.
        Unavailable: the broker cannot be reached.
    """
    bus = _bus_at(url, clock)
    try:
        if isinstance(bus, AmqpBus):
            await bus.start()
        yield bus
    finally:
        await bus.close()


def _bus_at(url: str, clock: Clock) -> AmqpBus | MemoryBus:
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname, parts.port
    except ValueError:
        raise ValueError("SLUICE_BUS_URL is no address") from None
    if parts.scheme == "memory":
        return MemoryBus(clock)
    if parts.scheme in ("amqp", "amqps") and host:
        return AmqpBus(url, clock)
    raise ValueError(f"SLUICE_BUS_URL has to be memory:// or amqp://user:password@host/vhost, not {parts.scheme!r}")
