from collections.abc import AsyncGenerator
from uuid import uuid4

import pytest

from shared.clock import ManualClock, SystemClock
from shared.state.client import StateUnavailable, open_state
from shared.state.leases import Leases
from shared.state.memory_leases import MemoryLeases
from tests.contract.states import KINDS, state_of, until
from tests.support.redis import RedisServer

TTL = 30.0
SHORT = 0.05


@pytest.fixture(params=[*KINDS, "manual"])
async def leases(request: pytest.FixtureRequest) -> AsyncGenerator[Leases | MemoryLeases]:
    """Leases in process, on a server, and those for tests."""
    if request.param == "manual":
        yield MemoryLeases(SystemClock())
        return
    async with state_of(request) as state:
        yield Leases(state)


@pytest.fixture
def name() -> str:
    """A name of the test's own."""
    return f"delivery.{uuid4()}"


async def test_a_lease_has_one_holder(leases: Leases, name: str) -> None:
    """The second is refused."""
    assert await leases.acquire(name, "one", TTL) is not None
    assert await leases.acquire(name, "two", TTL) is None
    assert await leases.holders([name, name + "x"]) == {name: "one"}


async def test_the_same_owner_gets_the_same_epoch(leases: Leases, name: str) -> None:
    """Acquiring again is no new tenure."""
    assert await leases.acquire(name, "one", TTL) == await leases.acquire(name, "one", TTL)


async def test_epochs_grow_from_holder_to_holder(leases: Leases, name: str) -> None:
    """So that what an old holder sends can be told."""
    first = await leases.acquire(name, "one", TTL) or 0
    assert await leases.release(name, "one", first)
    second = await leases.acquire(name, "two", TTL) or 0
    assert second > first > 0


async def test_an_owner_with_a_space_or_another_alphabet_is_kept_whole(leases: Leases, name: str) -> None:
    """An owner's name is anything."""
    await leases.acquire(name, "pod 7 é", TTL)
    assert await leases.holders([name]) == {name: "pod 7 é"}


async def test_only_the_holder_of_this_epoch_releases(leases: Leases, name: str) -> None:
    """Neither another owner nor an older tenure."""
    epoch = await leases.acquire(name, "one", TTL) or 0
    assert not await leases.release(name, "two", epoch)
    assert not await leases.release(name, "one", epoch - 1)
    assert await leases.release(name, "one", epoch)
    assert not await leases.release(name, "one", epoch)


async def test_renewal_tells_what_is_still_held(leases: Leases, name: str) -> None:
    """Others' leases are not in the answer."""
    mine = await leases.acquire(name, "one", TTL) or 0
    await leases.acquire(name + "x", "two", TTL)
    assert await leases.renew_all("one", {name: mine, name + "x": mine}, TTL) == {name}


async def test_renewal_prolongs(leases: Leases, name: str) -> None:
    """It outlives a lease of the first term that was taken later."""
    epoch = await leases.acquire(name, "one", SHORT) or 0
    assert await leases.renew_all("one", {name: epoch}, TTL) == {name}
    await leases.acquire(name + "y", "one", SHORT)

    async def passed() -> bool:
        return await leases.holders([name + "y"]) == {}

    await until(passed)
    assert await leases.acquire(name, "two", TTL) is None


async def test_an_expired_lease_is_free(leases: Leases, name: str) -> None:
    """The old holder hears so when it renews."""
    epoch = await leases.acquire(name, "one", SHORT) or 0

    async def taken() -> bool:
        return await leases.acquire(name, "two", TTL) is not None

    await until(taken)
    assert await leases.renew_all("one", {name: epoch}, TTL) == set()
    assert await leases.holders([name]) == {name: "two"}


async def test_a_renewal_does_not_undo_a_release(leases: Leases, name: str) -> None:
    """They may cross on their way."""
    epoch = await leases.acquire(name, "one", TTL) or 0
    await leases.release(name, "one", epoch)
    assert await leases.renew_all("one", {name: epoch}, TTL) == set()
    assert await leases.holders([name]) == {}


async def test_a_renewal_does_not_take_back_what_another_has_had_since(leases: Leases, name: str) -> None:
    """Even when it is free again."""
    first = await leases.acquire(name, "one", TTL) or 0
    await leases.release(name, "one", first)
    second = await leases.acquire(name, "two", TTL) or 0
    await leases.release(name, "two", second)
    assert await leases.renew_all("one", {name: first}, TTL) == set()


async def test_many_are_taken_in_one_call(leases: Leases, name: str) -> None:
    """All but the one that is taken."""
    names = [f"{name}.{p}" for p in range(64)]
    await leases.acquire(names[3], "two", TTL)
    assert sorted(await leases.acquire_all(names, "one", TTL)) == sorted(set(names) - {names[3]})


async def test_members_see_one_another(leases: Leases, name: str) -> None:
    """Sorted, and less those who left."""
    assert await leases.join(name, "b", TTL) == ["b"]
    assert await leases.join(name, "a", TTL) == ["a", "b"]
    await leases.leave(name, "b")
    assert await leases.join(name, "a", TTL) == ["a"]


async def test_a_member_that_is_silent_is_no_longer_live(leases: Leases, name: str) -> None:
    """Once its ttl is over."""
    await leases.join(name, "gone", SHORT)

    async def alone() -> bool:
        return await leases.join(name, "here", TTL) == ["here"]

    await until(alone)


async def test_a_member_learns_whether_it_was_known(leases: Leases, name: str) -> None:
    """At its first beat it was not."""
    assert not (await leases.beat(name, "one", TTL)).known
    assert (await leases.beat(name, "one", TTL)).known


async def test_flushall_is_mended_by_the_next_renewal_with_the_same_epoch(redis_server: RedisServer) -> None:
    """Nobody has had it since."""
    async with open_state(redis_server.url) as state:
        leases = Leases(state)
        epoch = await leases.acquire("p", "one", TTL) or 0
        with redis_server.admin() as admin:
            admin.flushall()
        assert await leases.renew_all("one", {"p": epoch}, TTL) == {"p"}
        assert await leases.acquire("p", "one", TTL) == epoch


async def test_after_flushall_another_holder_has_a_greater_epoch_and_keeps_it(redis_server: RedisServer) -> None:
    """Counters begin at the server's time."""
    async with open_state(redis_server.url) as state:
        leases = Leases(state)
        epoch = await leases.acquire("p", "one", TTL) or 0
        with redis_server.admin() as admin:
            admin.flushall()
        later = await leases.acquire("p", "two", TTL) or 0
        assert later > epoch
        assert await leases.renew_all("one", {"p": epoch}, TTL) == set()
        assert await leases.renew_all("two", {"p": later}, TTL) == {"p"}


async def test_every_key_expires(redis_server: RedisServer) -> None:
    """Nothing is left in a Redis that nobody uses."""
    async with open_state(redis_server.url) as state:
        leases = Leases(state)
        epoch = await leases.acquire("p", "one", TTL) or 0
        await leases.renew_all("one", {"p": epoch}, TTL)
        await leases.join("g", "one", TTL)
        await leases.release("p", "one", epoch)
        with redis_server.admin() as admin:
            assert [key for key in admin.scan_iter() if admin.pttl(key) < 0] == []


async def test_leases_in_memory_can_be_away_and_forget() -> None:
    """The faults that tests ask for; a jump of the wall clock is none."""
    clock = ManualClock()
    leases = MemoryLeases(clock)
    epoch = await leases.acquire("p", "one", TTL) or 0
    clock.jump(600)
    assert await leases.acquire("p", "two", TTL) is None
    leases.away = True
    with pytest.raises(StateUnavailable):
        await leases.renew_all("one", {"p": epoch}, TTL)
    leases.away = False
    leases.forget()
    assert await leases.renew_all("one", {"p": epoch}, TTL) == {"p"}
