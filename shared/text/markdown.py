"""Markdown (CommonMark, tables, strikethrough) as agents write it, into formatted text (docs/text.md). Pure.

Whatever the text, and whatever prefix of it has come so far, nothing visible is lost and the work is bounded: markup
that is unfinished, not understood or not allowed stays as its author typed it.
"""

import re
from typing import Final

from markdown_it.token import Token

from shared.text.formatted import Formatted, Kind, readable
from shared.text.markdown_parser import parse_blocks, parse_inline, table_lines
from shared.text.policy import clean_text
from shared.text.tables import Alignment, draw_table
from shared.text.writer import Writer

MOST_MARKERS: Final = 40_000
"""A text with more characters that may be markup is shown as it is: nobody writes so, and each of them costs work."""

_MARKERS: Final = re.compile(r"[][*_~`<>&\\!|\n]")
_LANGUAGE: Final = re.compile(r"[A-Za-z0-9_+#.-]{1,40}")
_BLANK: Final = re.compile(r"[\s>]*")
_CELL_BORDER: Final = re.compile(r"(?<!\\)\|")
_RULE: Final = "\u2014" * 3
_BULLET: Final = "\u2022 "
_STYLES: Final[dict[str, Kind]] = {"strong_open": "bold", "em_open": "italic", "s_open": "strike"}
_STYLES_END: Final = frozenset({"strong_close", "em_close", "s_close"})


def parse_markdown(source: str) -> Formatted:
    """Returns what a Markdown text shows, at any stage of its being written."""
    text = clean_text(source).replace("\r\n", "\n").replace("\r", "\n")
    if len(_MARKERS.findall(text)) > MOST_MARKERS:
        return Formatted(text)
    shown = _Reading(text).read()
    return shown if shown.text.strip() else Formatted(text)  # markup alone, as "#": better than nothing


class _Reading:
    """One text being read, block by block."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._lines = text.split("\n")
        self._line = -1
        self._numbers: list[int | None] = []
        self._writer = Writer()

    def read(self) -> Formatted:
        for token in parse_blocks(self._text):
            if token.map and token.type != "inline":
                self._writer.line(self._breaks(token.map[0]))
            self._block(token)
        return self._writer.finish()

    def _breaks(self, line: int) -> int:
        """The author's own layout: an empty line stays one, and where there is none, none is made."""
        begins_here = line != self._line
        self._line = line
        return 2 if begins_here and line and _BLANK.fullmatch(self._lines[line - 1]) else 1

    def _block(self, token: Token) -> None:
        match token.type:
            case "inline":
                _write_inline(self._writer, parse_inline(token.content))
            case "heading_open":
                self._writer.open("bold")
            case "blockquote_open":
                self._writer.open("quote")
            case "heading_close" | "blockquote_close":
                self._writer.close()
            case "fence" | "code_block":
                self._code(token)
            case "table_open":
                self._writer.write_block(_table(table_lines(token)), "")
            case "hr":
                self._writer.write(_RULE)
            case _:
                self._list(token)

    def _list(self, token: Token) -> None:
        match token.type:
            case "bullet_list_open":
                self._numbers.append(None)
            case "ordered_list_open":
                self._numbers.append(int(token.attrs.get("start", 1)))
            case "bullet_list_close" | "ordered_list_close":
                self._numbers.pop()
            case "list_item_open":
                self._writer.open_item(self._marker(token))
            case "list_item_close":
                self._writer.close_item()

    def _marker(self, token: Token) -> str:
        number = self._numbers[-1]
        if number is None:
            return _BULLET
        self._numbers[-1] = number + 1
        return f"{number}{token.markup} "

    def _code(self, token: Token) -> None:
        """A block of code; what its fence says beside the language is a line above it, or all if there is no code."""
        word, rest = [*token.info.split(maxsplit=1), "", ""][:2]
        tells = token.content.strip() and _LANGUAGE.fullmatch(word)
        language, title = (word, rest) if tells else ("", token.info)
        if title.strip():
            self._writer.write(title.strip())
            self._writer.line(1)
        self._writer.write_block(token.content.removesuffix("\n"), language)


def _write_inline(writer: Writer, tokens: list[Token]) -> None:
    link, empty = Token("", "", 0), True
    for token in tokens:
        empty = empty and not token.content.strip() and token.type != "image"
        match token.type:
            case "softbreak" | "hardbreak":
                writer.write("\n")
            case "code_inline":
                _write_styled(writer, "code", token.content)
            case "image":
                _write_image(writer, token)
            case "link_open":
                link, empty = token, True
                writer.open("link", _attribute(token, "href"))
            case "link_close":
                writer.write(_attribute(link, "href") if empty else "")
                writer.close()
                writer.write(_title(link))
            case kind if kind in _STYLES:
                writer.open(_STYLES[kind])
            case kind if kind in _STYLES_END:
                writer.close()
            case _:
                writer.write(token.content)


def _write_styled(writer: Writer, kind: Kind, text: str, value: str = "") -> None:
    writer.open(kind, value)
    writer.write(text)
    writer.close()


def _write_image(writer: Writer, token: Token) -> None:
    """The text for where there is no picture, linked to it."""
    url = _attribute(token, "src")
    alternative = readable(_flat(token.children or []))
    _write_styled(writer, "link", alternative if alternative.strip() else url, url)
    writer.write(_title(token))


def _attribute(token: Token, name: str) -> str:
    return str(token.attrs.get(name, ""))


def _title(token: Token) -> str:
    """What a mouse would show: no platform has a place for it, so it follows in brackets."""
    title = _attribute(token, "title")
    return f" ({title})" if title else ""


def _flat(tokens: list[Token]) -> Formatted:
    writer = Writer()
    _write_inline(writer, tokens)
    return writer.finish()


def _table(lines: list[str]) -> str:
    """A table drawn; a link in it is told by its URL, for nothing can be linked in drawn text."""
    header, rule, *body = [_cells(line) for line in lines]
    rows = [[readable(_flat(parse_inline(cell))).replace("\n", " ") for cell in row] for row in (header, *body)]
    return draw_table(rows, [_alignment(cell) for cell in rule])


def _cells(line: str) -> list[str]:
    cells = [cell.strip().replace("\\|", "|") for cell in _CELL_BORDER.split(line.strip())]
    first = 1 if len(cells) > 1 and not cells[0] else 0
    last = len(cells) - 1 if len(cells) > first + 1 and not cells[-1] else len(cells)
    return cells[first:last]


def _alignment(cell: str) -> Alignment:
    if not cell.endswith(":"):
        return "left"
    return "center" if cell.startswith(":") else "right"
