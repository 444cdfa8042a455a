"""The coalescing rules: which delta is next, which is a repeat, which is refused. Pure (IM v2 §6).

The text is kept as UTF-8 bytes (lone surrogates let pass, so that two halves of a character meet), and beside it the
offset at which every sequence ended: a repeat is compared with the very text that came first.
"""

from array import array
from typing import Literal

from shared.state.streams import Append, StoredStream

Verdict = Literal["appended", "repeat", "sequence_gap", "sequence_conflict", "stream_too_large"]


class Stream:
    """The text of one message so far, hot in memory.

    Attributes:
        text: UTF-8, surrogates let pass.
        ends: for each sequence, from 1, the byte offset of its end.
        stored: how many sequences the shared state has.
    """

    __slots__ = ("ends", "noted", "noted_at", "stored", "text", "touched")

    def __init__(self) -> None:
        self.text = bytearray()
        self.ends = array("I")
        self.stored = 0
        self.noted = 0
        self.noted_at = float("-inf")
        self.touched = 0.0

    @property
    def sequence(self) -> int:
        """The last sequence that was appended; 0 at the beginning."""
        return len(self.ends)

    @property
    def is_dirty(self) -> bool:
        """Whether the shared state has less than this."""
        return self.stored < len(self.ends)

    def apply(self, sequence: int, text: bytes, most_bytes: int) -> Verdict:
        """Takes the next delta, or says why not; a refused one changes nothing."""
        if sequence == len(self.ends) + 1:
            if len(self.text) + len(text) > most_bytes:
                return "stream_too_large"
            self.text += text
            self.ends.append(len(self.text))
            return "appended"
        if sequence > len(self.ends):
            return "sequence_gap"
        start = self.ends[sequence - 2] if sequence > 1 else 0
        return "repeat" if self.text[start : self.ends[sequence - 1]] == text else "sequence_conflict"

    def unsaved(self, channel: str, message_id: str) -> Append:
        """What the shared state lacks."""
        start = self.ends[self.stored - 1] if self.stored else 0
        return Append(
            channel,
            message_id,
            self.stored,
            bytes(self.text[start:]),
            self.ends[self.stored :].tobytes(),
            len(self.ends),
        )

    def restore(self, stored: StoredStream | None) -> None:
        """Becomes what the shared state has; where that has lost it, everything is to be written again."""
        if stored is None:
            self.stored = 0
            return
        self.text = bytearray(stored.text)
        self.ends = array("I", stored.ends)
        self.stored = len(self.ends)
