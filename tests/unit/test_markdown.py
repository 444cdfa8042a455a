"""The field reports on text, and how Markdown shows on Telegram and Matrix."""

import re
import sys

import pytest

from services.delivery.targets.matrix.html import matrix_texts, size_in_event
from services.delivery.targets.telegram.entities import Entity, Found, found_in, is_blank, telegram_texts
from shared.text.formatted import Formatted, Span, readable, scale_of, split_formatted, trimmed
from shared.text.markdown import MOST_MARKERS, parse_markdown
from tests.support.matrix_rules import read_html
from tests.support.telegram_rules import check_message, styled

FAMILY = "\U0001f468\u200d\U0001f469\u200d\U0001f467\u200d\U0001f466"
POINTS = scale_of("points")
ROWS = [f"row_{n:03} = compute({n})" for n in range(300)]
BUY = (
    "**Buy** a_b_c (v1.2-rc)! \u0f3c\u30ce\u25d5\u30ee\u25d5\u0f3d\u30ce*:\u00b7\u2727* <Tom&Co> `x<y` "
    "![p](http://e.test/a_b.png) [q](http://e.test/a_(b))"
)
BUY_ESCAPED = BUY.replace("`", "\\`")


def spans(source: str) -> list[tuple[str, str, str]]:
    whole = parse_markdown(source)
    return [(span.kind, whole.text[span.start : span.end], span.value) for span in whole.spans]


# Field report 14


@pytest.mark.parametrize(
    ("source", "second"),
    [
        ("x" * 1996 + FAMILY, FAMILY),
        ("y" * 1999 + "\U0001f1ef\U0001f1f5", "\U0001f1ef\U0001f1f5"),
        ("z" * 1999 + "e\u0301", "e\u0301"),
    ],
    ids=["family", "flag", "accent"],
)
def test_a_grapheme_at_the_limit_goes_whole_to_the_next_piece(source: str, second: str) -> None:
    pieces = split_formatted(parse_markdown(source), 2000, POINTS)
    assert [piece.text for piece in pieces] == [source[: -len(second)], second]


def test_a_grapheme_longer_than_the_limit_is_cut_and_ends() -> None:
    source = "a" + "\u0301" * 2500
    pieces = split_formatted(parse_markdown(source), 2000, POINTS)
    assert len(pieces) >= 2
    assert all(len(piece.text) <= 2000 for piece in pieces)
    assert "".join(piece.text for piece in pieces) == source


# Field report 15

BACKTICKS = "Intro\n```py\n" + "\n".join(ROWS) + "\n```\nEnd"
TILDES = "Intro\n~~~~py\n" + "\n".join(ROWS) + "\n~~~~\nEnd"
LISTED = "- Intro\n\n  ```py\n" + "\n".join("  " + row for row in ROWS) + "\n  ```\n\nEnd"


@pytest.mark.parametrize("source", [BACKTICKS, TILDES, LISTED], ids=["backticks", "tildes", "in a list"])
def test_a_long_fence_is_closed_and_opened_again_with_its_language(source: str) -> None:
    pieces = split_formatted(parse_markdown(source), 2000, POINTS)
    codes = [piece.text[span.start : span.end] for piece in pieces for span in piece.spans]
    assert all(len(piece.text) <= 2000 for piece in pieces)
    assert {(span.kind, span.value) for piece in pieces for span in piece.spans} == {("pre", "py")}
    assert "".join(codes).split("\n") == ROWS
    assert len(codes) == len(pieces) > 2


@pytest.mark.parametrize("source", [BACKTICKS, TILDES, LISTED], ids=["backticks", "tildes", "in a list"])
def test_each_message_shows_its_rows_as_code(source: str) -> None:
    messages = telegram_texts(source, 2000)
    for message in messages:
        check_message(message.text, message.entities, 2000)
    codes = [styled(message.text, entity) for message in messages for entity in message.entities]
    assert "\n".join(codes).split("\n") == ROWS
    assert {(entity.type, entity.language) for message in messages for entity in message.entities} == {("pre", "py")}
    events = matrix_texts(source, 2000)
    assert re.findall(r"row_\d+", "".join(read_html(event.formatted_body) for event in events)) == [
        row.split()[0] for row in ROWS
    ]
    assert all(event.formatted_body.count('<pre><code class="language-py">') == 1 for event in events[1:-1])


def test_indented_code_at_the_beginning_of_a_message_keeps_its_indentation() -> None:
    source = "```py\n" + "    return x\n" * 600 + "```"
    for message in telegram_texts(source):
        check_message(message.text, message.entities)
        assert message.text.startswith("    return x")


# Field report 16


@pytest.mark.parametrize(
    "source",
    ["k" + "." * 5000, "<b>" + "w " * 3000 + "</b>", "**" + "w " * 2999 + "w**", r"k" + r"\." * 5000],
    ids=["dots", "raw HTML", "bold", "escaped dots"],
)
def test_what_is_cut_is_the_text_and_never_the_markup(source: str) -> None:
    whole = parse_markdown(source)
    messages = telegram_texts(source)
    for message in messages:
        check_message(message.text, message.entities)
    joined = "".join(message.text for message in messages)
    assert joined.replace(" ", "") == whole.text.replace(" ", "")
    assert len(messages) == 2
    assert [len(message.entities) for message in messages] == [len(whole.spans)] * 2
    for event in matrix_texts(source, 8000):
        read_html(event.formatted_body)


def test_the_offsets_of_an_inbound_link_are_utf16_units() -> None:
    text = FAMILY + " see https://x.test"
    entities = [{"type": "url", "offset": 16, "length": 14}]
    assert found_in(text, entities) == [Found("url", "https://x.test", "https://x.test")]


def test_inbound_entities_that_make_no_sense_are_left_out() -> None:
    entities: list[dict[str, object]] = [
        {"type": "url"},
        {"type": "url", "offset": -1, "length": 2},
        {"type": "url", "offset": 9, "length": 2},
        {"type": "bold", "offset": 1, "length": 0},
        {"type": "text_link", "offset": 2, "length": 99, "url": "http://e.test"},
        {"type": "bold", "offset": 1, "length": 1},
    ]
    assert found_in("\U0001f600ab", entities) == [
        Found("text_link", "ab", "http://e.test"),
        Found("bold", "\ufffd"),
    ]


# Field report 17


def test_isolates_are_balanced_in_each_piece_and_the_order_is_kept() -> None:
    source = "\u2067\u05e9\u05dc\u05d5\u05dd \u05e2\u05d5\u05dc\u05dd\u2069 12.5? " * 200
    controls = str.maketrans("", "", "\u2066\u2067\u2068\u2069")
    whole = parse_markdown(source)
    pieces = split_formatted(whole, 2000, POINTS)
    assert all(len(piece.text) <= 2000 for piece in pieces)
    assert all(piece.text.count("\u2067") == piece.text.count("\u2069") for piece in pieces)
    assert "".join(piece.text for piece in pieces).translate(controls) == source.rstrip().translate(controls)


def test_a_long_isolate_is_closed_and_opened_again_beside_the_styles() -> None:
    source = "**\u2067" + "\u05e9\u05dc\u05d5\u05dd " * 60 + "x\u2069**"
    pieces = split_formatted(parse_markdown(source), 128, POINTS)
    assert all((piece.text[0], piece.text[-1]) == ("\u2067", "\u2069") for piece in pieces)
    assert all(len(piece.spans) == 1 for piece in pieces)


def test_a_mark_of_direction_at_the_beginning_stays_there() -> None:
    source = "\u200f**\u05e9\u05dc\u05d5\u05dd** 12.5?"
    assert telegram_texts(source)[0].text == "\u200f\u05e9\u05dc\u05d5\u05dd 12.5?"


# Field report 18


def test_names_stay_text_and_mention_nobody() -> None:
    source = "hi @everyone @here <@&42> <@7> [x](tg://user?id=7) <tg://user?id=7> @room"
    (message,) = telegram_texts(source)
    assert message.text == source
    assert message.entities == ()
    assert matrix_texts(source)[0].body == source
    assert matrix_texts(source)[0].formatted_body == ""


# Field report 20


@pytest.mark.parametrize("source", [BUY, BUY_ESCAPED], ids=["code", "escaped backticks"])
def test_odd_characters_are_taken_at_the_first_try_at_every_prefix(source: str) -> None:
    for end in range(1, len(source) + 1):
        for message in telegram_texts(source[:end]):
            check_message(message.text, message.entities)
        for event in matrix_texts(source[:end]):
            read_html(event.formatted_body)


def test_odd_characters_are_shown_as_they_are() -> None:
    (message,) = telegram_texts(BUY)
    assert message.text == (
        "Buy a_b_c (v1.2-rc)! \u0f3c\u30ce\u25d5\u30ee\u25d5\u0f3d\u30ce*:\u00b7\u2727* <Tom&Co> x<y p q"
    )
    assert [(e.type, styled(message.text, e), e.url) for e in message.entities] == [
        ("bold", "Buy", ""),
        ("code", "x<y", ""),
        ("text_link", "p", "http://e.test/a_b.png"),
        ("text_link", "q", "http://e.test/a_(b)"),
    ]
    (event,) = matrix_texts(BUY)
    assert "&lt;Tom&amp;Co&gt;" in event.formatted_body
    assert event.body == message.text.replace("p q", "p (http://e.test/a_b.png) q (http://e.test/a_(b))")
    assert message.plain == event.body


DOCUMENT = (
    "# Title with `code`\n\nSome *it **both*** ~~no~~\n\n1. one\n2. two\n   - deep [l](http://e.test/x?a=1&b=2 'hm')\n"
    "\n> quoted\n> > twice\n>\n> ```js\n> let a = 1;\n> ```\n\n| a | b |\n|---|--:|\n| 1 | **2** |\n\n---\n![](http://e.test/i)"
)


def test_every_prefix_of_a_document_can_be_shown_everywhere() -> None:
    for end in range(1, len(DOCUMENT) + 1):
        for message in telegram_texts(DOCUMENT[:end], 64):
            check_message(message.text, message.entities, 64)
        for event in matrix_texts(DOCUMENT[:end]):
            read_html(event.formatted_body)
        assert parse_markdown(DOCUMENT[:end]).text.strip()


# The model


@pytest.mark.parametrize(
    ("source", "text", "expected"),
    [
        ("# Head\ntext", "Head\ntext", [("bold", "Head", "")]),
        ("a *b **c*** ~~d~~", "a b c d", [("italic", "b c", ""), ("bold", "c", ""), ("strike", "d", "")]),
        ("- a\n- b\n  1) c\n  2) d", "\u2022 a\n\u2022 b\n  1) c\n  2) d", []),
        ("7. a\n7. b\n\n   c", "7. a\n8. b\n\n   c", []),
        ("- ```\n  x\n  ```", "\u2022 \nx", [("pre", "x", "")]),
        ("> a\n> > b", "a\nb", [("quote", "a\nb", "")]),
        ("- > a\n  > - b\n  >   c", "\u2022 \na\n\u2022 b\n  c", [("quote", "a\n\u2022 b\n  c", "")]),
        ("a\\\nb  \nc\nd", "a\nb\nc\nd", []),
        ("![](http://e.test/p.png)", "http://e.test/p.png", [("link", "http://e.test/p.png", "http://e.test/p.png")]),
        ("[![b](http://e.test/b)](http://e.test)", "b", [("link", "b", "http://e.test")]),
        (
            "![a ![b](http://b.test)](http://a.test)",
            "a b (http://b.test)",
            [("link", "a b (http://b.test)", "http://a.test")],
        ),
        ("[](http://e.test 'T')", "http://e.test (T)", [("link", "http://e.test", "http://e.test")]),
        ("```py title=x\na\n```", "title=x\na", [("pre", "a", "py")]),
        ("<b>x</b> <!-- y --> &lt; <br>", "<b>x</b> <!-- y --> < <br>", []),
        ("<div>\nx\n</div>", "<div>\nx\n</div>", []),
        ("[x](javascript:y) [z](a.md)", "[x](javascript:y) [z](a.md)", []),
        ("[a][1]\n\n[1]: http://e.test", "[a][1]\n\n[1]: http://e.test", []),
        ("---\nx", "\u2014\u2014\u2014\nx", []),
        ("a\0b\ud800", "a\ufffdb\ufffd", []),
        ("#", "#", []),
        ("```py", "py", []),
        ("a\n~~~ b c\n~~~", "a\nb c", []),
        ("", "", []),
    ],
)
def test_markdown_shows(source: str, text: str, expected: list[tuple[str, str, str]]) -> None:
    assert parse_markdown(source).text == text
    assert spans(source) == expected


def test_a_table_is_drawn_with_its_surplus_cells_and_the_urls_of_its_links() -> None:
    source = "| a | b |\n|---|--:|\n| \u5831\\|x | 1 | more |\n| [l](http://e.test) |\n|||"
    assert parse_markdown(source).text.split("\n") == [
        "a                 | b",
        "------------------+---+-----",
        "\u5831|x              | 1 | more",
        "l (http://e.test)",
        "                  |",
    ]
    assert [kind for kind, _, _ in spans(source)] == ["pre"]


def test_what_nests_too_deep_stays_as_it_was_typed() -> None:
    assert parse_markdown(">" * 40 + " deep").text == ">" * 24 + " deep"
    assert "deep" in parse_markdown("- " * 40 + "deep").text


# Cutting


def test_a_link_goes_whole_to_the_next_piece_where_it_fits() -> None:
    source = "w " * 45 + "[one two three](http://e.test) after"
    pieces = split_formatted(parse_markdown(source), 100, POINTS)
    assert [piece.text for piece in pieces] == ["w " * 45, "one two three after"]


def test_a_link_longer_than_a_piece_leads_to_the_same_place_in_each() -> None:
    pieces = split_formatted(parse_markdown("[" + "word " * 50 + "x](http://e.test)"), 100, POINTS)
    assert {piece.spans[0].value for piece in pieces} == {"http://e.test"}
    assert all(len(piece.text) <= 100 for piece in pieces)


def test_a_message_has_no_more_entities_than_telegram_heeds() -> None:
    messages = telegram_texts("**b** `c` " * 300)
    for message in messages:
        check_message(message.text, message.entities)
    assert sum(len(message.entities) for message in messages) == 600


def test_an_event_has_room_for_the_longest_link() -> None:
    source = f"[a](http://e.test/?{'&' * 2020}) " * 15
    events = matrix_texts(source, 16_384)
    assert all(size_in_event(event) <= 16_384 for event in events)
    assert sum(event.formatted_body.count("<a ") for event in events) == 15


def test_a_limit_that_spans_alone_fill_is_refused() -> None:
    with pytest.raises(ValueError, match="spans"):
        matrix_texts(f"[a](http://e.test/{'x' * 500})", 600)


def test_a_limit_is_filled_where_the_text_allows() -> None:
    assert [len(message.text) for message in telegram_texts("x" * 10_000)] == [4096, 4096, 1808]


# Telegram


def test_styles_end_before_code_and_go_on_behind_it() -> None:
    (message,) = telegram_texts("**a `b` *c*** [`d` e](http://e.test)")
    assert message.text == "a b c d e"
    assert message.entities == (
        Entity("bold", 0, 1),
        Entity("code", 2, 1),
        Entity("bold", 4, 1),
        Entity("italic", 4, 1),
        Entity("text_link", 6, 3, url="http://e.test"),
    )


def test_offsets_count_utf16_units() -> None:
    (message,) = telegram_texts("\U0001f600 **b\U0001f600**")
    assert message.entities == (Entity("bold", 3, 3),)


@pytest.mark.parametrize("source", ["", " \n ", "\u200b", "\u2800"])
def test_what_shows_nothing_is_no_message(source: str) -> None:
    assert telegram_texts(source) == []
    assert is_blank(source)


def test_the_plain_form_leaves_urls_out_rather_than_grow_over_the_limit() -> None:
    (message,) = telegram_texts("[" + "x" * 90 + "](http://e.test/abcdef)", 100)
    assert message.plain == "x" * 90


# Matrix


@pytest.mark.parametrize(
    ("source", "html"),
    [
        ("plain  text\n\n  more", ""),
        ("**a**\n\nb", "<strong>a</strong><br><br>b"),
        ("a\n```c++\nx<y\n```\nb", 'a<pre><code class="language-c++">x&lt;y</code></pre>b'),
        ("> a\n> b\n\nc", "<blockquote>a<br>b</blockquote>c"),
        ("- *a*\n  - b", "\u2022 <em>a</em><br>\u00a0\u00a0\u2022 b"),
        ('[a"](http://e.test/?a&b "t")', '<a href="http://e.test/?a&amp;b">a&quot;</a> (t)'),
        ("~~a~~ `b`", "<del>a</del> <code>b</code>"),
    ],
)
def test_markdown_as_html(source: str, html: str) -> None:
    (event,) = matrix_texts(source)
    assert event.formatted_body == html
    read_html(html)


def test_a_body_tells_urls_once() -> None:
    whole = parse_markdown("[a](http://e.test) <http://x.test> [http://y.test](http://y.test)")
    assert readable(whole) == "a (http://e.test) http://x.test http://y.test"


def test_trimming_keeps_the_indentation_of_code_and_drops_spans_over_nothing() -> None:
    whole = Formatted(" \n  x  ", (Span(0, 7, "quote"), Span(2, 7, "pre"), Span(5, 6, "bold")))
    assert trimmed(whole) == Formatted("  x", (Span(0, 3, "quote"), Span(0, 3, "pre")))


# Hostile texts: work is counted in calls, which no machine makes faster or slower


def calls(source: str) -> int:
    count = 0

    def counting(*_: object) -> None:
        nonlocal count
        count += 1

    sys.setprofile(counting)
    try:
        telegram_texts(source, 400)
        matrix_texts(source, 2_000)
    finally:
        sys.setprofile(None)
    return count


BRACKETS = ["[", "![", "[a](", "[](", "[]()", "[`", "[*a](b)*", "<", "<a", "<http:", "[x](http://e)"]
RUNS = ["*", "*a_ ", "**a", "_a ", "~~a ", "`", "``", "&", "\\", "|", "**[`a`](http://e)**"]
LINES = [">", "> ", "- ", "* a\n  ", "a|b\n-|-\n", "```\n", "\n> ", "1. ", "# ", "\u2067", "a\u0301"]


@pytest.mark.parametrize("unit", [*BRACKETS, *RUNS, *LINES])
def test_hostile_texts_cost_work_in_proportion_to_their_length(unit: str) -> None:
    small, large = (calls(unit * (size // len(unit))) for size in (2_000, 4_000))
    assert large < 3 * small
    assert large < 500 * 4_000


@pytest.mark.parametrize("unit", ["[", "*", "`", ">", "**a", "\n"])
def test_a_text_of_little_but_markup_is_shown_as_it_is(unit: str) -> None:
    source = "x" + unit * (MOST_MARKERS + 1)
    assert parse_markdown(source) == Formatted(source)


def test_a_table_of_empty_cells_is_not_blown_up() -> None:
    source = "|" + "x" * 60 + "|" * 300 + "\n" + "|-" * 301 + "|\n" + "|\n" * 2000
    assert len(parse_markdown(source).text) < 3 * len(source) + 4096
