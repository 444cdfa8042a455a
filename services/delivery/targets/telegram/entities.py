"""Formatted text as Telegram's message entities, and back. Pure.

Entities are sent beside the text, so nothing is escaped and nothing can fail to parse. Offsets and lengths are UTF-16
code units. Source: https://core.telegram.org/bots/api#messageentity and #formatting-options (what nests in what).
"""

import unicodedata
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import Any, Final

from msgspec import Struct
from msgspec.structs import replace

from shared.text.formatted import VERBATIM, Formatted, Kind, Span, readable, scale_of, split_formatted, trimmed
from shared.text.markdown import parse_markdown
from shared.text.split import size_of

TEXT_LIMIT: Final = 4096
CAPTION_LIMIT: Final = 1024
MOST_ENTITIES: Final = 100
"""More are ignored by the servers, in silence."""

_TYPES: Final[dict[Kind, str]] = {
    "bold": "bold",
    "italic": "italic",
    "strike": "strikethrough",
    "code": "code",
    "pre": "pre",
    "link": "text_link",
    "quote": "blockquote",
}
_AROUND_NO_CODE: Final = frozenset({"bold", "italic", "strike"})
_BLANK: Final = frozenset("\u034f\u115f\u1160\u2800\u3164\uffa0")
"""Characters that show nothing although Unicode calls them letters, marks or symbols."""

_BLANK_CATEGORIES: Final = frozenset({"Zs", "Zl", "Zp", "Cc", "Cf"})


class Entity(Struct, frozen=True, omit_defaults=True):
    """A MessageEntity, as it goes over the wire."""

    type: str
    offset: int
    length: int
    url: str = ""
    language: str = ""


class TelegramText(Struct, frozen=True):
    """What one message says.

    Attributes:
        text: trimmed as Telegram trims, so that what is shown is what was sent.
        entities: its styles.
        plain: the text for when the entities are refused: the URLs of its links are spelled out if there is room.
    """

    text: str
    entities: tuple[Entity, ...]
    plain: str


class Found(Struct, frozen=True):
    """An entity of a message that came in.

    Attributes:
        type: as the Bot API names it.
        text: what it is over.
        url: where it leads, for links of either kind.
    """

    type: str
    text: str
    url: str = ""


def telegram_texts(markdown: str, limit: int = TEXT_LIMIT) -> list[TelegramText]:
    """Returns the messages that a Markdown text takes; what shows nothing at all is no message to Telegram."""
    pieces = split_formatted(nested(parse_markdown(markdown)), limit, scale_of("utf16", MOST_ENTITIES))
    texts = (render(piece, limit) for piece in pieces)
    return [text for text in texts if not is_blank(text.text)]


def render(piece: Formatted, limit: int = TEXT_LIMIT) -> TelegramText:
    """Returns a piece as text and entities.

    Args:
        piece: its spans nest as `nested` makes them.
        limit: the most UTF-16 units of the plain form.
    """
    piece = trimmed(piece)
    units = [0, *accumulate(2 if char > "\uffff" else 1 for char in piece.text)]
    entities = tuple(_entity(span, units) for span in piece.spans)
    spelled = readable(piece)
    return TelegramText(piece.text, entities, spelled if size_of(spelled, "utf16") <= limit else piece.text)


def nested(whole: Formatted) -> Formatted:
    """The spans as Telegram lets them nest: code and pre hold nothing and stand in a quote at most.

    Code in a link is the link alone, for its URL is worth more; bold and the like end before code and go on behind.
    """
    links = [span for span in whole.spans if span.kind == "link"]
    kept = [span for span in whole.spans if span.kind != "code" or not _inside_one(span, links)]
    codes = [span for span in kept if span.kind in VERBATIM]
    spans = [part for span in kept for part in (_around(span, codes) if span.kind in _AROUND_NO_CODE else [span])]
    return Formatted(whole.text, tuple(sorted(spans, key=lambda span: (span.start, -span.end))))


def is_blank(text: str) -> bool:
    """Whether a text shows nothing, for which Telegram refuses it."""
    return all(char in _BLANK or unicodedata.category(char) in _BLANK_CATEGORIES for char in text)


def found_in(text: str, entities: Sequence[dict[str, Any]]) -> list[Found]:
    """Returns what the entities of an inbound text are over; those that make no sense are left out.

    Field report 16: the offsets are UTF-16 units, not characters.
    """
    encoded = text.encode("utf-16-le", "surrogatepass")
    return list(_found(encoded, entities))


def _found(encoded: bytes, entities: Sequence[dict[str, Any]]) -> Iterator[Found]:
    for entity in entities:
        kind, offset, length = entity.get("type"), entity.get("offset"), entity.get("length")
        if not isinstance(kind, str) or not isinstance(offset, int) or not isinstance(length, int):
            continue
        if offset < 0 or length <= 0 or 2 * offset >= len(encoded):
            continue
        content = encoded[2 * offset : 2 * (offset + length)].decode("utf-16-le", "replace")
        url = content if kind == "url" else entity.get("url")
        yield Found(kind, content, url if isinstance(url, str) else "")


def _entity(span: Span, units: list[int]) -> Entity:
    offset = units[span.start]
    return Entity(
        _TYPES[span.kind],
        offset,
        units[span.end] - offset,
        url=span.value if span.kind == "link" else "",
        language=span.value if span.kind == "pre" else "",
    )


def _inside_one(span: Span, others: list[Span]) -> bool:
    """Whether one of the others, which are in order and apart, holds the span."""
    at = bisect_left(others, span.start + 1, key=lambda other: other.start) - 1
    return at >= 0 and others[at].end >= span.end


def _around(span: Span, codes: list[Span]) -> Iterator[Span]:
    """The parts of a span beside the codes in it."""
    start = span.start
    at = bisect_left(codes, start, key=lambda code: code.start)
    while at < len(codes) and codes[at].end <= span.end:
        if codes[at].start > start:
            yield replace(span, start=start, end=codes[at].start)
        start = codes[at].end
        at += 1
    if start < span.end:
        yield replace(span, start=start)
