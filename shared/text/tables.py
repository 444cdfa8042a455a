"""Tables as text in columns, for platforms that have none. Pure."""

import unicodedata
from itertools import zip_longest
from typing import Final, Literal

Alignment = Literal["left", "center", "right"]

_WIDEST: Final = 40
"""Columns are padded up to here; a longer cell sticks out, lest one cell widen a thousand rows."""
_SPACIOUS: Final = 4096


def draw_table(rows: list[list[str]], alignments: list[Alignment]) -> str:
    """Returns the rows as lines, the first of them the header, cells padded to columns.

    A table that padding would blow up (very many empty cells) is drawn without it.
    """
    widths = [min(_WIDEST, max(map(_width, column))) for column in zip_longest(*rows, fillvalue="")]
    raw = sum(len(cell) for row in rows for cell in row)
    if len(rows) * sum(widths) > 2 * raw + _SPACIOUS:
        widths = [0] * len(widths)
    sides = alignments + ["left"] * len(widths)
    lines = [" | ".join(map(_padded, row, widths, sides)).rstrip() for row in rows]
    return "\n".join([lines[0], "-+-".join("-" * max(width, 1) for width in widths), *lines[1:]])


def _padded(cell: str, width: int, alignment: Alignment) -> str:
    missing = max(0, width - _width(cell))
    left = {"left": 0, "center": missing // 2, "right": missing}[alignment]
    return " " * left + cell + " " * (missing - left)


def _width(text: str) -> int:
    """How many columns a text takes: wide characters two, combining ones none."""
    if text.isascii():
        return len(text)
    return sum(_columns(char) for char in text)


def _columns(char: str) -> int:
    if unicodedata.combining(char) or unicodedata.category(char) in {"Mn", "Me", "Cf"}:
        return 0
    return 2 if unicodedata.east_asian_width(char) in "WF" else 1
