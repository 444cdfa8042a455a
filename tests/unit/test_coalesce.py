from array import array

from services.aggregator.coalesce import Stream
from shared.state.streams import StoredStream

MOST = 20


def test_next_is_appended_repeat_ignored_gap_and_conflict_refused() -> None:
    """IM v2 §6, and a refused delta does not use up its sequence."""
    stream = Stream()
    assert stream.apply(1, b"ab", MOST) == "appended"
    assert stream.apply(1, b"ab", MOST) == "repeat"
    assert stream.apply(3, b"ef", MOST) == "sequence_gap"
    assert stream.apply(1, b"aX", MOST) == "sequence_conflict"
    assert stream.apply(2, b"cd", MOST) == "appended"
    assert stream.apply(2, b"cd", MOST) == "repeat"
    assert stream.apply(2, b"c", MOST) == "sequence_conflict"
    assert bytes(stream.text) == b"abcd"


def test_a_stream_at_its_limit_refuses_more_and_keeps_what_it_has() -> None:
    """At the limit and one past it."""
    stream = Stream()
    assert stream.apply(1, b"x" * MOST, MOST) == "appended"
    assert stream.apply(2, b"y", MOST) == "stream_too_large"
    assert stream.apply(2, b"", MOST) == "appended"


def test_only_what_the_state_lacks_is_written_and_a_restored_stream_goes_on() -> None:
    """Takeover loses nothing."""
    stream = Stream()
    stream.apply(1, b"ab", MOST)
    stream.stored = 1
    stream.apply(2, b"cd", MOST)
    unsaved = stream.unsaved("c", "m")
    assert (unsaved.prior_seq, unsaved.text, unsaved.last_seq) == (1, b"cd", 2)
    assert array("I", unsaved.ends).tolist() == [4]

    successor = Stream()
    successor.restore(StoredStream(b"abcd", array("I", [2, 4]).tobytes(), 2))
    assert successor.apply(2, b"cd", MOST) == "repeat"
    assert successor.apply(3, b"ef", MOST) == "appended"
    assert successor.unsaved("c", "m").text == b"ef"


def test_a_state_that_lost_the_stream_gets_all_of_it_again() -> None:
    """FLUSHALL under a living aggregator."""
    stream = Stream()
    stream.apply(1, b"ab", MOST)
    stream.apply(2, b"cd", MOST)
    stream.stored = 2
    stream.restore(None)
    unsaved = stream.unsaved("c", "m")
    assert (unsaved.prior_seq, unsaved.text, unsaved.last_seq) == (0, b"abcd", 2)
