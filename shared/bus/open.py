"""From SLUICE_BUS_URL to a bus."""

import contextlib
from collections.abc import AsyncGenerator

from shared.bus.amqp import open_amqp
from shared.bus.memory import MemoryBus
from shared.bus.port import Bus
from shared.clock import Clock


@contextlib.asynccontextmanager
async def open_bus(url: str, clock: Clock) -> AsyncGenerator[Bus]:
    """A bus that is connected.

    Args:
        url: `memory://` or `amqp://…`.
        clock: for pauses between tries.

    Raises:
        ValueError: the URL is neither; it names SLUICE_BUS_URL.
        OSError: the broker cannot be reached.
    """
    if url.startswith("memory://"):
        yield MemoryBus(clock)
    elif url.startswith(("amqp://", "amqps://")):
        async with open_amqp(url, clock) as bus:
            yield bus
    else:
        raise ValueError("SLUICE_BUS_URL: memory:// or amqp://… is needed")
