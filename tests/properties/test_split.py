import time

import pytest
import regex  # type: ignore[import-untyped]
from hypothesis import given
from hypothesis import strategies as st

from shared.text.bidi import split_isolated
from shared.text.graphemes import last_boundary
from shared.text.policy import clean_text
from shared.text.split import Unit, size_of, split_text

FAMILY = "\U0001f468\u200d\U0001f469\u200d\U0001f467\u200d\U0001f466"
TRICKY = st.sampled_from(
    ["\u0301", "\u200d", "\U0001f1ef", "\U0001f468", "\ufe0f", " ", "\n", "\r", ". ", "a", "\ud83d", "\ude00"]
)
TEXTS = st.lists(st.one_of(TRICKY, st.characters(), st.text(max_size=8))).map("".join)
UNITS = st.sampled_from(["points", "utf16", "bytes"])
CLUSTER = regex.compile(r"\X")


@given(TEXTS, st.integers(4, 40), UNITS)
def test_parts_join_to_the_input_and_each_is_within_the_limit(text: str, limit: int, unit: Unit) -> None:
    parts = split_text(text, limit, unit)
    assert "".join(parts) == text
    assert all(0 < size_of(part, unit) <= limit for part in parts)


@given(TEXTS, st.integers(1, 12))
def test_a_grapheme_is_cut_only_where_it_fills_the_whole_window(text: str, limit: int) -> None:
    rest = text
    for part in split_text(text, limit, "points")[:-1]:
        ends = {match.end() for match in CLUSTER.finditer(rest)}
        assert len(part) in ends or not any(end <= limit for end in ends) or _halves(rest, limit)
        rest = rest[len(part) :]


def _halves(rest: str, limit: int) -> bool:
    """Lone halves that would make one character are held together, which Annex 29 knows nothing of."""
    return any("\ud800" <= char <= "\udfff" for char in rest[: limit + 1])


@given(
    st.lists(st.sampled_from(["\U0001f1ef", "\u0301", "\u200d", "a", "\u0600", "\U0001f468", "\u0903"])).map("".join)
)
def test_boundaries_are_those_of_annex_29(text: str) -> None:
    ends = [match.end() for match in CLUSTER.finditer(text)]
    for end in range(1, len(text)):
        assert last_boundary(text, 0, end) == max((e for e in ends if e <= end), default=end)


@pytest.mark.parametrize(
    ("text", "second"),
    [
        ("x" * 1996 + FAMILY, FAMILY),
        ("y" * 1999 + "\U0001f1ef\U0001f1f5", "\U0001f1ef\U0001f1f5"),
        ("z" * 1999 + "e\u0301", "e\u0301"),
    ],
    ids=["family", "flag", "accent"],
)
def test_a_grapheme_at_the_limit_goes_whole_to_the_next_part(text: str, second: str) -> None:
    """Field report 14."""
    assert split_text(text, 2000, "points") == [text[: -len(second)], second]


def test_one_grapheme_longer_than_the_limit_is_cut_between_code_points() -> None:
    """Field report 14."""
    text = "a" + "\u0301" * 2500
    parts = split_text(text, 2000, "points")
    assert len(parts) >= 2
    assert max(map(len, parts)) <= 2000
    assert "".join(parts) == text


@pytest.mark.parametrize(
    ("text", "first"),
    [
        ("aaaa bbbb. cc\ndd\n\neeee fff", "aaaa bbbb. cc\ndd\n\n"),
        ("aaaa bbbb. cccc\ndd. eeee fff", "aaaa bbbb. cccc\n"),
        ("aaaa bbbb cc. dddd eeee fff", "aaaa bbbb cc. "),
        ("aaaa bbbb cccc dddd eeeeeee", "aaaa bbbb cccc dddd "),
        ("a bbbbbbbbbbbbbbbbbbbbbbbbb", "a "),
        ("bbbbbbbbbbbbbbbbbbbbbbbbbbb", "bbbbbbbbbbbbbbbbbbbb"),
        ("aaaa bbbb cccc dddd \u0301eee fff", "aaaa bbbb cccc "),
    ],
    ids=["paragraph", "line", "sentence", "word", "early word", "nothing", "space with an accent"],
)
def test_the_best_break_within_the_limit_is_taken(text: str, first: str) -> None:
    assert split_text(text, 20, "points")[0] == first


def test_an_astral_character_counts_two_in_utf16_and_four_in_bytes() -> None:
    assert split_text("\U0001f600" * 3, 5, "utf16") == ["\U0001f600" * 2, "\U0001f600"]
    assert split_text("\U0001f600" * 3, 7, "bytes") == ["\U0001f600"] * 3


def test_an_empty_text_has_no_parts() -> None:
    assert split_text("", 10, "points") == []


def test_a_limit_below_one_character_is_refused() -> None:
    with pytest.raises(ValueError, match="at least 4"):
        split_text("x", 3, "bytes")


@pytest.mark.parametrize("unit", ["points", "utf16", "bytes"])
@pytest.mark.parametrize(
    "piece", ["\u0301", " \u0301", "\n\u0301", "a", ". ", FAMILY, "\U0001f1ef", " ", "\u5831", "\ud83d"]
)
def test_hostile_texts_cost_linear_time(piece: str, unit: Unit) -> None:
    text = piece * (200_000 // len(piece))
    began = time.perf_counter()
    assert "".join(split_text(text, 50_000, unit)) == text
    assert time.perf_counter() - began < 10  # quadratic would be minutes


def test_isolates_are_closed_at_a_cut_and_opened_again() -> None:
    """Field report 17."""
    text = "\u2067\u05e9\u05dc\u05d5\u05dd \u05e2\u05d5\u05dc\u05dd\u2069 12.5? " * 200
    parts = split_isolated(text, 2000, "points")
    assert all(len(part) <= 2000 and part.count("\u2067") == part.count("\u2069") for part in parts)
    controls = str.maketrans("", "", "\u2067\u2069")
    assert "".join(parts).translate(controls) == text.translate(controls)


def test_an_isolate_over_the_limit_is_reopened_in_the_next_part() -> None:
    parts = split_isolated("\u2067" + "\u05e9" * 150 + "\u2069", 100, "points")
    assert [(part[0], part[-1]) for part in parts] == [("\u2067", "\u2069")] * 2


@given(st.text(st.sampled_from("\u2066\u2067\u2069ab "), max_size=300), st.integers(64, 100))
def test_isolated_parts_are_within_the_limit(text: str, limit: int) -> None:
    parts = split_isolated(text, limit, "points")
    assert all(len(part) <= limit for part in parts)


@given(st.text(st.one_of(TRICKY.filter(lambda char: len(char) == 1), st.characters(), st.just("\0"))))
def test_cleaned_text_can_be_sent_and_is_clean_already(text: str) -> None:
    cleaned = clean_text(text)
    cleaned.encode()
    assert "\0" not in cleaned
    assert clean_text(cleaned) == cleaned


@pytest.mark.parametrize(
    ("text", "cleaned"),
    [
        ("a\0b", "a\ufffdb"),
        ("\ud83d\ude00", "\U0001f600"),
        ("\ud83dx", "\ufffdx"),
        ("x\ud83d", "x\ufffd"),
        ("\ude00\ud83d", "\ufffd\ufffd"),
        ("\ud83d\ud83d\ude00", "\ufffd\U0001f600"),
    ],
)
def test_what_cannot_be_shown_becomes_the_replacement_character(text: str, cleaned: str) -> None:
    assert clean_text(text) == cleaned
