"""The Markdown parser, set up so that it never drops a text and never works more than in proportion to it. Pure.

With `markdown`, the only module that imports `markdown_it`. What is set up otherwise than CommonMark says, and why:
docs/text.md.
"""

import re
from collections.abc import Callable
from typing import Final

from markdown_it import MarkdownIt
from markdown_it.rules_block import StateBlock, blockquote, list_block, table
from markdown_it.token import Token

LONGEST_URL: Final = 2048

_LINK: Final = re.compile(r"https?://[^\s/]|mailto:[^\s]", re.IGNORECASE)
_DEEPEST_BLOCK: Final = 16
_DEEPEST_BRACKET: Final = 8
"""Each `[` costs the library as many steps as brackets may nest."""

BlockRule = Callable[[StateBlock, int, int, bool], bool]


def parse_blocks(text: str) -> list[Token]:
    """The blocks of a text; their inline texts are not parsed yet, and of tables only the lines are to be read."""
    tokens: list[Token] = []
    _BLOCKS.block.parse(text, _BLOCKS, {}, tokens)
    return tokens


def parse_inline(text: str) -> list[Token]:
    """What is in a line or paragraph."""
    tokens: list[Token] = []
    _INLINES.inline.parse(text, _INLINES, {}, tokens)
    return tokens


def table_lines(token: Token) -> list[str]:
    """The source lines of a table."""
    lines: list[str] = token.meta["lines"]
    return lines


class _Parser(MarkdownIt):
    """The library's parser with the links that we allow; others stay as they were typed."""

    def validateLink(self, url: str) -> bool:  # noqa: N802 - the library's hook
        return len(url) <= LONGEST_URL and bool(_LINK.match(url))


def _shallow(rule: BlockRule) -> BlockRule:
    """The rule down to some depth; deeper the library would drop the text, so there it stays a paragraph."""

    def limited(state: StateBlock, start: int, end: int, silent: bool) -> bool:  # noqa: FBT001 - the library's hook
        return state.level < _DEEPEST_BLOCK and rule(state, start, end, silent)

    return limited


def _whole_table(state: StateBlock, start: int, end: int, silent: bool) -> bool:  # noqa: FBT001 - the library's hook
    """The library's rule drops surplus cells and makes up missing ones: the lines are kept, for us to read."""
    at = len(state.tokens)
    if not table(state, start, end, silent):
        return False
    if not silent:
        lines = range(start, state.line)
        state.tokens[at].meta["lines"] = [state.src[state.bMarks[n] + state.tShift[n] : state.eMarks[n]] for n in lines]
        del state.tokens[at + 1 : -1]
    return True


def _parser(deepest: int) -> MarkdownIt:
    parser = _Parser("commonmark", {"html": False, "maxNesting": deepest})
    parser.enable(["table", "strikethrough"]).disable(["reference", "html_block", "html_inline"])
    rules = parser.block.ruler
    rules.at("blockquote", _shallow(blockquote), {"alt": ["paragraph", "reference", "blockquote", "list"]})
    rules.at("list", _shallow(list_block), {"alt": ["paragraph", "reference", "blockquote"]})
    rules.at("table", _whole_table, {"alt": ["paragraph", "reference"]})
    return parser


_BLOCKS: Final = _parser(_DEEPEST_BLOCK + 4)
_INLINES: Final = _parser(_DEEPEST_BRACKET)
