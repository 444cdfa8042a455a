"""Writes formatted text from the front to the back: lines with their list markers, spans opened and closed. Pure."""

from shared.text.formatted import Formatted, Kind, Span


class Writer:
    """A text in the making.

    What stands before a text (line breaks, indentation, list markers) is written only once there is a text, so that
    spans begin and end at what they are about.
    """

    def __init__(self) -> None:
        self.size = 0
        self._parts: list[str] = []
        self._breaks = 0
        self._begun = False
        self._markers: list[str] = []
        self._unwritten = 0
        self._open: list[_Style | None] = []
        self._spans: list[_Style] = []

    def line(self, breaks: int) -> None:
        """What comes next stands on a line of its own, after so many line breaks."""
        self._breaks = max(self._breaks, breaks)
        self._begun = False

    def write(self, text: str) -> None:
        """Adds text; its lines are indented as the list around them is."""
        if not text:
            return
        self._lead()
        self._begin(self._open)
        self._put(text.replace("\n", "\n" + " " * self._indentation(len(self._markers))))

    def write_block(self, text: str, language: str) -> None:
        """Adds text as it is, on lines of its own."""
        if not text:
            return
        self._free_line()
        self._break()
        self.open("pre", language)
        self._begin(self._open)
        self._put(text)
        self.close()
        self._begun = True

    def open(self, kind: Kind, value: str = "") -> None:
        """Begins a span; within one of its kind it changes nothing, nor does a link to nowhere."""
        again = any(style is not None and style.kind == kind for style in self._open)
        idle = again or (kind == "link" and not value)
        if kind == "quote" and not again:
            self._free_line()
        self._open.append(None if idle else _Style(kind, value, len(self._markers)))

    def close(self) -> None:
        """Ends the span that was begun last."""
        style = self._open.pop()
        if style is not None:
            style.end = self.size

    def open_item(self, marker: str) -> None:
        """Begins an item of a list."""
        self._markers.append(marker)
        self._unwritten += 1

    def close_item(self) -> None:
        """Ends the item that was begun last; an empty one is its marker."""
        if self._unwritten:
            self._lead()
        self._markers.pop()

    def finish(self) -> Formatted:
        """The text."""
        spans = (Span(style.start, style.end, style.kind, style.value) for style in self._spans)
        return Formatted("".join(self._parts), tuple(spans))

    def _free_line(self) -> None:
        """A block never shares its line with a list marker: platforms draw it from the left edge."""
        if self._unwritten:
            self._lead()
            self.line(1)

    def _lead(self) -> None:
        if self._begun:
            return
        self._break()
        self._begin([style for style in self._open if style is not None and style.kind == "quote"])
        written = len(self._markers) - self._unwritten
        self._put(" " * self._indentation(written) + "".join(self._markers[written:]))
        self._unwritten = 0
        self._begun = True

    def _break(self) -> None:
        if self.size:
            self._put("\n" * self._breaks)
        self._breaks = 0

    def _begin(self, styles: "list[_Style | None] | list[_Style]") -> None:
        for style in styles:
            if style is not None and style.start < 0:
                style.start = self.size
                self._spans.append(style)

    def _indentation(self, depth: int) -> int:
        """How far a line is moved in by the items around it, down to a depth; a quote begins at the left edge."""
        edge = max((style.items for style in self._open if style is not None and style.kind == "quote"), default=0)
        return sum(map(len, self._markers[edge:depth]))

    def _put(self, text: str) -> None:
        self._parts.append(text)
        self.size += len(text)


class _Style:
    def __init__(self, kind: Kind, value: str, items: int) -> None:
        self.kind = kind
        self.value = value
        self.items = items
        self.start = -1
        self.end = -1
