"""Cutting a text to a platform's limit: paragraph > line > sentence > word > grapheme > code point. Pure.

The parts join to the input exactly, each is within the limit, and every cut makes progress (field report 14).
"""

import unicodedata
from collections.abc import Callable
from typing import Final, Literal

Unit = Literal["points", "utf16", "bytes"]
_BREAKS: Final = ("\n\n", "\n", ". ", "! ", "? ", "。", " ")
_ZWJ: Final = "\u200d"
_JOINED: Final = frozenset("\u200d\ufe0f\ufe0e\u20e3")
_LONGEST_GRAPHEME: Final = 64


def split_text(text: str, limit: int, unit: Unit) -> list[str]:
    """Returns the parts of a text.

    Args:
        text: what to cut.
        limit: the most units a part may have; at least 4, so that any code point fits.
        unit: code points, UTF-16 code units, or UTF-8 bytes.
    """
    if limit < 4:  # noqa: PLR2004 - the UTF-8 length of the longest code point
        raise ValueError("limit: at least 4")
    parts: list[str] = []
    start = 0
    while start < len(text):
        end = _furthest(text, start, limit, _SIZES[unit])
        if end < len(text):
            end = _cut(text, start, end)
        parts.append(text[start:end])
        start = end
    return parts


def _size_points(_: str) -> int:
    return 1


def _size_utf16(char: str) -> int:
    return 2 if char > "\uffff" else 1


def _size_bytes(char: str) -> int:
    return len(char.encode("utf-8", "surrogatepass"))


_SIZES: Final[dict[Unit, Callable[[str], int]]] = {
    "points": _size_points,
    "utf16": _size_utf16,
    "bytes": _size_bytes,
}


def _furthest(text: str, start: int, limit: int, size: Callable[[str], int]) -> int:
    if size is _size_points:
        return min(start + limit, len(text))
    used, end = 0, start
    while end < len(text) and (used := used + size(text[end])) <= limit:
        end += 1
    return end


def _cut(text: str, start: int, end: int) -> int:
    """The best place to cut in (start, end]: a break in the second half of the window, else between graphemes."""
    middle = start + (end - start) // 2
    for mark in _BREAKS:
        at = text.rfind(mark, middle, end)
        if at >= 0 and at + len(mark) <= end:
            return at + len(mark)
    at = end
    while at > start and end - at < _LONGEST_GRAPHEME and not _is_boundary(text, at):
        at -= 1
    return at if at > start and _is_boundary(text, at) else end


def _is_boundary(text: str, at: int) -> bool:
    """Whether a grapheme ends before `at`: no mark, joiner, modifier or half of a flag is cut off."""
    before, after = text[at - 1], text[at]
    if (
        before == _ZWJ
        or after in _JOINED
        or unicodedata.combining(after)
        or unicodedata.category(after) in ("Mn", "Me", "Mc")
    ):
        return False
    if "\U0001f3fb" <= after <= "\U0001f3ff" or (before == "\r" and after == "\n"):
        return False
    if _is_flag_half(before) and _is_flag_half(after):
        run = at
        while run > 0 and _is_flag_half(text[run - 1]):
            run -= 1
        return (at - run) % 2 == 0
    return True


def _is_flag_half(char: str) -> bool:
    return "\U0001f1e6" <= char <= "\U0001f1ff"
