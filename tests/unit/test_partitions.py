import asyncio
from collections.abc import AsyncGenerator, Callable

import pytest

from shared.clock import ManualClock
from shared.partitions import PartitionOwner
from shared.state.memory_leases import MemoryLeases

P = 8


class Work:
    """Handlers of one member that write down what happens, and check that no one else works on the same."""

    def __init__(self, member: str, working: dict[int, str]) -> None:
        self.member = member
        self.log: list[tuple[str, int]] = []
        self.drained = asyncio.Event()
        self.drained.set()
        self.refusals = 0
        self._working = working

    async def acquired(self, p: int, epoch: int) -> None:
        """Begins to work on it."""
        assert epoch > 0
        self.log.append(("acquired", p))
        if self.refusals:
            self.refusals -= 1
            raise ConnectionError("no broker")
        assert p not in self._working, f"{p} is still worked on by {self._working.get(p)}"
        self._working[p] = self.member

    async def released(self, p: int) -> None:
        """Ends its work."""
        self.log.append(("released", p))
        await self.drained.wait()
        del self._working[p]

    async def lost(self, p: int) -> None:
        """Ends its work at once."""
        self.log.append(("lost", p))
        self._working.pop(p, None)

    def count(self, what: str) -> int:
        """How often that happened."""
        return sum(kind == what for kind, _ in self.log)


class Fleet:
    """Members on one manual clock and one set of leases."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.leases = MemoryLeases(self.clock)
        self.working: dict[int, str] = {}
        self.works: dict[str, Work] = {}
        self.owners: dict[str, PartitionOwner] = {}
        self.tasks: dict[str, asyncio.Task[None]] = {}

    async def start(self, member: str, refusals: int = 0) -> PartitionOwner:
        """Starts a member, and lets it have its first beat."""
        work = self.works[member] = Work(member, self.working)
        work.refusals = refusals
        owner = self.owners[member] = PartitionOwner("g", member, P, self.leases, self.clock, work)
        self.tasks[member] = asyncio.create_task(owner.run())
        await self.clock.settle()
        return owner

    async def kill(self, member: str) -> None:
        """Ends a member without a word to the others."""
        self.tasks[member].cancel()
        await asyncio.gather(self.tasks[member], return_exceptions=True)

    def counts(self) -> list[int]:
        """How many partitions the members own, least first."""
        return sorted(len(owner.owned) for owner in self.owners.values())

    async def within(self, seconds: float, holds: Callable[[], bool]) -> bool:
        """Moves the clock on until it holds, for at most so long."""
        for _ in range(round(seconds / 0.1)):
            if holds():
                return True
            await self.clock.advance(0.1)
        return holds()


@pytest.fixture
async def fleet() -> AsyncGenerator[Fleet]:
    """An empty fleet."""
    fleet = Fleet()
    yield fleet
    for member in fleet.tasks:
        await fleet.kill(member)


async def test_a_lone_member_owns_all_at_once(fleet: Fleet) -> None:
    """It waits for no beat."""
    owner = await fleet.start("a")
    assert owner.owned == frozenset(range(P))
    assert fleet.working == dict.fromkeys(range(P), "a")


async def test_a_second_member_gets_its_share_within_two_beats(fleet: Fleet) -> None:
    """Handed back, not lost."""
    await fleet.start("a")
    await fleet.clock.advance(1.3)
    await fleet.start("b")
    assert await fleet.within(4, lambda: fleet.counts() == [4, 4])
    assert sorted(fleet.working) == list(range(P))
    assert fleet.works["a"].count("lost") == 0


async def test_many_members_share_evenly_and_then_nothing_moves(fleet: Fleet) -> None:
    """For a minute."""
    for member in "abc":
        await fleet.start(member)
    assert await fleet.within(8, lambda: fleet.counts() == [2, 3, 3])
    moved = [list(work.log) for work in fleet.works.values()]
    await fleet.clock.advance(60)
    assert [work.log for work in fleet.works.values()] == moved


async def test_a_killed_member_is_replaced_within_ten_seconds(fleet: Fleet) -> None:
    """Its leases and its membership run out."""
    await fleet.start("a")
    b = await fleet.start("b")
    assert await fleet.within(5, lambda: fleet.counts() == [4, 4])
    await fleet.kill("a")
    assert fleet.works["a"].count("lost") == 4
    assert await fleet.within(9, lambda: len(b.owned) == P)


async def test_a_partition_is_handed_over_only_when_drained_and_is_renewed_meanwhile(fleet: Fleet) -> None:
    """However long it takes."""
    a = await fleet.start("a")
    fleet.works["a"].drained.clear()
    b = await fleet.start("b")
    await fleet.clock.advance(60)
    assert (len(a.owned), len(b.owned)) == (4, 0)
    assert fleet.works["a"].log[P:] == [("released", p) for p in (7, 6, 5, 4)]
    fleet.works["a"].drained.set()
    assert await fleet.within(1, lambda: len(b.owned) == 4)
    assert fleet.works["a"].count("lost") == 0


async def test_stop_drains_all_gives_the_leases_back_and_leaves(fleet: Fleet) -> None:
    """In this order."""
    a = await fleet.start("a")
    fleet.works["a"].drained.clear()
    stopping = asyncio.create_task(a.stop())
    await fleet.clock.advance(30)
    assert not stopping.done()
    assert len(await fleet.leases.holders([f"g.{p}" for p in range(P)])) == P
    fleet.works["a"].drained.set()
    await stopping
    assert fleet.tasks["a"].done()
    assert fleet.works["a"].count("released") == P
    assert fleet.works["a"].count("lost") == 0
    assert await fleet.leases.holders([f"g.{p}" for p in range(P)]) == {}
    assert await fleet.leases.join("g", "z", 6) == ["z"]


async def test_stop_before_run_and_after_it_returns_at_once(fleet: Fleet) -> None:
    """There is nothing to drain."""
    owner = PartitionOwner("g", "x", P, fleet.leases, fleet.clock, Work("x", {}))
    await owner.stop()
    await owner.run()
    await owner.stop()
    assert owner.owned == frozenset()


async def test_a_stopped_member_is_replaced_at_the_next_beat(fleet: Fleet) -> None:
    """No lease has to run out."""
    a = await fleet.start("a")
    b = await fleet.start("b")
    assert await fleet.within(5, lambda: fleet.counts() == [4, 4])
    await a.stop()
    assert await fleet.within(2.1, lambda: len(b.owned) == P)


async def test_without_renewal_for_a_ttl_all_is_lost_and_comes_back(fleet: Fleet) -> None:
    """Counted from the last renewal that succeeded."""
    a = await fleet.start("a")
    fleet.leases.away = True
    await fleet.clock.advance(5.9)
    assert len(a.owned) == P
    await fleet.clock.advance(0.2)
    assert a.owned == frozenset()
    assert fleet.works["a"].count("lost") == P
    fleet.leases.away = False
    assert await fleet.within(8, lambda: len(a.owned) == P)


async def test_a_short_absence_of_the_state_moves_nothing(fleet: Fleet) -> None:
    """Shorter than the ttl."""
    a = await fleet.start("a")
    fleet.leases.away = True
    await fleet.clock.advance(3.5)
    fleet.leases.away = False
    await fleet.clock.advance(30)
    assert len(a.owned) == P
    assert len(fleet.works["a"].log) == P


async def test_draining_is_cut_short_when_the_lease_is_lost(fleet: Fleet) -> None:
    """Another may own it by then."""
    a = await fleet.start("a")
    fleet.works["a"].drained.clear()
    stopping = asyncio.create_task(a.stop())
    await fleet.clock.advance(1)
    fleet.leases.away = True
    await fleet.clock.advance(7)
    assert stopping.done()
    assert fleet.works["a"].count("lost") == P
    assert fleet.working == {}


async def test_forgetting_everything_moves_nothing(fleet: Fleet) -> None:
    """FLUSHALL, five times, at different points of a beat."""
    await fleet.start("a")
    await fleet.start("b")
    assert await fleet.within(5, lambda: fleet.counts() == [4, 4])
    logs = [list(work.log) for work in fleet.works.values()]
    for _ in range(5):
        fleet.leases.forget()
        await fleet.clock.advance(7.3)
    assert [work.log for work in fleet.works.values()] == logs
    assert fleet.counts() == [4, 4]


async def test_a_lease_taken_by_another_is_lost_at_the_next_beat(fleet: Fleet) -> None:
    """That one alone."""
    a = await fleet.start("a")
    fleet.leases.forget()
    await fleet.leases.acquire("g.3", "thief", 5)
    await fleet.clock.advance(2.1)
    assert a.owned == frozenset(range(P)) - {3}
    assert fleet.works["a"].log[P:] == [("lost", 3)]


async def test_a_partition_that_cannot_be_taken_up_is_given_back_and_tried_again(fleet: Fleet) -> None:
    """And what was never taken up is not drained."""
    a = await fleet.start("a", refusals=P)
    assert await fleet.leases.holders([f"g.{p}" for p in range(P)]) == {}
    assert await fleet.within(1, lambda: len(a.owned) == P)
    assert fleet.works["a"].count("acquired") == 2 * P
    assert fleet.works["a"].count("released") == 0


async def test_a_wall_clock_that_jumps_changes_nothing(fleet: Fleet) -> None:
    """Field report 40."""
    a = await fleet.start("a")
    for seconds in (600, -1200):
        fleet.clock.jump(seconds)
        await fleet.clock.advance(10)
    assert len(a.owned) == P
    assert len(fleet.works["a"].log) == P


async def test_members_that_come_and_go_never_share_a_partition(fleet: Fleet) -> None:
    """Work.acquired asserts it, and what it refused would not be worked on."""
    await fleet.start("a")
    for member in "bcd":
        await fleet.clock.advance(0.7)
        await fleet.start(member)
    assert await fleet.within(10, lambda: fleet.counts() == [2, 2, 2, 2])
    await fleet.kill("a")
    await fleet.owners["b"].stop()
    assert await fleet.within(10, lambda: fleet.counts() == [0, 0, 4, 4])
    acquired = sum(work.count("acquired") for work in fleet.works.values())
    done = sum(work.count("released") + work.count("lost") for work in fleet.works.values())
    assert acquired - done == P == len(fleet.working)
