"""Formatted text as a Matrix message: a plain body, and HTML of allowed tags alone. Pure.

Source: https://spec.matrix.org/latest/client-server-api/#mroommessage-msgtypes (the tags and attributes that clients
let pass). `m.mentions` is the caller's, who sends it empty: then no name in a text calls anybody.
"""

import re
from html import escape
from typing import Final

from msgspec import Struct, json

from shared.text.formatted import VERBATIM, Formatted, Scale, Span, readable, split_formatted, trimmed
from shared.text.markdown import parse_markdown

EVENT_LIMIT: Final = 65_536
CONTENT_LIMIT: Final = 30_000
"""Bytes for body and formatted_body together: an edit carries both twice, and servers add keys and signatures."""

_BLOCKS: Final = frozenset({"pre", "quote"})
_RUNS: Final = re.compile(r"(?:^|(?<=\n)) +| {2,}")
_NO_BREAK_SPACE: Final = "\u00a0"
_TAGS: Final = {"bold": "strong", "italic": "em", "strike": "del", "code": "code", "quote": "blockquote"}


class MatrixText(Struct, frozen=True):
    """What one event says.

    Attributes:
        body: the text, links spelled out, for clients and notifications that show no HTML.
        formatted_body: the HTML, or empty where the body says it all.
    """

    body: str
    formatted_body: str = ""


def matrix_texts(markdown: str, limit: int = CONTENT_LIMIT) -> list[MatrixText]:
    """Returns the events that a Markdown text takes.

    Args:
        markdown: the text.
        limit: the most bytes of body and formatted_body as JSON; at least 16,384, so that the longest URL fits.
    """
    pieces = split_formatted(parse_markdown(markdown), limit, SCALE)
    texts = (render(piece) for piece in pieces)
    return [text for text in texts if text.body]


def render(piece: Formatted) -> MatrixText:
    """Returns a piece as body and HTML."""
    piece = trimmed(piece)
    return MatrixText(readable(piece), _Page(piece).html() if piece.spans else "")


def size_in_event(text: MatrixText) -> int:
    """The bytes that a text takes in an event, as servers count them."""
    return _json_bytes(text.body) + _json_bytes(text.formatted_body)


class _Page:
    """One piece on its way to HTML; each tag is opened and closed here, and nothing else but escaped text is put."""

    def __init__(self, piece: Formatted) -> None:
        self._piece = piece
        self._spaced = _RUNS.sub(lambda run: _NO_BREAK_SPACE * len(run[0]), piece.text)
        self._parts: list[str] = []
        self._open: list[Span] = []
        self._at = 0
        self._after_block = False

    def html(self) -> str:
        for span in self._piece.spans:
            self._close_until(span.start)
            self._put_text(span.start, before_block=span.kind in _BLOCKS)
            self._parts.append(_opening(span))
            self._after_block = span.kind in _BLOCKS
            self._open.append(span)
        self._close_until(len(self._piece.text))
        self._put_text(len(self._piece.text), before_block=False)
        return "".join(self._parts)

    def _close_until(self, place: int) -> None:
        while self._open and self._open[-1].end <= place:
            span = self._open[-1]
            self._put_text(span.end, before_block=span.kind in _BLOCKS)
            self._parts.append(_closing(span))
            self._after_block = span.kind in _BLOCKS
            self._open.pop()

    def _put_text(self, end: int, *, before_block: bool) -> None:
        """The text up to a place; a block breaks the line by itself, so breaks beside it are left out."""
        if end == self._at:
            return
        verbatim = bool(self._open) and self._open[-1].kind in VERBATIM
        text = (self._piece.text if verbatim else self._spaced)[self._at : end]
        self._at = end
        if verbatim:
            self._parts.append(escape(text))
            return
        text = text.lstrip("\n") if self._after_block else text
        text = text.rstrip("\n") if before_block else text
        self._parts.append(escape(text).replace("\n", "<br>"))
        self._after_block = False


def _opening(span: Span) -> str:
    match span.kind:
        case "link":
            return f'<a href="{escape(span.value)}">'
        case "pre" if span.value:
            return f'<pre><code class="language-{escape(span.value)}">'
        case "pre":
            return "<pre><code>"
        case kind:
            return f"<{_TAGS[kind]}>"


def _closing(span: Span) -> str:
    match span.kind:
        case "link":
            return "</a>"
        case "pre":
            return "</code></pre>"
        case kind:
            return f"</{_TAGS[kind]}>"


def _json_bytes(text: str) -> int:
    return len(json.encode(text)) - 2


def _char_weight(char: str) -> int:
    """In the body, and at its heaviest in HTML."""
    shown = {"\n": "<br>", " ": _NO_BREAK_SPACE}.get(char, escape(char))
    return _json_bytes(char) + _json_bytes(shown)


def _span_weight(span: Span) -> int:
    spelled = f" ({span.value})" if span.kind == "link" else ""
    return _json_bytes(_opening(span) + _closing(span) + spelled)


SCALE: Final = Scale(_char_weight, _span_weight)
