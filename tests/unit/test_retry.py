import math

import pytest

from services.delivery.retry import GiveUp, Wait, after
from services.delivery.targets.port import Failed, NeverLeft, Refused, Throttled, Unknown
from shared.config import Limits

LIMITS = Limits()


@pytest.mark.parametrize("seconds", [0.65, 1.0, 1.5, 2.0, 3.0, 4.0])
def test_the_platforms_wait_is_kept_to(seconds: float) -> None:
    """Field report 22."""
    assert after(Throttled(seconds), 1, 0.0, LIMITS, repeatable=False) == Wait(seconds, "target_rate_limited")


@pytest.mark.parametrize("nonsense", [None, -1.0, math.nan, math.inf])
def test_absent_and_nonsense_waits_become_the_default_backoff(nonsense: float | None) -> None:
    """No crash, no tight loop."""
    verdict = after(Throttled(nonsense), 3, 0.0, LIMITS, repeatable=False, jitter=lambda: 1.0)
    assert verdict == Wait(4.0, "target_rate_limited")


def test_zero_is_no_tight_loop() -> None:
    """At least a twentieth of a second."""
    verdict = after(Throttled(0.0), 1, 0.0, LIMITS, repeatable=False)
    assert verdict == Wait(0.05, "target_rate_limited")


def test_a_huge_wait_outlives_the_message() -> None:
    """1e9 seconds is beyond its hour: given up with its code, never slept on."""
    verdict = after(Throttled(1e9), 1, 0.0, LIMITS, repeatable=False)
    assert isinstance(verdict, GiveUp)
    assert verdict.code == "target_rate_limited"


def test_no_answer_is_repeated_only_where_the_platform_notices() -> None:
    """Invariant 1."""
    assert isinstance(after(Unknown("x"), 1, 0.0, LIMITS, repeatable=True), Wait)
    verdict = after(Unknown("x"), 1, 0.0, LIMITS, repeatable=False)
    assert isinstance(verdict, GiveUp)
    assert verdict.code == "delivery_uncertain"


@pytest.mark.parametrize("error", [NeverLeft("x"), Failed("x")])
def test_what_never_left_or_was_answered_is_retried_with_growing_pauses(error: Failed | NeverLeft) -> None:
    """Doubling to a cap, then the end."""
    waits = [after(error, n, 0.0, LIMITS, repeatable=False, jitter=lambda: 1.0) for n in range(1, 20)]
    assert [w.seconds for w in waits if isinstance(w, Wait)][:7] == [1, 2, 4, 8, 16, 32, 60]
    assert isinstance(after(error, 20, 0.0, LIMITS, repeatable=False), GiveUp)
    assert isinstance(after(error, 1, 3600.0, LIMITS, repeatable=False), GiveUp)


def test_a_refusal_is_final_and_may_take_the_channel_with_it() -> None:
    """410 of a webhook."""
    verdict = after(Refused("gone", revoked=True), 1, 0.0, LIMITS, repeatable=True)
    assert verdict == GiveUp("target_delivery_failed", "gone", revoked=True)
