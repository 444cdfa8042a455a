from collections.abc import AsyncGenerator

import pytest

from shared.state.client import State, open_state
from shared.state.script_board import Board
from tests.contract.states import KINDS, state_of
from tests.support.redis import RedisServer


@pytest.fixture(params=KINDS)
async def state(request: pytest.FixtureRequest) -> AsyncGenerator[State]:
    """An in-process state, then a real one; the board is empty."""
    async with state_of(request) as state:
        await Board(state).clear()
        yield state


async def test_the_script_is_what_was_set_last(state: State) -> None:
    """Byte for byte."""
    board = Board(state)
    assert await board.get_script() is None
    await board.set_script(b"one")
    await board.set_script(b"\x00two")
    assert await board.get_script() == b"\x00two"


async def test_calls_are_read_in_order(state: State) -> None:
    """By pages; ordinals count from one."""
    board = Board(state)
    assert await board.record([b"a", b"b"], [None, None]) == [(1, True), (2, True)]
    assert await board.record([b"c"], [None]) == [(3, True)]
    assert await board.calls(0, 10) == [b"a", b"b", b"c"]
    assert await board.calls(1, 1) == [b"b"]
    assert await board.calls(3, 10) == []
    assert await board.record([], []) == []


async def test_a_known_idempotency_key_stores_nothing(state: State) -> None:
    """Neither within a batch nor later; an empty key is a key."""
    board = Board(state)
    assert await board.record([b"a", b"a2", b"b"], ["k", "k", ""]) == [(1, True), (1, False), (2, True)]
    assert await board.record([b"a3", b"b2"], ["k", ""]) == [(1, False), (2, False)]
    assert await board.calls(0, 10) == [b"a", b"b"]


async def test_beyond_the_cap_the_oldest_go_and_ordinals_stay(state: State) -> None:
    """Their keys are forgotten with them."""
    board = Board(state, cap=3)
    for n in range(1, 6):
        assert await board.record([b"%d" % n], [f"k{n}"]) == [(n, True)]
    assert await board.calls(0, 10) == [b"3", b"4", b"5"]
    assert await board.calls(3, 1) == [b"4"]
    assert await board.calls(0, 2) == []
    assert await board.record([b"5", b"1"], ["k5", "k1"]) == [(5, False), (6, True)]


async def test_counters_count_each_for_itself(state: State) -> None:
    """Also within one batch."""
    board = Board(state)
    assert await board.next_ordinals(["x", "y", "x"]) == [1, 1, 2]
    assert await board.next_ordinals(["x"]) == [3]
    assert await board.next_ordinals([]) == []


async def test_clearing_forgets_all(state: State) -> None:
    """Script, calls, keys and counters."""
    board = Board(state)
    await board.set_script(b"s")
    await board.record([b"a"], ["k"])
    await board.next_ordinals(["x"])
    await board.clear()
    assert (await board.get_script(), await board.calls(0, 9), await board.next_ordinals(["x"])) == (None, [], [1])
    assert await board.record([b"a"], ["k"]) == [(1, True)]


async def test_every_key_expires(redis_server: RedisServer) -> None:
    """Within a day."""
    async with open_state(redis_server.url) as state:
        board = Board(state)
        await board.set_script(b"s")
        await board.record([b"a"], ["k"])
        await board.next_ordinals(["x"])
        with redis_server.admin() as admin:
            ages = {key: admin.pttl(key) for key in admin.scan_iter("recording:*")}
        assert len(ages) == 5
        assert all(0 < age <= 86_400_000 for age in ages.values())
