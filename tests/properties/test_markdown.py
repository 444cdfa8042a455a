import re

from hypothesis import example, given
from hypothesis import strategies as st

from services.delivery.targets.matrix.html import SCALE, matrix_texts, size_in_event
from services.delivery.targets.matrix.html import render as render_html
from services.delivery.targets.telegram.entities import is_blank, nested, telegram_texts
from shared.text.formatted import Formatted, Span, scale_of, split_formatted
from shared.text.markdown import parse_markdown
from shared.text.split import size_of
from tests.support.matrix_rules import read_html
from tests.support.telegram_rules import check_message

FAMILY = "\U0001f468\u200d\U0001f469\u200d\U0001f467\u200d\U0001f466"
BLOCKS = [
    "```py\n",
    "```\n",
    "~~~~ x y\n",
    "\n",
    "\n\n",
    "    ",
    "  ",
    "- ",
    "1. ",
    "7) ",
    "> ",
    "# ",
    "---\n",
    "===\n",
]
STYLES = ["*", "**", "_", "~~", "`", "``", "\\", "| a | b |\n|--|:-:|\n", "|", "&lt;", "&amp;", "<b>", "</b>", "<!--"]
LINKS = [
    "[",
    "](",
    ")",
    "![",
    "](http://e.test/a_(b))",
    "<http://e.test/?a=1&b>",
    "](tg://user?id=1)",
    '"',
    "'",
    "@all",
]
SPACES = [" ", "\t", "\r\n", "\r", "\u2067", "\u2069", "\u200f", "\u0301", "\0", "\ud83d"]
WORDS = [FAMILY, "\U0001f1ef\U0001f1f5", "\u05e9", "\u5831", "word. "]
MARKUP = st.sampled_from([*BLOCKS, *STYLES, *LINKS, *SPACES, *WORDS])
TEXTS = st.lists(
    st.one_of(MARKUP, st.characters(), st.text(max_size=6), st.text("ab .\n", max_size=40)), max_size=60
).map("".join)
LETTERS = re.compile(r"[^\W\d_]")
CONTROLS = str.maketrans("", "", "\u2066\u2067\u2068\u2069")


def spelled(whole: Formatted) -> str:
    """The text with what spans carry beside it, where they do."""
    inserts = [(span.start if span.kind == "pre" else span.end, span.value) for span in whole.spans]
    text = whole.text
    for at, value in sorted(inserts, key=lambda insert: insert[0], reverse=True):
        text = text[:at] + value + text[at:]
    return text


def letters(text: str) -> str:
    return "".join(LETTERS.findall(text))


def well_nested(spans: tuple[Span, ...]) -> bool:
    around: list[Span] = []
    for span in spans:
        while around and around[-1].end <= span.start:
            around.pop()
        if around and span.end > around[-1].end:
            return False
        around.append(span)
    return [span.start for span in spans] == sorted(span.start for span in spans)


@given(TEXTS)
@example("**` x`**")
def test_any_text_is_parsed_into_spans_that_nest_within_it(source: str) -> None:
    whole = parse_markdown(source)
    assert all(0 <= span.start < span.end <= len(whole.text) for span in whole.spans)
    assert well_nested(whole.spans)
    assert well_nested(nested(whole).spans)
    whole.text.encode()


# Hebrew is text here; of languages and URLs, which are not, it is said elsewhere what becomes of them.
PLAIN_BLOCKS = [
    "```py\n",
    "~~~~ x \u05d7\n",
    *BLOCKS[3:],
    "<\u05d1>",
    "<!--",
    "[\u05d6]: http://e.test\n",
    "\u05d0|\u05d1\n-|-\n",
    "|",
]
PLAIN_STYLES = [
    "*",
    "**",
    "_",
    "~~",
    "`",
    "``",
    "\\",
    "[",
    "](",
    ")",
    "![",
    "](http://e.test/a_(b))",
    "](tg://user?id=1)",
]
PLAIN_MARKUP = st.sampled_from([*PLAIN_BLOCKS, *PLAIN_STYLES, '(http://e.test "\u05d8\u05d9")'])


@given(st.lists(st.one_of(PLAIN_MARKUP, st.text("\u05d0\u05d1\u05d2", max_size=5)), max_size=40).map("".join))
def test_every_letter_is_kept_in_order(source: str) -> None:
    shown = iter(parse_markdown(source).text)
    assert all(letter in shown for letter in source if letter >= "\u05d0")


@given(TEXTS)
def test_letters_that_no_markup_is_about_are_shown(source: str) -> None:
    assert spelled(parse_markdown(source)).count("word") >= source.count("word")


@given(TEXTS, st.integers(64, 400), st.integers(8, 100))
def test_pieces_are_within_the_limit_and_join_to_the_text(source: str, limit: int, most: int) -> None:
    whole = parse_markdown(source)
    pieces = split_formatted(whole, limit, scale_of("utf16", most))
    assert all(piece.text and size_of(piece.text, "utf16") <= limit for piece in pieces)
    assert all(len(piece.spans) <= most and well_nested(piece.spans) for piece in pieces)
    assert "".join(piece.text for piece in pieces).translate(CONTROLS) == whole.text.translate(CONTROLS)


@given(TEXTS, st.integers(64, 400))
def test_styles_are_the_same_after_cutting(source: str, limit: int) -> None:
    whole = parse_markdown(source)
    pieces = split_formatted(whole, limit, scale_of("points"))
    for kind in ("bold", "italic", "strike", "code", "pre", "link", "quote"):
        before = "".join(whole.text[span.start : span.end] for span in whole.spans if span.kind == kind)
        after = "".join(
            piece.text[span.start : span.end] for piece in pieces for span in piece.spans if span.kind == kind
        )
        assert after.translate(CONTROLS) == before.translate(CONTROLS)


@given(TEXTS, st.integers(64, 400))
def test_telegram_takes_every_message(source: str, limit: int) -> None:
    for text in telegram_texts(source, limit):
        check_message(text.text, text.entities, limit)
        assert size_of(text.plain, "utf16") <= limit


@given(TEXTS, st.integers(400, 3000))
def test_matrix_takes_every_event(source: str, limit: int) -> None:
    for text in matrix_texts(source, limit):
        assert size_in_event(text) <= limit
        shown = read_html(text.formatted_body)
        assert not shown or letters(shown) in letters(text.body) or "http" in text.body


@given(TEXTS, st.integers(400, 3000))
def test_html_shows_the_text_of_its_piece(source: str, limit: int) -> None:
    for piece in split_formatted(parse_markdown(source), limit, SCALE):
        html = render_html(piece).formatted_body
        if html:
            assert "".join(read_html(html).split()) == "".join(piece.text.split())


@given(TEXTS)
def test_nothing_that_shows_is_left_out_of_the_messages(source: str) -> None:
    whole = parse_markdown(source)
    shown = "".join(text.text for text in telegram_texts(source, 64)).translate(CONTROLS)
    assert is_blank(whole.text) or letters(shown) == letters(whole.text)
