import asyncio
import heapq
import math
import time
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack
from uuid import uuid4

import pytest

from shared.state.budgets import (
    LONGEST_BLOCK,
    TYPING,
    Budgets,
    Cosmetic,
    Final,
    Need,
    Rate,
    Scope,
    fingerprint,
)
from shared.state.client import open_state
from tests.contract.states import KINDS, state_of, until
from tests.support.redis import RedisServer

HOUR = 3600.0


class Bot:
    """A credential of the test's own, and its needs. Rates in hours, where a test must not depend on its speed."""

    def __init__(self, bot: Rate, chat: Rate | None = None) -> None:
        self._credential = fingerprint(str(uuid4()))
        self._bot, self._chat = bot, chat or Rate(1, HOUR, burst=100)
        self.scope = self.at("bot")

    def at(self, name: str) -> Scope:
        """A scope of it."""
        return Scope("telegram", self._credential, name)

    def call(self, ticket: str, chat: str | None = None) -> Final:
        """A call to a chat, or to none."""
        return Final(ticket, self._needs(chat))

    def shown(self, reserve: float = 0.25, chat: str | None = None) -> Cosmetic:
        """A call that may be shed."""
        return Cosmetic(self._needs(chat), reserve)

    def _needs(self, chat: str | None) -> tuple[Need, ...]:
        whole = Need(self.scope, self._bot)
        return (whole,) if chat is None else (Need(self.at(chat), self._chat), whole)


@pytest.fixture(params=KINDS)
async def two(request: pytest.FixtureRequest) -> AsyncGenerator[tuple[Budgets, Budgets]]:
    """Two clients of one state: in process, then on a server, each with connections of its own."""
    async with AsyncExitStack() as stack:
        one = await stack.enter_async_context(state_of(request))
        other = one if request.param == "memory" else await stack.enter_async_context(state_of(request))
        yield Budgets(one), Budgets(other)


@pytest.fixture
def budgets(two: tuple[Budgets, Budgets]) -> Budgets:
    """One of them."""
    return two[0]


def hours(wait: float) -> float:
    """Rounded up by what a slow machine may have lost."""
    return math.ceil(wait / HOUR * 20) / 20


async def test_a_burst_goes_at_once_and_the_next_waits(budgets: Budgets) -> None:
    """In one call or in several."""
    bot = Bot(Rate(1, HOUR, burst=3))
    assert await budgets.take([bot.call("a"), bot.call("b")]) == [0, 0]
    go, wait = await budgets.take([bot.call("c"), bot.call("d")])
    assert (go, hours(wait)) == (0, 1)
    assert await budgets.take([]) == []
    assert await budgets.take([Final("no needs", ())]) == [0]


async def test_the_rate_is_kept(budgets: Budgets) -> None:
    """However often it is asked: in any time at most the burst and what the rate gives."""
    bot = Bot(Rate(50, 1, burst=2))
    begin, gone = time.monotonic(), 0
    while gone < 22:
        gone += (await budgets.take([bot.call("a")])).count(0)
    assert time.monotonic() - begin > 0.98 * (22 - 2) / 50


async def test_whoever_waits_as_told_goes(budgets: Budgets) -> None:
    """It needs no second try, but for a rounding."""
    bot = Bot(Rate(50, 1))
    tries = 0
    for n in range(10):
        while wait := (await budgets.take([bot.call(f"{n}")]))[0]:
            tries += 1
            await asyncio.sleep(wait + 0.001)
    assert tries <= 10


async def test_two_workers_share_one_budget(two: tuple[Budgets, Budgets]) -> None:
    """N workers do not get N times the budget."""
    one, other = two
    bot = Bot(Rate(1, HOUR, burst=10))
    calls = [bot.call(f"{n}") for n in range(8)]
    gone = [*await one.take(calls[:4]), *await other.take(calls[4:])]
    gone += [wait for n in range(8) for wait in await two[n % 2].take([bot.call(f"more {n}")])]
    assert gone.count(0) == 10


async def test_scopes_do_not_mix(budgets: Budgets) -> None:
    """Another credential, another chat."""
    bot, other = Bot(Rate(1, HOUR)), Bot(Rate(1, HOUR))
    assert await budgets.take([bot.call("a"), other.call("a")]) == [0, 0]
    chats = Bot(Rate(1, HOUR, burst=9), chat=Rate(1, HOUR))
    first, second, again = await budgets.take([chats.call("a", "1"), chats.call("b", "2"), chats.call("c", "1")])
    assert (first, second, hours(again)) == (0, 0, 1)


async def test_a_call_takes_from_all_its_scopes_or_from_none(budgets: Budgets) -> None:
    """Refused by its chat, it costs the bot nothing."""
    bot = Bot(Rate(1, HOUR, burst=3), chat=Rate(1, HOUR))
    assert await budgets.take([bot.call("a", "1")]) == [0]
    for n in range(5):
        assert (await budgets.take([bot.call(f"b{n}", "1"), bot.shown(chat="1")])).count(0) == 0
    assert (await budgets.take([bot.call(f"c{n}", f"{n}") for n in range(2, 6)])).count(0) == 2


async def test_cosmetic_calls_are_shed_before_finals(budgets: Budgets) -> None:
    """Typing first, then previews; a final gets the last of it."""
    bot = Bot(Rate(1, HOUR, burst=4))
    typing = [wait == 0 for wait in await budgets.take([bot.shown(TYPING)] * 4)]
    assert typing == [True, True, False, False]
    previews = [wait == 0 for wait in await budgets.take([bot.shown()] * 3)]
    assert previews == [True, False, False]
    assert await budgets.take([bot.call("final")]) == [0]


async def test_a_cosmetic_call_goes_also_where_the_burst_is_one(budgets: Budgets) -> None:
    """After a rest; a final needs less of it."""
    bot = Bot(Rate(1, HOUR))
    assert await budgets.take([bot.shown()]) == [0]
    shed, final = await budgets.take([bot.shown(), bot.call("a")])
    assert (hours(shed), hours(final)) == (1.25, 1)


async def test_a_shed_call_keeps_no_place(budgets: Budgets) -> None:
    """A hundred of them delay nothing."""
    bot = Bot(Rate(1, HOUR))
    await budgets.take([bot.call("a")])
    assert min(await budgets.take([bot.shown()] * 100)) > 0
    assert hours((await budgets.take([bot.call("b")]))[0]) == 1


async def test_a_cosmetic_call_does_not_go_before_finals_that_wait(budgets: Budgets) -> None:
    """It is shed for all of them and its reserve."""
    bot = Bot(Rate(1, HOUR))
    *_, shed = await budgets.take([bot.call("a"), bot.call("b"), bot.call("c"), bot.shown()])
    assert hours(shed) == 3.25


async def test_waiting_finals_keep_their_places(two: tuple[Budgets, Budgets]) -> None:
    """Whoever asks again, in whatever order, at whichever worker."""
    bot = Bot(Rate(1, HOUR))
    waits = await two[0].take([bot.call(ticket) for ticket in "abcd"])
    assert [hours(wait) for wait in waits] == [0, 1, 2, 3]
    waits = await two[1].take([bot.call(ticket) for ticket in "dcbe"])
    assert [hours(wait) for wait in waits] == [3, 2, 1, 4]


async def test_finals_go_in_the_order_in_which_they_asked(two: tuple[Budgets, Budgets]) -> None:
    """Though newcomers and cosmetic calls ask all the time."""
    one, other = (Budgets(budgets._state, turn_seconds=20, grace_seconds=20) for budgets in two)
    bot = Bot(Rate(50, 1))
    tickets = [f"{n:02}" for n in range(12)]
    begin, order = time.monotonic(), tickets[:1]
    waits = await one.take([bot.call(ticket) for ticket in tickets])
    line = sorted((wait, ticket) for wait, ticket in zip(waits, tickets, strict=True) if wait)
    while line:
        due, ticket = heapq.heappop(line)
        while (left := begin + due - time.monotonic()) > 0:
            shed, _ = await other.take([bot.shown(), bot.call("99")])
            assert shed > 0
            await asyncio.sleep(min(left, 0.004))
        (wait,) = await (one, other)[len(line) % 2].take([bot.call(ticket)])
        if wait:
            heapq.heappush(line, (time.monotonic() - begin + wait, ticket))
        else:
            order.append(ticket)
    assert order == tickets


async def test_a_final_that_does_not_come_back_loses_its_place(two: tuple[Budgets, Budgets]) -> None:
    """Its worker may be dead."""
    budgets = Budgets(two[0]._state, grace_seconds=0.05)
    bot = Bot(Rate(1, HOUR))
    await budgets.block(bot.scope, 0.05)
    dead, wait = await budgets.take([bot.call("dead"), bot.call("b")])
    assert dead < 1
    assert hours(wait) > 0.9

    async def goes() -> bool:
        return await budgets.take([bot.call("b")]) == [0]

    await until(goes)


async def test_finals_that_do_not_come_back_slow_nobody_down_twice(two: tuple[Budgets, Budgets]) -> None:
    """What was promised holds: those behind go at their own time."""
    one, other = (Budgets(budgets._state, turn_seconds=0) for budgets in two)
    bot = Bot(Rate(100, 1))
    dead, alive = [bot.call(f"dead {n}") for n in range(5)], [bot.call(f"b{n}") for n in range(5)]
    await one.take([bot.call("first"), *dead])
    waits = await other.take(alive)
    await asyncio.sleep(max(waits) + 0.001)
    assert await other.take(alive[-1:]) == [0]


async def test_one_blocked_chat_holds_no_other_up(budgets: Budgets) -> None:
    """Field report 23: its finals wait for their chat, not for the bot."""
    bot = Bot(Rate(1, HOUR, burst=2))
    await budgets.block(bot.at("1"), HOUR)
    first, second, other = await budgets.take([bot.call("a", "1"), bot.call("b", "1"), bot.call("c", "2")])
    assert min(first, second) > HOUR - 60
    assert other == 0
    assert await budgets.take([bot.call("d", "2")]) == [0]


async def test_a_final_that_waited_for_its_chat_is_first_at_the_bot(budgets: Budgets) -> None:
    """Its place goes by when it first asked, in whichever scope."""
    bot = Bot(Rate(1, HOUR))
    await budgets.block(bot.at("1"), 2 * HOUR)
    old, _, young = await budgets.take([bot.call("old", "1"), bot.call("x"), bot.call("young")])
    assert (hours(old), hours(young)) == (2, 1)
    await budgets.block(bot.scope, 3 * HOUR)
    young, old = await budgets.take([bot.call("young"), bot.call("old", "1")])
    assert (hours(old), hours(young)) == (3, 3)
    assert hours((await budgets.take([bot.call("young")]))[0]) == 4


async def test_a_deadline_is_never_shortened(two: tuple[Budgets, Budgets]) -> None:
    """Neither by another deadline, nor by nonsense, nor by any call."""
    bot = Bot(Rate(1, HOUR, burst=5))
    assert hours(await two[0].block(bot.scope, 3 * HOUR)) == 3
    for seconds in (1.0, 0.0, -5.0, math.nan):
        assert hours(await two[1].block(bot.scope, seconds)) == 3
    await two[0].take([bot.shown(chat="1"), bot.call("a", "1"), bot.call("b", "2")])
    assert hours((await two[1].take([bot.call("a", "1")]))[0]) == 3
    assert hours(await two[1].block(bot.scope, 5 * HOUR)) == 5
    assert hours((await two[1].take([bot.call("a", "1")]))[0]) == 5


async def test_nonsense_blocks_nothing_and_a_day_is_the_most(budgets: Budgets) -> None:
    """Field report 22."""
    bot = Bot(Rate(1, HOUR, burst=5))
    for seconds in (0.0, -5.0, math.nan):
        assert await budgets.block(bot.scope, seconds) == 0
    assert await budgets.take([bot.call("a")]) == [0]
    for seconds in (1e9, math.inf):
        assert LONGEST_BLOCK - 60 < await budgets.block(bot.scope, seconds) <= LONGEST_BLOCK


async def test_after_a_deadline_the_bucket_is_empty(budgets: Budgets) -> None:
    """The platform has just said so: one call, and then the rate."""
    bot = Bot(Rate(1, HOUR, burst=5))
    begin = time.monotonic()
    await budgets.block(bot.scope, 0.05)

    async def goes() -> bool:
        return await budgets.take([bot.call("a")]) == [0]

    await until(goes)
    assert time.monotonic() - begin > 0.049
    assert hours((await budgets.take([bot.call("b")]))[0]) == 1


async def test_a_refused_chat_blocks_itself_only(budgets: Budgets) -> None:
    """Also when it is refused again."""
    bot = Bot(Rate(1, HOUR, burst=5))
    assert hours(await budgets.block_part(bot.at("1"), bot.scope, HOUR)) == 1
    assert hours(await budgets.block_part(bot.at("1"), bot.scope, 2 * HOUR)) == 2
    assert hours(await budgets.block_part(bot.at("1"), bot.scope, HOUR)) == 2
    blocked, other = await budgets.take([bot.call("a", "1"), bot.call("b", "2")])
    assert (hours(blocked), other) == (2, 0)


@pytest.mark.parametrize(("first", "second"), [(1, 3), (3, 1)])
async def test_a_second_chat_refused_within_it_blocks_the_whole_bot(
    two: tuple[Budgets, Budgets], first: float, second: float
) -> None:
    """At the later of the deadlines, whichever worker saw them."""
    bot = Bot(Rate(1, HOUR, burst=5))
    await two[0].block_part(bot.at("1"), bot.scope, first * HOUR)
    assert hours(await two[1].block_part(bot.at("2"), bot.scope, second * HOUR)) == 3
    assert hours((await two[0].take([bot.call("a", "3")]))[0]) == 3


async def test_a_second_chat_refused_later_blocks_itself_only(budgets: Budgets) -> None:
    """The first deadline was over."""
    bot = Bot(Rate(1, HOUR, burst=5))
    await budgets.block_part(bot.at("1"), bot.scope, 0.02)

    async def over() -> bool:
        return await budgets.block(bot.at("1"), 0) == 0

    await until(over)
    await budgets.block_part(bot.at("2"), bot.scope, HOUR)
    assert await budgets.take([bot.call("a", "3")]) == [0]


async def test_beyond_the_cap_finals_wait_without_a_place(two: tuple[Budgets, Budgets]) -> None:
    """As long as the last of those that have one."""
    budgets = Budgets(two[0]._state, line_cap=3)
    bot = Bot(Rate(1, HOUR))
    waits = await budgets.take([bot.call(f"{n}") for n in range(8)])
    assert [hours(wait) for wait in waits] == [0, 1, 2, 3, 4, 4, 4, 4]


async def test_a_ticket_is_any_text(budgets: Budgets) -> None:
    """Also a scope's name."""
    bot = Bot(Rate(1, HOUR))
    waits = await budgets.take([bot.call(ticket, "chat: é\ud800") for ticket in ("", "a b", "\x00\ud800é")])
    assert [hours(wait) for wait in waits] == [0, 1, 2]


async def test_flushall_only_loosens(redis_server: RedisServer) -> None:
    """Nothing fails, nobody waits for ever, and the rate holds again from then on."""
    async with open_state(redis_server.url) as state:
        budgets = Budgets(state)
        bot = Bot(Rate(1, HOUR, burst=2))
        await budgets.block_part(bot.at("1"), bot.scope, HOUR)
        calls = [bot.call(f"{n}", "2") for n in range(5)]
        before = await budgets.take(calls)
        with redis_server.admin() as admin:
            admin.flushall()
        after = await budgets.take(calls[2:])
        assert [hours(wait) for wait in before] == [0, 0, 1, 2, 3]
        assert [hours(wait) for wait in after] == [0, 0, 1]


async def test_every_key_expires_and_no_credential_is_read(redis_server: RedisServer) -> None:
    """Once a bucket is full again and nobody waits."""
    async with open_state(redis_server.url) as state:
        budgets = Budgets(state)
        secret = "12345:AAH-secret"
        bot = Bot(Rate(1, 60), chat=Rate(1, 1))
        bot._credential = fingerprint(secret)
        await budgets.take([bot.call(f"{n}", "1") for n in range(5)])
        await budgets.block(bot.at("1"), 5)
        await budgets.block_part(bot.at("2"), bot.scope, 5)
        await budgets.block_part(bot.at("3"), bot.scope, 0)
        with redis_server.admin() as admin:
            ages = {key: admin.pttl(key) for key in admin.scan_iter()}
        assert len(ages) > 5
        assert all(0 < age < 1_000_000 for age in ages.values())
        assert not any(part.encode() in key for key in ages for part in secret.split(":"))


@pytest.mark.parametrize("rate", [(0, 1, 1), (1, 0, 1), (1, 1, 0), (-1, 1, 1), (math.nan, 1, 1), (1, math.inf, 1)])
def test_a_rate_lets_something_through(rate: tuple[float, float, int]) -> None:
    """Or it is refused when it is made."""
    with pytest.raises(ValueError, match="no rate"):
        Rate(*rate)
