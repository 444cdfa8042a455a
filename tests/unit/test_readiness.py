from services.cli.admin import STEADY_SECONDS, Probes, Readiness
from shared.clock import ManualClock


def changes(observations: list[tuple[float, bool]]) -> int:
    readiness, count, before = Readiness(), -1, None
    for at, ok in observations:
        readiness.observe(ok=ok, now=at)
        count += readiness.ready is not before
        before = readiness.ready
    return count


def test_a_dependency_that_flaps_changes_readiness_at_most_twice() -> None:
    """Field report 50: one second away, one second back, for twenty seconds."""
    flapping = [(second / 4, (second // 4) % 2 == 0) for second in range(80)]
    settled = [(20 + second / 4, True) for second in range(80)]
    assert changes(flapping + settled) <= 2


def test_an_outage_that_lasts_is_followed_once_each_way() -> None:
    """Sixty seconds away: not ready after the steady time, ready again as long after the return."""
    up = [(float(second), True) for second in range(10)]
    down = [(10.0 + second, False) for second in range(60)]
    back = [(70.0 + second, True) for second in range(20)]
    assert changes(up + down + back) == 2
    readiness = Readiness()
    for at, ok in up + down[: int(STEADY_SECONDS) + 1]:
        readiness.observe(ok=ok, now=at)
    assert readiness.ready is False


async def test_the_probes_are_asked_once_a_second_whoever_looks() -> None:
    """A scrape costs the dependencies nothing; the first look counts at once."""
    clock, asked = ManualClock(), []

    async def probe() -> None:
        asked.append(clock.monotonic())
        if len(asked) > 1:
            raise ConnectionError

    probes = Probes(clock)
    probes.add("bus", probe)
    async with probes.watching():
        assert probes.report() == (True, {"bus": "ok"})
        await clock.advance(1.0)
        assert probes.report() == (True, {"bus": "ConnectionError"})
        for _ in range(6):
            await clock.advance(1.0)
        assert probes.report()[0] is False
    assert len(asked) == 8
