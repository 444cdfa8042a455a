import asyncio
from collections.abc import Callable

from shared.clock import SystemClock
from shared.partitions import PartitionOwner
from shared.state.client import open_state
from shared.state.leases import Leases
from tests.contract import states
from tests.support.redis import RedisServer

P = 8


class Work:
    """Notes who works on what, and any partition that two worked on at once."""

    def __init__(self, member: str, working: dict[int, set[str]], shared: list[int]) -> None:
        self.member = member
        self.changes = 0
        self._working = working
        self._shared = shared

    async def acquired(self, p: int, epoch: int) -> None:
        """Begins to work on it."""
        assert epoch > 0
        self.changes += 1
        self._working[p].add(self.member)
        if len(self._working[p]) > 1:
            self._shared.append(p)

    async def released(self, p: int) -> None:
        """Ends its work."""
        self.changes += 1
        await asyncio.sleep(0)
        self._working[p].discard(self.member)

    async def lost(self, p: int) -> None:
        """Ends its work at once."""
        self.changes += 1
        self._working[p].discard(self.member)


async def until(holds: Callable[[], bool]) -> None:
    """Asks again and again, for at most twenty seconds."""

    async def asked() -> bool:
        return holds()

    await states.until(asked)


async def test_owners_on_redis_share_replace_and_survive_flushall(redis_server: RedisServer) -> None:
    """No partition is ever worked on by both."""
    working: dict[int, set[str]] = {p: set() for p in range(P)}
    shared: list[int] = []
    async with open_state(redis_server.url) as state:
        works = [Work(member, working, shared) for member in "ab"]
        a, b = (
            PartitionOwner("g", work.member, P, Leases(state), SystemClock(), work, ttl=1.5, beat=0.3) for work in works
        )
        running_a, running_b = asyncio.create_task(a.run()), asyncio.create_task(b.run())
        await until(lambda: len(a.owned) == len(b.owned) == 4)
        changes = [work.changes for work in works]
        with redis_server.admin() as admin:
            admin.flushall()
            await until(lambda: admin.dbsize() >= P)
        assert [work.changes for work in works] == changes
        running_a.cancel()
        await asyncio.gather(running_a, return_exceptions=True)
        await until(lambda: len(b.owned) == P)
        await b.stop()
        await running_b
    assert shared == []
    assert not any(working.values())


async def test_owners_come_back_after_a_restart_of_redis(redis_server: RedisServer) -> None:
    """All is let go while it is away."""
    working: dict[int, set[str]] = {p: set() for p in range(P)}
    async with open_state(redis_server.url) as state:
        work = Work("a", working, [])
        owner = PartitionOwner("g", "a", P, Leases(state), SystemClock(), work, ttl=0.6, beat=0.1)
        running = asyncio.create_task(owner.run())
        await until(lambda: len(owner.owned) == P)
        redis_server.kill()
        await until(lambda: not any(working.values()))
        redis_server.start()
        await until(lambda: len(owner.owned) == P)
        await owner.stop()
        await running
