import math
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from email.utils import format_datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.delivery.retry import GiveUp, Wait, after
from services.delivery.retry_after import LONGEST_WAIT, of_discord, of_header, of_matrix, of_telegram
from services.delivery.targets.port import Throttled
from shared.config import Limits

NOW = 1_790_000_000.0
NONE: dict[str, str] = {}
NESTED = {"errcode": "M_UNKNOWN", "error": '{"errcode":"M_LIMIT_EXCEEDED","retry_after_ms":650}'}

# Each is (what the platform says, read by its reader).
REPORT_22 = {
    "discord": (of_discord({"Retry-After": "1"}, {"retry_after": 0.65}, NOW), 0.65),
    "telegram": (of_telegram(NONE, {"ok": False, "parameters": {"retry_after": 3}}, NOW), 3.0),
    "slack": (of_header({"retry-after": "2"}, NOW), 2.0),
    "matrix": (of_matrix(NONE, {"errcode": "M_LIMIT_EXCEEDED", "retry_after_ms": 1500}, NOW), 1.5),
    "matrix, nested": (of_matrix(NONE, NESTED, NOW), 0.65),
    "date": (of_header({"Retry-After": "Mon, 21 Sep 2026 14:13:24 GMT"}, NOW), 4.0),
}
REPORT_22_NONSENSE = {
    "none": of_header(NONE, NOW),
    "abc": of_header({"Retry-After": "abc"}, NOW),
    "-1": of_header({"Retry-After": "-1"}, NOW),
    "telegram, none": of_telegram(NONE, {"ok": False}, NOW),
    "telegram, abc": of_telegram(NONE, {"parameters": {"retry_after": "abc"}}, NOW),
    "telegram, -1": of_telegram(NONE, {"parameters": {"retry_after": -1}}, NOW),
    "discord, abc": of_discord(NONE, {"retry_after": "abc"}, NOW),
    "matrix, -1": of_matrix(NONE, {"retry_after_ms": -1}, NOW),
}
Reader = Callable[[Mapping[str, str], object, float], float | None]

json_values = st.recursive(
    st.none() | st.booleans() | st.floats() | st.integers() | st.text(),
    lambda inner: st.dictionaries(
        st.sampled_from(["retry_after", "retry_after_ms", "error", "parameters"]) | st.text(), inner
    ),
)


def http_date(moment: float) -> str:
    return format_datetime(datetime.fromtimestamp(moment, UTC), usegmt=True)


@pytest.mark.parametrize("name", REPORT_22)
def test_every_shape_of_field_report_22_is_read_in_seconds(name: str) -> None:
    """And is what the next try waits for."""
    said, seconds = REPORT_22[name]
    assert said == pytest.approx(seconds)
    verdict = after(Throttled(said), 1, 0.0, Limits(), repeatable=False)
    assert isinstance(verdict, Wait)
    assert seconds <= verdict.seconds < seconds + 1


@pytest.mark.parametrize("name", REPORT_22_NONSENSE)
def test_nonsense_of_field_report_22_leaves_the_wait_to_us(name: str) -> None:
    """The default backoff: no crash, no tight loop."""
    said = REPORT_22_NONSENSE[name]
    assert said is None
    verdict = after(Throttled(said), 1, 0.0, Limits(), repeatable=False, jitter=lambda: 0.0)
    assert isinstance(verdict, Wait)
    assert verdict.seconds >= 0.5


@pytest.mark.parametrize(
    "said",
    [
        of_header({"Retry-After": "1e9"}, NOW),
        of_header({"Retry-After": "1000000000"}, NOW),
        of_telegram(NONE, {"parameters": {"retry_after": 1e9}}, NOW),
        of_matrix(NONE, {"retry_after_ms": 1e12}, NOW),
        of_header({"Retry-After": "Fri, 31 Dec 9999 23:59:59 GMT"}, NOW),
    ],
)
def test_a_huge_wait_is_a_day_and_never_slept_on(said: float | None) -> None:
    """Field report 22, 1e9: the message is too old by then."""
    assert said == LONGEST_WAIT
    assert isinstance(after(Throttled(said), 1, 0.0, Limits(), repeatable=False), GiveUp)


@pytest.mark.parametrize("value", [True, False, math.nan, math.inf, -math.inf, 10**400, [], {}, None, "", "nan", "1_0"])
def test_what_is_no_number_is_not_taken_for_one(value: object) -> None:
    """Neither in seconds nor in milliseconds."""
    assert of_telegram(NONE, {"parameters": {"retry_after": value}}, NOW) is None
    assert of_discord(NONE, {"retry_after": value}, NOW) is None
    assert of_matrix(NONE, {"retry_after_ms": value}, NOW) is None


@pytest.mark.parametrize(
    "value", ["nan", "inf", "-inf", "1_000", "9" * 5000, "5, 10", "0x10", "\u0663", "", " ", "12:30"]
)
def test_a_header_that_is_no_number_is_not_taken_for_one(value: str) -> None:
    """Though Python would read some of them."""
    assert of_header({"Retry-After": value}, NOW) is None


@pytest.mark.parametrize(("value", "seconds"), [("0", 0.0), (" 2 ", 2.0), ("1.5", 1.5), ("2.", 2.0), ("+3", 3.0)])
def test_a_header_may_have_a_fraction(value: str, seconds: float) -> None:
    """And its name any case."""
    assert of_header({"RETRY-AFTER": value}, NOW) == seconds


@pytest.mark.parametrize("skew", [600, -600])
def test_a_date_is_compared_with_the_date_of_the_answer(skew: float) -> None:
    """So the clock of this host may be wrong (field report 40)."""
    headers = {"Date": http_date(NOW), "Retry-After": http_date(NOW + 4)}
    assert of_header(headers, NOW + skew) == 4.0
    assert of_header(headers | {"Date": "yesterday"}, NOW) == 4.0


def test_the_older_forms_of_a_date_are_read_as_utc() -> None:
    """RFC 9110 §5.6.7: RFC 850, asctime, and one without a zone, wherever this host stands."""
    for date in (
        "Monday, 21-Sep-26 14:13:24 GMT",
        "Mon Sep 21 14:13:24 2026",
        "Mon, 21 Sep 2026 14:13:24 -0000",
        "Mon, 21 Sep 2026 16:13:24 +0200",
    ):
        assert of_header({"Retry-After": date}, NOW) == 4.0


def test_a_date_that_is_over_leaves_the_wait_to_us() -> None:
    """It may be the clock that is wrong."""
    assert of_header({"Retry-After": http_date(NOW - 5)}, NOW) is None
    assert of_header({"Retry-After": http_date(NOW)}, NOW) == 0.0


def test_where_header_and_body_disagree_the_longer_holds() -> None:
    """737 s were once treated as 0.7 s; a header in whole seconds does not disagree."""
    assert of_discord({"Retry-After": "737"}, {"retry_after": 0.737}, NOW) == 737.0
    assert of_discord({"Retry-After": "1"}, {"retry_after": 300}, NOW) == 300.0
    assert of_matrix({"Retry-After": "2"}, {"retry_after_ms": 1500}, NOW) == 1.5


@pytest.mark.parametrize(
    "body", [None, b"<html>", [], "busy", {"parameters": None}, {"error": None}, {"retry_after": -1}]
)
def test_the_header_helps_where_the_body_does_not_say(body: object) -> None:
    """A gateway's page, for one."""
    assert of_telegram({"Retry-After": "7"}, body, NOW) == 7.0
    assert of_discord({"Retry-After": "7"}, body, NOW) == 7.0
    assert of_matrix({"Retry-After": "7"}, body, NOW) == 7.0


def test_an_error_within_an_error_is_found_though_words_stand_around_it() -> None:
    """Also as an object, also twice deep; not for ever."""
    assert of_matrix(NONE, {"error": 'upstream said {"retry_after_ms": 650}.'}, NOW) == 0.65
    assert of_matrix(NONE, {"error": {"retry_after_ms": 650}}, NOW) == 0.65
    assert of_matrix(NONE, {"error": {"error": '{"retry_after_ms": 650}'}}, NOW) == 0.65
    assert of_matrix(NONE, {"error": {"error": {"error": {"error": {"retry_after_ms": 650}}}}}, NOW) is None
    for hostile in ("{" * 5000, '{"a":' * 2000 + "1" + "}" * 2000, '{"retry_after_ms": 1e999}', "}{", "\ud800{}"):
        assert of_matrix(NONE, {"error": hostile}, NOW) is None


@given(st.sampled_from([of_telegram, of_discord, of_matrix]), st.text(), st.text(), json_values)
def test_whatever_is_said_the_answer_is_seconds_or_none(read: Reader, value: str, date: str, body: object) -> None:
    """And nothing is raised."""
    said = read({"Retry-After": value, "Date": date}, body, NOW)
    assert said is None or 0 <= said <= LONGEST_WAIT
