"""Texts of both directions, cut: each part closes the isolates it opened (field report 17). Pure.

Logical order is never changed. What is added are isolate controls alone, U+2069 at the end of a part and the openers
again at the beginning of the next, so that no part turns what follows it around.
"""

import re
from typing import Final

from shared.text.split import Unit, size_of, split_text

_OPENERS: Final = "\u2066\u2067\u2068"
CLOSER: Final = "\u2069"
_CONTROLS: Final = re.compile("[\u2066-\u2069]")
_LEAST_WINDOW: Final = 64


def split_isolated(text: str, limit: int, unit: Unit) -> list[str]:
    """Like `split_text`, but with balanced isolates in each part; then the parts join to more than the input.

    Text that nests isolates too deep for the limit is cut plainly: that is an attack, not a language.
    """
    if len(split_text(text, limit, unit)) <= 1:
        return split_text(text, limit, unit)
    room = 2 * isolate_depth(text) * size_of(CLOSER, unit)
    if limit - room < _LEAST_WINDOW:
        return split_text(text, limit, unit)
    return _balanced(split_text(text, limit - room, unit))


def _balanced(parts: list[str]) -> list[str]:
    balanced, open_now = [], ""
    for part in parts:
        before = open_now
        open_now = open_isolates(before, part)
        balanced.append(before + part + CLOSER * len(open_now))
    return balanced


def isolate_depth(text: str) -> int:
    """How many isolates are open at once at most."""
    deepest = depth = 0
    for char in _CONTROLS.findall(text):
        depth = max(0, depth - 1) if char == CLOSER else depth + 1
        deepest = max(deepest, depth)
    return deepest


def open_isolates(before: str, text: str) -> str:
    """The openers that are still open behind a text, given those that were open before it."""
    for char in _CONTROLS.findall(text):
        before = _after(before, char)
    return before


def _after(open_now: str, char: str) -> str:
    if char in _OPENERS:
        return open_now + char
    return open_now[:-1] if char == CLOSER else open_now
