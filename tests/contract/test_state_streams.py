import struct
from collections.abc import AsyncGenerator
from uuid import uuid4

import pytest

from shared.state.client import State, StateUnavailable, open_state
from shared.state.streams import Append, StoredStream, Streams
from tests.contract.states import KINDS, state_of, until
from tests.support.redis import RedisServer


@pytest.fixture(params=KINDS)
async def state(request: pytest.FixtureRequest) -> AsyncGenerator[State]:
    """An in-process state, then a real one."""
    async with state_of(request) as state:
        yield state


@pytest.fixture
def streams(state: State) -> Streams:
    """Streams with three places a channel."""
    return Streams(state, ttl_seconds=30, per_channel=3)


@pytest.fixture
def channel() -> str:
    """A channel of the test's own."""
    return f"c:{uuid4()}"


def ends(*offsets: int) -> bytes:
    """Offsets, packed."""
    return struct.pack(f"<{len(offsets)}I", *offsets)


def delta(channel: str, number: int, *, message_id: str = "m") -> Append:
    """Delta n of a stream in which each adds three bytes."""
    return Append(channel, message_id, number - 1, b"%03d" % number, ends(3 * number), number)


def whole(count: int) -> StoredStream:
    """The stream of that many deltas."""
    text = b"".join(b"%03d" % n for n in range(1, count + 1))
    return StoredStream(text, ends(*(3 * n for n in range(1, count + 1))), count)


async def test_windows_of_many_streams_are_appended_in_order_in_one_call(streams: Streams, channel: str) -> None:
    """Fifty windows of five channels."""
    windows = [delta(f"{channel}{n % 5}", n // 5 + 1) for n in range(50)]
    assert await streams.append(windows) == ["ok"] * 50
    keys = [(f"{channel}{n}", "m") for n in range(5)]
    assert await streams.load(keys) == [whole(10)] * 5
    assert await streams.texts(keys) == [(whole(10).text, 10)] * 5


async def test_nothing_asked_is_nothing_answered(streams: Streams) -> None:
    """Without a round trip."""
    assert await streams.append([]) == []
    assert await streams.load([]) == []
    assert await streams.texts([]) == []
    assert await streams.close([]) == []
    assert await streams.closed([]) == []


async def test_an_unknown_stream_is_none(streams: Streams, channel: str) -> None:
    """For each way to ask."""
    assert await streams.load([(channel, "m")]) == [None]
    assert await streams.texts([(channel, "m")]) == [None]
    assert await streams.closed([(channel, "m")]) == [False]
    assert await streams.close([(channel, "m")]) == [False]


async def test_a_repeat_or_a_gap_is_behind_and_changes_nothing(streams: Streams, channel: str) -> None:
    """Only the next sequence is appended."""
    await streams.append([delta(channel, 1), delta(channel, 2)])
    assert await streams.append([delta(channel, 1), delta(channel, 2), delta(channel, 4)]) == ["behind"] * 3
    assert await streams.load([(channel, "m")]) == [whole(2)]


async def test_what_was_never_begun_is_behind_until_put_whole(streams: Streams, channel: str) -> None:
    """As after FLUSHALL, when the caller has it hot."""
    assert await streams.append([delta(channel, 3)]) == ["behind"]
    full = whole(3)
    assert await streams.append([Append(channel, "m", 0, full.text, full.ends, 3)]) == ["ok"]
    assert await streams.append([delta(channel, 4)]) == ["ok"]
    assert await streams.load([(channel, "m")]) == [whole(4)]


async def test_a_delta_without_text_counts(streams: Streams, channel: str) -> None:
    """And bytes of every kind are text."""
    assert await streams.append([Append(channel, "m", 0, b"", ends(0), 1)]) == ["ok"]
    assert await streams.load([(channel, "m")]) == [StoredStream(b"", ends(0), 1)]
    assert await streams.append([Append(channel, "m", 1, b"\x00\xff", ends(2), 2)]) == ["ok"]
    assert await streams.texts([(channel, "m")]) == [(b"\x00\xff", 2)]


async def test_a_closed_stream_takes_no_more(streams: Streams, channel: str) -> None:
    """Not even from its beginning."""
    await streams.append([delta(channel, 1)])
    assert await streams.close([(channel, "m"), (channel, "other")]) == [True, False]
    assert await streams.closed([(channel, "m"), (channel, "other"), (channel, "third")]) == [True, True, False]
    assert await streams.append([delta(channel, 1), delta(channel, 2)]) == ["closed", "closed"]
    assert await streams.load([(channel, "m")]) == [None]


async def test_a_channel_has_only_so_many_open_and_closing_frees_a_place(streams: Streams, channel: str) -> None:
    """Those that are open go on."""
    first = [delta(channel, 1, message_id=f"m{n}") for n in range(5)]
    assert await streams.append(first) == ["ok", "ok", "ok", "too_many", "too_many"]
    assert await streams.append([delta(channel, 2, message_id="m0")]) == ["ok"]
    await streams.close([(channel, "m1")])
    assert await streams.append(first[3:]) == ["ok", "too_many"]
    assert await streams.append([delta(channel + "x", 1)]) == ["ok"]


async def test_names_that_could_run_together_stay_apart(streams: Streams, channel: str) -> None:
    """(a:b, c) is not (a, b:c)."""
    await streams.append([delta(channel + ":a", 1, message_id="b"), delta(channel, 1, message_id="a:b")])
    await streams.close([(channel + ":a", "b")])
    assert await streams.load([(channel, "a:b")]) == [whole(1)]


async def test_a_lone_surrogate_in_a_name_is_a_name(streams: Streams, channel: str) -> None:
    """JSON can carry one."""
    assert await streams.append([delta(channel, 1, message_id="\ud800")]) == ["ok"]
    assert await streams.close([(channel, "\ud800")]) == [True]


async def test_an_expired_stream_frees_its_place_and_its_tombstone_goes(state: State, channel: str) -> None:
    """Without anybody sweeping."""
    streams = Streams(state, ttl_seconds=0.05, per_channel=1)
    await streams.append([delta(channel, 1, message_id="old")])
    await streams.close([(channel, "shut")])

    async def freed() -> bool:
        return await streams.append([delta(channel, 1, message_id="new")]) == ["ok"]

    async def forgotten() -> bool:
        return await streams.closed([(channel, "shut")]) == [False]

    await until(freed)
    await until(forgotten)
    assert await streams.load([(channel, "old")]) == [None]


async def test_flushed_scripts_do_not_shorten_a_stream(redis_server: RedisServer) -> None:
    """Field report 37: SCRIPT FLUSH after ten of twenty deltas."""
    async with open_state(redis_server.url) as state:
        streams = Streams(state)
        with redis_server.admin() as admin:
            for n in range(1, 21):
                assert await streams.append([delta("c", n)]) == ["ok"]
                if n == 10:
                    admin.script_flush()
        assert await streams.load([("c", "m")]) == [whole(20)]


async def test_full_memory_changes_nothing_and_the_same_window_works_later(redis_server: RedisServer) -> None:
    """Field report 37: OOM is all or nothing."""
    async with open_state(redis_server.url) as state:
        streams = Streams(state)
        await streams.append([delta("c", 1)])
        with redis_server.admin() as admin:
            admin.config_set("maxmemory", "1kb")
            with pytest.raises(StateUnavailable):
                await streams.append([delta("c", 2), delta("d", 1)])
            admin.config_set("maxmemory", "0")
        assert await streams.append([delta("c", 2), delta("d", 1)]) == ["ok", "ok"]
        assert await streams.load([("c", "m"), ("d", "m")]) == [whole(2), whole(1)]


@pytest.mark.parametrize("part", [b"stream:text:*", b"stream:ends:*", b"stream*"])
async def test_a_stream_that_lost_a_part_is_gone_not_shortened(redis_server: RedisServer, part: bytes) -> None:
    """Field report 37: DEL, or eviction, of either key or all."""
    async with open_state(redis_server.url) as state:
        streams = Streams(state)
        await streams.append([delta("c", n) for n in range(1, 18)])
        with redis_server.admin() as admin:
            for key in list(admin.scan_iter(part)):
                admin.delete(key)
        assert await streams.texts([("c", "m")]) == [None]
        assert await streams.append([delta("c", 18)]) == ["behind"]
        assert await streams.load([("c", "m")]) == [None]
        full = whole(18)
        assert await streams.append([Append("c", "m", 0, full.text, full.ends, 18)]) == ["ok"]
        assert await streams.load([("c", "m")]) == [full]


async def test_a_restart_loses_streams_and_they_are_put_back_whole(redis_server: RedisServer) -> None:
    """The caller has it hot."""
    async with open_state(redis_server.url) as state:
        streams = Streams(state)
        await streams.append([delta("c", 1)])
        redis_server.restart()
        assert await streams.append([delta("c", 2)]) == ["behind"]
        full = whole(2)
        assert await streams.append([Append("c", "m", 0, full.text, full.ends, 2)]) == ["ok"]


async def test_every_key_expires(redis_server: RedisServer) -> None:
    """Text, ends, places and tombstone, each within the ttl."""
    async with open_state(redis_server.url) as state:
        streams = Streams(state, ttl_seconds=600)
        await streams.append([delta("c", 1), delta("c", 2), delta("d", 1)])
        await streams.close([("d", "m")])
        with redis_server.admin() as admin:
            ages = {key: admin.pttl(key) for key in admin.scan_iter()}
        assert len(ages) == 4
        assert all(0 < age <= 600_000 for age in ages.values())
