"""Where extended grapheme clusters end (Unicode Annex 29). Pure; the only module that imports `regex`."""

from typing import Final

import regex  # type: ignore[import-untyped]

_CLUSTER: Final = regex.compile(r"\p{GCB=RI}{1,2}[\p{GCB=EX}\p{GCB=ZWJ}\p{GCB=SM}]*|\X")
"""`\\X`, but flags are told first: `\\X` looks back over a whole run of them at each step, which is quadratic."""


def last_boundary(text: str, start: int, end: int) -> int:
    """Returns the last place in (start, end] where a grapheme ends; `end` itself where there is none.

    No rule of Annex 29 looks further ahead than one character, so the time is linear in the window.
    """
    if end >= len(text) or end <= start:
        return end
    best = 0
    for cluster in _CLUSTER.finditer(text[start : end + 1]):
        if start + cluster.end() > end:
            break
        best = cluster.end()
    return start + best if best else end


def is_boundary(text: str, at: int) -> bool:
    """Whether a grapheme ends before `at`, judged by the two characters there: enough beside white space."""
    return at >= len(text) or bool(_CLUSTER.match(text[at - 1 : at + 1]).end() == 1)
