"""What Matrix clients let pass in a formatted_body: allowed tags and attributes, each tag closed where it should be.

Source: https://spec.matrix.org/latest/client-server-api/#mroommessage-msgtypes.
"""

import re
from html.parser import HTMLParser
from typing import Final

HEADINGS: Final = {"h1", "h2", "h3", "h4", "h5", "h6"}
INLINE: Final = {"del", "a", "sup", "sub", "b", "i", "u", "strong", "em", "s", "code", "br", "span", "img"}
BLOCKS: Final = {"blockquote", "p", "ul", "ol", "li", "hr", "div", "pre", "details", "summary"}
TABLES: Final = {"table", "thead", "tbody", "tr", "th", "td", "caption"}
ALLOWED: Final = HEADINGS | INLINE | BLOCKS | TABLES
ATTRIBUTES: Final = {"a": {"href"}, "code": {"class"}}
ENTITIES: Final = re.compile(r"&(?!(?:amp|lt|gt|quot|#x27);)")


class _Reader(HTMLParser):
    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.text: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert tag in ALLOWED
        assert {name for name, _ in attrs} <= ATTRIBUTES.get(tag, set())
        for name, value in attrs:
            assert value
            assert name != "href" or value.lower().startswith(("http://", "https://", "mailto:"))
            assert name != "class" or re.fullmatch(r"language-[A-Za-z0-9_+#.-]+", value)
        assert tag != "a" or "a" not in self.open
        if tag == "br":
            self.text.append("\n")
        else:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text.append(data)

    def handle_comment(self, data: str) -> None:
        raise AssertionError(data)

    handle_decl = handle_pi = unknown_decl = handle_comment


def read_html(html: str) -> str:
    """Checks a formatted_body and returns its text."""
    assert not ENTITIES.search(html)
    reader = _Reader()
    reader.feed(html)
    reader.close()
    assert not reader.open
    return "".join(reader.text)
