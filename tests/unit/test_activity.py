"""Activity: shown beside the messages, cleared last, and never in anybody's way (field report 26)."""

import asyncio
from collections.abc import AsyncGenerator

import pytest
from prometheus_client import CollectorRegistry

from services.delivery.activity import REFRESH, ActivityBoard
from services.delivery.targets.port import Binding, Failed, TargetError, Throttled, Unknown
from shared.clock import ManualClock
from shared.telemetry.metrics import DeliveryMetrics
from tests.support.fake_target import FakeTarget

LIFETIME = 60.0


class ActivityTarget(FakeTarget):
    """It may be slow, and may fail.

    Attributes:
        activities: (channel, status:tool), in order of their ends; failed ones too.
        at: when each began.
    """

    def __init__(self, clock: ManualClock) -> None:
        super().__init__(clock)
        self.activities: list[tuple[str, str]] = []
        self.at: list[float] = []
        self.latency = 0.0
        self.failure: TargetError | None = None
        self.in_flight: dict[str, int] = {}
        self.most_in_flight = 0

    def shown(self, channel: str = "c") -> list[str]:
        """What was called for a channel."""
        return [what for name, what in self.activities if name == channel]

    async def activity(self, binding: Binding, status: str, tool_name: str) -> None:
        """See `Target.activity`."""
        name = binding.channel
        self.in_flight[name] = self.in_flight.get(name, 0) + 1
        self.most_in_flight = max(self.most_in_flight, self.in_flight[name])
        self.at.append(self._clock.monotonic())
        latency, failure = self.latency, self.failure
        try:
            if latency:
                await self._clock.sleep(latency)
        finally:
            self.in_flight[name] -= 1
        self.activities.append((name, f"{status}:{tool_name}".rstrip(":")))
        if failure is not None:
            raise failure


class Bench:
    """A board over one platform."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.registry = CollectorRegistry()
        self.target = ActivityTarget(self.clock)
        self.board = ActivityBoard(LIFETIME, self.clock, DeliveryMetrics(self.registry))

    async def show(self, status: str, tool_name: str = "", channel: str = "c") -> None:
        """Shows it and lets the call begin."""
        self.board.show(self.target, Binding(channel, "im.test"), status, tool_name)
        await self.clock.settle()

    def failures(self, kind: str) -> float:
        """How many were counted."""
        labels = {"card": "im.test", "kind": kind}
        return self.registry.get_sample_value("sluice_target_failures_total", labels) or 0.0


@pytest.fixture
async def bench() -> AsyncGenerator[Bench]:
    """A board that leaves nothing running."""
    bench = Bench()
    yield bench
    bench.target.latency = 0.0
    stopping = asyncio.create_task(bench.board.stop())
    await bench.clock.advance(LIFETIME)
    await stopping


async def test_the_newest_activity_replaces_the_one_before(bench: Bench) -> None:
    """The state of a channel is one, and idle clears it."""
    await bench.show("thinking")
    await bench.show("tool", "search")
    await bench.show("idle")
    assert bench.target.shown() == ["thinking", "tool:search", "idle"]
    assert not bench.board._shown


async def test_the_same_activity_again_makes_no_call(bench: Bench) -> None:
    """It only lives longer."""
    await bench.show("thinking")
    await bench.show("thinking")
    assert bench.target.shown() == ["thinking"]


async def test_a_running_activity_is_shown_again_every_few_seconds(bench: Bench) -> None:
    """Platforms let it lapse."""
    await bench.show("thinking")
    await bench.clock.advance(3 * REFRESH)
    assert bench.target.at == [0.0, REFRESH, 2 * REFRESH, 3 * REFRESH]
    assert set(bench.target.shown()) == {"thinking"}


async def test_an_activity_that_nobody_renews_is_cleared_after_its_lifetime(bench: Bench) -> None:
    """The agent's socket died without a stop (field report 26, T2)."""
    await bench.show("thinking")
    await bench.clock.advance(LIFETIME - 0.1)
    assert set(bench.target.shown()) == {"thinking"}
    await bench.clock.advance(0.1)
    assert bench.target.shown()[-1] == "idle"
    calls = len(bench.target.activities)
    await bench.clock.advance(LIFETIME)
    assert len(bench.target.activities) == calls
    assert not bench.board._shown


async def test_a_renewed_activity_lives_its_lifetime_from_then(bench: Bench) -> None:
    """And another one too."""
    await bench.show("thinking")
    await bench.clock.advance(LIFETIME / 2)
    await bench.show("thinking")
    await bench.clock.advance(LIFETIME - 0.1)
    assert "idle" not in bench.target.shown()
    await bench.clock.advance(0.1)
    assert bench.target.shown()[-1] == "idle"


async def test_a_clear_comes_after_a_set_that_is_still_in_flight(bench: Bench) -> None:
    """The set takes 800 ms and the final comes after 200 ms: the last call is the clear (field report 26, T1)."""
    bench.target.latency = 0.8
    await bench.show("thinking")
    await bench.clock.advance(0.2)
    bench.board.clear("c")
    await bench.clock.advance(0.5)
    assert bench.target.shown() == []
    await bench.clock.advance(10)
    assert bench.target.shown() == ["thinking", "idle"]
    assert bench.target.most_in_flight == 1


async def test_what_changes_during_a_call_is_shown_once_as_it_is_in_the_end(bench: Bench) -> None:
    """At most one call of a channel is in flight, and states in between are skipped."""
    bench.target.latency = 1.0
    await bench.show("thinking")
    await bench.show("tool", "a")
    await bench.show("tool", "b")
    await bench.clock.advance(2.5)
    assert bench.target.shown() == ["thinking", "tool:b"]
    assert bench.target.most_in_flight == 1


async def test_an_activity_after_a_clear_still_in_flight_is_shown(bench: Bench) -> None:
    """The agent goes on at once with the next message."""
    bench.target.latency = 1.0
    await bench.show("thinking")
    await bench.clock.advance(1.0)
    bench.board.clear("c")
    await bench.clock.advance(0.5)
    await bench.show("tool", "next")
    await bench.clock.advance(2.0)
    assert bench.target.shown() == ["thinking", "idle", "tool:next"]


@pytest.mark.parametrize("failure", [Unknown("no answer"), Failed("500"), Throttled(5.0)])
async def test_failures_are_counted_and_end_nothing(bench: Bench, failure: TargetError) -> None:
    """In an outage there is at most one call an interval, and afterwards it is shown again."""
    bench.target.failure = failure
    await bench.show("thinking")
    await bench.clock.advance(2 * REFRESH)
    assert bench.target.at == [0.0, REFRESH, 2 * REFRESH]
    assert bench.failures(type(failure).__name__) == 3
    bench.target.failure = None
    await bench.clock.advance(REFRESH)
    bench.board.clear("c")
    await bench.clock.settle()
    assert bench.target.shown()[-2:] == ["thinking", "idle"]
    assert bench.failures(type(failure).__name__) == 3


async def test_a_clear_that_fails_leaves_nothing_behind(bench: Bench) -> None:
    """It lapses at the platform by itself."""
    await bench.show("thinking")
    bench.target.failure = Failed("500")
    bench.board.clear("c")
    await bench.clock.settle()
    assert bench.target.shown() == ["thinking", "idle"]
    assert not bench.board._shown


async def test_channels_do_not_wait_for_one_another(bench: Bench) -> None:
    """A slow call of one holds up no other."""
    bench.target.latency = 60.0
    await bench.show("thinking", channel="slow")
    bench.target.latency = 0.0
    await bench.show("thinking", channel="quick")
    bench.board.clear("quick")
    await bench.clock.settle()
    assert bench.target.activities == [("quick", "thinking"), ("quick", "idle")]


async def test_a_clear_of_what_shows_nothing_makes_no_call(bench: Bench) -> None:
    """Every final clears, whether there was an activity or not; idle without one is nothing too."""
    bench.board.clear("c")
    await bench.show("idle")
    assert bench.target.activities == []


async def test_stop_clears_everything_that_is_shown(bench: Bench) -> None:
    """No chat is left typing by a deploy, and no call is left running."""
    await bench.show("thinking", channel="a")
    await bench.show("tool", "x", channel="b")
    await bench.board.stop()
    assert bench.target.shown("a") == ["thinking", "idle"]
    assert bench.target.shown("b") == ["tool:x", "idle"]
    assert not bench.board._shown
