"""The shared state in both its kinds, for the contract suites."""

from collections.abc import AsyncGenerator
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
