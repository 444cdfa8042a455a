"""Formatted text and its cutting: a plain text with style spans over it (docs/text.md). Pure.

Spans nest by construction, so a cut is a clipping: what is open at the end of a piece is closed there and opened
again in the next with its language or link. Nothing is ever cut after rendering.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Callable
from itertools import accumulate
from typing import Final, Literal

from msgspec import Struct
from msgspec.structs import replace

from shared.text.bidi import CLOSER, isolate_depth, open_isolates
from shared.text.split import Unit, best_break, size_of

Kind = Literal["bold", "italic", "strike", "code", "pre", "link", "quote"]

VERBATIM: Final = frozenset({"code", "pre"})
"""Kinds whose white space means something."""

_LEAST_WINDOW: Final = 64


class Span(Struct, frozen=True):
    """A style over text[start:end], in code points.

    Attributes:
        value: the language of a `pre`, the URL of a `link`.
    """

    start: int
    end: int
    kind: Kind
    value: str = ""


class Formatted(Struct, frozen=True):
    """A text and its spans, outer before inner, by start; of two spans one holds the other or they do not meet."""

    text: str
    spans: tuple[Span, ...] = ()


class Scale(Struct, frozen=True):
    """What a piece weighs on a platform, from above.

    Attributes:
        char: the weight of one character.
        span: what a span adds to each piece that it is in.
        most_spans: how many spans a piece may have.
    """

    char: Callable[[str], int]
    span: Callable[[Span], int] = lambda _: 0
    most_spans: int = 1 << 30


def scale_of(unit: Unit, most_spans: int = 1 << 30) -> Scale:
    """The scale of a platform that counts the text alone."""
    return Scale(lambda char: size_of(char, unit), most_spans=most_spans)


def split_formatted(whole: Formatted, limit: int, scale: Scale) -> list[Formatted]:
    """Returns the pieces of a text, cut at paragraph > line > sentence > word > grapheme > code point.

    The texts of the pieces join to the text, except for the isolate controls that are added at cuts. A link goes
    whole to the next piece where it fits there.

    Args:
        whole: what to cut.
        limit: the most a piece may weigh.
        scale: how that is weighed.

    Raises:
        ValueError: spans weigh as much as the limit, so not even a short text is sure to fit.
    """
    heaviest = _heaviest(whole, scale)
    if heaviest and limit - heaviest < _LEAST_WINDOW:
        raise ValueError(f"limit: the spans over one character may weigh {heaviest}")
    cutter = _Cutter(whole, scale)
    if not whole.text or cutter.fitting(0, limit) == len(whole.text):
        return [whole] if whole.text else []
    room = limit - 2 * isolate_depth(whole.text) * scale.char(CLOSER)
    isolating = room >= _LEAST_WINDOW + heaviest
    return cutter.pieces(room, isolating=True) if isolating else cutter.pieces(limit, isolating=False)


def clip(whole: Formatted, start: int, end: int, before: str = "", behind: str = "") -> Formatted:
    """The piece text[start:end] with the spans over it, between two texts that no span is over."""
    shift = len(before) - start
    spans = (
        replace(span, start=max(span.start, start) + shift, end=min(span.end, end) + shift)
        for span in whole.spans
        if span.start < end and span.end > start
    )
    return Formatted(before + whole.text[start:end] + behind, tuple(spans))


def trimmed(piece: Formatted) -> Formatted:
    """Without white space at both ends, and without spans over white space alone; code keeps its indentation.

    A platform that trims what it is given has nothing left to do, so what it shows is what was sent.
    """
    indented = [span.start for span in piece.spans if span.kind in VERBATIM and _shows(piece.text, span)]
    spans = tuple(_tightened(piece.text, span, indented) for span in piece.spans if _shows(piece.text, span))
    head = len(piece.text) - len(piece.text.lstrip())
    start = min([head, *indented[:1]])
    return clip(Formatted(piece.text, spans), start, max(start, len(piece.text.rstrip())))


def readable(piece: Formatted) -> str:
    """The text for where nothing can be linked: a link's URL stands behind it in brackets, unless the text says it."""
    parts, at = [], 0
    for span in piece.spans:
        if span.kind == "link" and span.value not in piece.text[span.start : span.end]:
            parts.append(f"{piece.text[at : span.end]} ({span.value})")
            at = span.end
    return "".join([*parts, piece.text[at:]])


def _shows(text: str, span: Span) -> bool:
    return not text[span.start : span.end].isspace()


def _tightened(text: str, span: Span, indented: list[int]) -> Span:
    """The span without white space at its ends, but with all of the code that it begins with."""
    content = text[span.start : span.end]
    start = span.end - len(content.lstrip())
    code = bisect_left(indented, span.start)
    return replace(span, start=min([start, *indented[code : code + 1]]), end=span.start + len(content.rstrip()))


def _heaviest(whole: Formatted, scale: Scale) -> int:
    """The most that the spans over one character weigh: of each kind there is one at most."""
    by_kind: dict[Kind, int] = {}
    for span in whole.spans:
        by_kind[span.kind] = max(by_kind.get(span.kind, 0), scale.span(span))
    return sum(by_kind.values())


class _Cutter:
    def __init__(self, whole: Formatted, scale: Scale) -> None:
        weights = {char: scale.char(char) for char in set(whole.text)}
        self._text = whole.text
        self._spans = whole.spans
        self._scale = scale
        self._starts = [span.start for span in whole.spans]
        self._parents = _parents(whole.spans)
        self._sums = [0, *accumulate(weights[char] for char in whole.text)]

    def pieces(self, limit: int, *, isolating: bool) -> list[Formatted]:
        pieces, before, start = [], "", 0
        while start < len(self._text):
            end = self._end(start, limit)
            behind = open_isolates(before, self._text[start:end]) if isolating else ""
            pieces.append(clip(self._part(start, end), start, end, before, CLOSER * len(behind)))
            before, start = behind, end
        return pieces

    def fitting(self, start: int, limit: int) -> int:
        """The last place up to which a piece from `start` on fits."""
        held = self._held(start)
        count = len(held)
        left = limit - sum(self._scale.span(span) for span in held)
        place = self._place(start, left)
        for index in range(bisect_left(self._starts, start), len(self._spans)):
            span = self._spans[index]
            if span.start >= place:
                break
            left -= self._scale.span(span)
            count += 1
            place = self._place(start, left)
            if count > self._scale.most_spans or place <= span.start:
                return span.start
        return place

    def _end(self, start: int, limit: int) -> int:
        end = max(self.fitting(start, limit), start + 1)
        if end >= len(self._text):
            return len(self._text)
        end = best_break(self._text, start, end)
        for span in self._held(end):
            if span.kind == "link" and span.start > start and self.fitting(span.start, limit) >= span.end:
                return span.start
        return end

    def _held(self, at: int) -> list[Span]:
        """The spans that a cut would go through: those around the last that begins before it."""
        held = []
        index = bisect_left(self._starts, at) - 1
        while index >= 0:
            if self._spans[index].end > at:
                held.append(self._spans[index])
            index = self._parents[index]
        return held[::-1]

    def _part(self, start: int, end: int) -> Formatted:
        """The text with only those spans that reach into [start, end)."""
        inside = self._spans[bisect_left(self._starts, start) : bisect_left(self._starts, end)]
        return Formatted(self._text, (*self._held(start), *inside))

    def _place(self, start: int, left: int) -> int:
        """The last place up to which the characters from `start` on weigh no more than `left`."""
        return max(start, bisect_right(self._sums, self._sums[start] + left) - 1)


def _parents(spans: tuple[Span, ...]) -> list[int]:
    """For each span the index of the innermost around it, or -1."""
    parents: list[int] = []
    around: list[int] = []
    for index, span in enumerate(spans):
        while around and spans[around[-1]].end <= span.start:
            around.pop()
        parents.append(around[-1] if around else -1)
        around.append(index)
    return parents
