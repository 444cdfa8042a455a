"""Whatever the network does to the deltas of a stream, the text is a beginning of the true text (IM v2 §6)."""

import json
from typing import NamedTuple

from hypothesis import given
from hypothesis import strategies as st

from services.aggregator.coalesce import Stream, Verdict
from shared.state.streams import Append, StoredStream
from shared.wire.codec import decode, delta_bytes, shown_text
from shared.wire.packets import SCHEMA, ChatDelta

MOST = 1 << 20
Delta = tuple[int, bytes]

PIECES = st.lists(st.one_of(st.text(max_size=6).map(str.encode), st.binary(max_size=4)), min_size=1, max_size=12)
"""What the deltas of a stream say; bytes, since the rules never look inside."""
ASTRAL = st.sampled_from(["\U0001f600", "\U0001f468\u200d\U0001f469", "a", "é", "\n"])
TEXTS = st.lists(st.one_of(ASTRAL, st.characters(exclude_categories=["Cs"], exclude_characters="\0"))).map("".join)


def numbered(pieces: list[bytes]) -> list[Delta]:
    return list(enumerate(pieces, start=1))


@st.composite
def scrambled(draw: st.DrawFn) -> tuple[bytes, list[Delta]]:
    """The true text, and its deltas with any of them lost, repeated and out of order."""
    deltas = numbered(draw(PIECES))
    return b"".join(text for _, text in deltas), draw(st.lists(st.sampled_from(deltas), max_size=40))


@st.composite
def repeated(draw: st.DrawFn) -> tuple[bytes, list[Delta]]:
    """The true text, and its deltas in order, each followed by any number of those that came before."""
    deltas = numbered(draw(PIECES))
    arrived: list[Delta] = []
    for count, delta in enumerate(deltas, start=1):
        arrived += [delta, *draw(st.lists(st.sampled_from(deltas[:count]), max_size=3))]
    return b"".join(text for _, text in deltas), arrived


def facts(stream: Stream) -> tuple[bytes, list[int], int]:
    return bytes(stream.text), stream.ends.tolist(), stream.stored


@given(scrambled())
def test_loss_reorder_and_repeats_leave_a_beginning_of_the_true_text(case: tuple[bytes, list[Delta]]) -> None:
    """After every delta the text is a prefix of the truth, and a refused delta was neither next nor known."""
    truth, arrived = case
    stream = Stream()
    for sequence, text in arrived:
        known = stream.sequence
        verdict = stream.apply(sequence, text, MOST)
        assert verdict == ("appended" if sequence == known + 1 else "repeat" if sequence <= known else "sequence_gap")
        assert truth.startswith(stream.text)


@given(repeated())
def test_in_order_with_any_repeats_the_text_is_exactly_the_true_one(case: tuple[bytes, list[Delta]]) -> None:
    """Nothing is refused, nothing is there twice."""
    truth, arrived = case
    stream = Stream()
    assert {stream.apply(sequence, text, MOST) for sequence, text in arrived} <= {"appended", "repeat"}
    assert bytes(stream.text) == truth


@given(
    st.lists(st.tuples(st.integers(1, 6), st.binary(max_size=3)), max_size=30), st.integers(0, 12), st.integers(0, 5)
)
def test_a_refused_delta_changes_nothing_and_uses_up_nothing(arrived: list[Delta], most: int, stored: int) -> None:
    """Gaps, conflicts and what is too large leave text, ends and what is stored as they were; repeats do too."""
    stream = Stream()
    accepted: list[bytes] = []
    for sequence, text in arrived:
        stream.stored = min(stored, stream.sequence)
        before = facts(stream)
        verdict: Verdict = stream.apply(sequence, text, most)
        if verdict == "appended":
            accepted.append(text)
            assert sequence == len(accepted)
        else:
            assert facts(stream) == before
        if verdict == "repeat":
            assert text == accepted[sequence - 1]
        if verdict == "sequence_conflict":
            assert text != accepted[sequence - 1]
        assert bytes(stream.text) == b"".join(accepted)
        assert len(stream.text) <= most


@given(PIECES.filter(any))
def test_the_size_limit_is_exact(pieces: list[bytes]) -> None:
    """A text of just the limit fits, one byte less of a limit refuses its last delta, and one byte more is refused."""
    truth = b"".join(pieces)
    fits, short = Stream(), Stream()
    assert [fits.apply(sequence, text, len(truth)) for sequence, text in numbered(pieces)] == ["appended"] * len(pieces)
    last = max(sequence for sequence, text in numbered(pieces) if text)
    for sequence, text in numbered(pieces)[:last]:
        expected = "stream_too_large" if sequence == last else "appended"
        assert short.apply(sequence, text, len(truth) - 1) == expected
    assert bytes(short.text) == b"".join(pieces[: last - 1])
    assert fits.apply(fits.sequence + 1, b"x", len(truth)) == "stream_too_large"
    assert fits.apply(fits.sequence + 1, b"", len(truth)) == "appended"
    assert bytes(fits.text) == truth


class Shelf:
    """The rules of the shared state for one stream (`shared/state/streams.py`): an append names what it follows."""

    def __init__(self) -> None:
        self.kept: StoredStream | None = None

    def append(self, window: Append) -> bool:
        """False means "behind"."""
        kept = self.kept or StoredStream(b"", b"", 0)
        if kept.last_seq != window.prior_seq:
            return False
        self.kept = StoredStream(kept.text + window.text, kept.ends + window.ends, window.last_seq)
        return True


class Step(NamedTuple):
    """One event: an aggregator takes a delta, or starts anew, or the state is lost."""

    what: str
    who: int
    sequence: int


STEPS = st.lists(
    st.builds(
        Step,
        st.sampled_from(["delta", "delta", "delta", "delta", "store", "restart", "flush"]),
        st.integers(0, 1),
        st.integers(1, 8),
    ),
    max_size=40,
)


def store(stream: Stream, shelf: Shelf, deltas: list[Delta]) -> None:
    """As the aggregator does it: one that is behind reads what is there and applies its deltas again."""
    while stream.is_dirty:
        if shelf.append(stream.unsaved("c", "m")):
            stream.stored = stream.sequence
            return
        stream.restore(shelf.kept)
        for sequence, text in deltas:
            stream.apply(sequence, text, MOST)


@given(st.lists(st.binary(max_size=4), min_size=8, max_size=8), STEPS)
def test_aggregators_that_take_over_at_any_point_never_leave_the_true_text(
    pieces: list[bytes], steps: list[Step]
) -> None:
    """Two of them, in turns, with loss of the state, of either process and of deltas: text and state stay a prefix."""
    deltas, truth = numbered(pieces), b"".join(pieces)
    shelf, hot = Shelf(), [Stream(), Stream()]
    since: list[list[Delta]] = [[], []]
    for what, who, sequence in steps:
        match what:
            case "delta":
                since[who].append(deltas[sequence - 1])
                hot[who].apply(*deltas[sequence - 1], MOST)
            case "store":
                store(hot[who], shelf, since[who])
                since[who] = []
            case "restart":
                hot[who], since[who] = Stream(), []
                hot[who].restore(shelf.kept)
            case _:
                shelf.kept = None
        kept = shelf.kept or StoredStream(b"", b"", 0)
        for text, ends in ((bytes(one.text), one.ends.tobytes()) for one in hot):
            assert truth.startswith(text)
            assert len(ends) // 4 <= len(deltas)
        assert truth.startswith(kept.text)
        assert kept.text == b"".join(pieces[: kept.last_seq])


@given(repeated(), st.data())
def test_a_successor_that_gets_the_unsettled_deltas_again_has_exactly_the_true_text(
    case: tuple[bytes, list[Delta]], data: st.DataObject
) -> None:
    """A takeover at any point, at any time after the last store: what was not stored comes again from the bus."""
    truth, arrived = case
    stored_after = data.draw(st.integers(0, len(arrived)))
    died_after = data.draw(st.integers(stored_after, len(arrived)))
    shelf, first, second = Shelf(), Stream(), Stream()
    for sequence, text in arrived[:stored_after]:
        first.apply(sequence, text, MOST)
    store(first, shelf, [])
    for sequence, text in arrived[stored_after:died_after]:
        first.apply(sequence, text, MOST)
    second.restore(shelf.kept)
    assert second.sequence == first.stored
    assert {second.apply(sequence, text, MOST) for sequence, text in arrived[stored_after:]} <= {"appended", "repeat"}
    store(second, shelf, [])
    assert bytes(second.text) == truth
    assert (shelf.kept or StoredStream(b"", b"", 0)).text == truth
    store(first, shelf, arrived[stored_after:died_after])  # the one that was away has to follow
    assert truth.startswith(first.text)
    assert (shelf.kept or StoredStream(b"", b"", 0)).text == truth


@st.composite
def cut_between_code_units(draw: st.DrawFn) -> tuple[str, list[str]]:
    """A text, and the same cut where a JavaScript agent may cut it: between any two UTF-16 code units."""
    text = draw(TEXTS)
    units = text.encode("utf-16-le")
    cuts = sorted(2 * cut for cut in draw(st.sets(st.integers(0, len(units) // 2), max_size=12)))
    bounds = zip([0, *cuts], [*cuts, len(units)], strict=True)
    return text, [units[start:end].decode("utf-16-le", "surrogatepass") for start, end in bounds]


def wire_bytes(sequence: int, text: str) -> bytes:
    """What the aggregator gets of a delta that went through the edge."""
    payload = {"message_id": "m", "sequence": sequence, "text": text}
    frame = {"schema": SCHEMA, "type": "chat.message.delta", "packet_id": "p", "payload": payload}
    packet, _ = decode(json.dumps(frame).encode())
    assert isinstance(packet, ChatDelta)
    return delta_bytes(packet.payload)


@given(cut_between_code_units())
def test_characters_cut_in_half_join_again(case: tuple[str, list[str]]) -> None:
    """Through the codec and the stream: at every moment a beginning of the text is shown, at the end all of it."""
    text, pieces = case
    stream = Stream()
    for sequence, piece in enumerate(pieces, start=1):
        assert stream.apply(sequence, wire_bytes(sequence, piece), MOST) == "appended"
        assert stream.apply(sequence, wire_bytes(sequence, piece), MOST) == "repeat"
        assert text.startswith(shown_text(bytes(stream.text)))
    assert shown_text(bytes(stream.text)) == text


@given(cut_between_code_units(), st.data())
def test_halves_wait_for_one_another_over_a_takeover(case: tuple[str, list[str]], data: st.DataObject) -> None:
    """A half that was stored alone joins its other half in the successor."""
    text, pieces = case
    first, second, shelf = Stream(), Stream(), Shelf()
    away = data.draw(st.integers(0, len(pieces)))
    for sequence, piece in enumerate(pieces[:away], start=1):
        first.apply(sequence, wire_bytes(sequence, piece), MOST)
    store(first, shelf, [])
    second.restore(shelf.kept)
    for sequence, piece in enumerate(pieces[away:], start=away + 1):
        assert second.apply(sequence, wire_bytes(sequence, piece), MOST) == "appended"
    assert shown_text(bytes(second.text)) == text
