"""The shared state in both its kinds, and a bounded wait, for the contract suites."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest

from shared.state.client import State, open_state

KINDS = ("memory", "redis")


@asynccontextmanager
async def state_of(request: pytest.FixtureRequest) -> AsyncGenerator[State]:
    """A state of the kind that the fixture is parametrised with."""
    kind: str = request.param
    url = "memory://" if kind == "memory" else str(request.getfixturevalue("redis_url"))
    async with open_state(url) as state:
        yield state


async def until(holds: Callable[[], Awaitable[bool]]) -> None:
    """Asks again and again, for at most twenty seconds."""
    async with asyncio.timeout(20):
        while not await holds():  # noqa: ASYNC110 - a server tells nobody that a key has expired
            await asyncio.sleep(0.005)
