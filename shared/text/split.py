"""Cutting a text to a platform's limit: paragraph > line > sentence > word > grapheme > code point. Pure.

The parts join to the input exactly, each is within the limit, and every cut makes progress (field report 14).
The time is linear in the text: each part costs a few passes over its own window, whatever is in it.
"""

import re
from typing import Final, Literal

from shared.text.graphemes import is_boundary, last_boundary

Unit = Literal["points", "utf16", "bytes"]

_LEAST: Final[dict[Unit, int]] = {"points": 1, "utf16": 2, "bytes": 4}
_COARSE: Final = (
    ("\n\n", "\r\n\r\n", "\u2029"),
    ("\n", "\u2028"),
    (". ", "! ", "? ", "。", "！", "？", "… "),  # noqa: RUF001 - the sentence ends of CJK texts
)
_WORDS: Final = (" ", "\t", "\u3000")
_NOT_SPACE: Final = re.compile(r"\S")


def split_text(text: str, limit: int, unit: Unit) -> list[str]:
    """Returns the parts of a text; none for an empty one.

    Args:
        text: what to cut.
        limit: the most units a part may have.
        unit: code points, UTF-16 code units, or UTF-8 bytes.

    Raises:
        ValueError: not even one code point is sure to fit the limit.
    """
    if limit < _LEAST[unit]:
        raise ValueError(f"limit: at least {_LEAST[unit]} {unit}")
    parts: list[str] = []
    start = 0
    while start < len(text):
        end = start + fitting(text, start, limit, unit)
        if end < len(text):
            end = best_break(text, start, end)
        parts.append(text[start:end])
        start = end
    return parts


def size_of(text: str, unit: Unit) -> int:
    """The size of a text in a unit."""
    match unit:
        case "points":
            return len(text)
        case "utf16":
            return len(text) + sum(char > "\uffff" for char in text)
        case "bytes":
            return len(text.encode("utf-8", "surrogatepass"))


def fitting(text: str, start: int, limit: int, unit: Unit) -> int:
    """How many code points from `start` on fit the limit."""
    window = text[start : start + limit]
    if unit == "points" or window.isascii():
        return len(window)
    if unit == "bytes":
        return len(_whole(window.encode("utf-8", "surrogatepass"), limit).decode("utf-8", "surrogatepass"))
    used = 0
    for count, char in enumerate(window):
        used += 2 if char > "\uffff" else 1
        if used > limit:
            return count
    return len(window)


def best_break(text: str, start: int, end: int) -> int:
    """The best place in (start, end] to cut, where `end` is the last place that fits and text follows it.

    The coarse ones count in the second half only, lest parts grow tiny.
    """
    middle = start + (end - start) // 2
    for marks in _COARSE:
        at = _after_last(text, marks, middle, end)
        if at:
            return at
    first = _NOT_SPACE.search(text, start, end)
    at = _after_last(text, _WORDS, first.start(), end) if first else 0
    return at or _unhalved(text, start, last_boundary(text, start, end))


def _whole(encoded: bytes, limit: int) -> bytes:
    """The first `limit` bytes, less the character that would be cut."""
    end = min(limit, len(encoded))
    while end < len(encoded) and encoded[end] & 0xC0 == 0x80:  # noqa: PLR2004 - a continuation byte
        end -= 1
    return encoded[:end]


def _after_last(text: str, marks: tuple[str, ...], low: int, high: int) -> int:
    """The end of the last mark within [low, high) that is no part of a larger grapheme, or 0."""
    return max(_after(text, mark, low, high) for mark in marks)


def _after(text: str, mark: str, low: int, high: int) -> int:
    while (at := text.rfind(mark, low, high)) >= 0:
        if is_boundary(text, at + len(mark)):
            return at + len(mark)
        high = at + len(mark) - 1
    return 0


def _unhalved(text: str, start: int, at: int) -> int:
    """Keeps two lone surrogates together that would make one character."""
    halves = "\ud800" <= text[at - 1] <= "\udbff" and "\udc00" <= text[at] <= "\udfff"
    return at - 1 if halves and at - 1 > start else at
