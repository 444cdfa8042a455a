import asyncio
from collections.abc import AsyncGenerator
from pathlib import Path

import pytest

from shared.records import Records
from shared.records.errors import NotOwned
from shared.wire.items import unpack
from tests.contract.databases import KINDS, NOW, letter, names, parked, records_of


@pytest.fixture(params=KINDS)
async def records(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncGenerator[Records]:
    async with records_of(request, tmp_path) as records:
        yield records


async def add(records: Records, message_id: str, channel: str = "c", *, at: float = NOW, cap: int = 100) -> str:
    added = await records.outbox.add(channel, "im.test", message_id, message_id.encode(), at, 60.0, cap)
    return added.status


async def test_messages_keep_their_order_and_are_taken_once(records: Records) -> None:
    assert [await add(records, name) for name in ("b", "a", "b", "c")] == ["added", "added", "duplicate", "added"]
    rows = await records.outbox.pending("c", NOW, 10)
    assert names(rows) == ["b", "a", "c"]
    assert rows[0].payload == b"b"
    assert (rows[0].accepted_at, rows[0].expires_at, rows[0].state) == (NOW, NOW + 60, "pending")
    assert names(await records.outbox.pending("c", NOW, 2)) == ["b", "a"]


async def test_concurrent_messages_of_a_channel_are_each_taken_once(records: Records) -> None:
    opened = await records.channels.open("im.test", "cn_1", "", "e", "s", NOW)
    channel = opened.channel.channel_id
    statuses = await asyncio.gather(*(add(records, f"m{number % 10}", channel, cap=8) for number in range(20)))
    assert statuses.count("added") == 8
    assert len(await records.outbox.pending(channel, NOW, 100)) == 8


async def test_the_cap_counts_what_is_pending_and_a_duplicate_is_no_overflow(records: Records) -> None:
    assert [await add(records, name, cap=2) for name in ("a", "b", "c", "a")] == ["added", "added", "full", "duplicate"]
    assert await add(records, "c", "other", cap=2) == "added"
    await records.outbox.settle("c", "a", "accepted")
    assert await add(records, "c", cap=2) == "added"


async def test_it_says_which_edge_has_the_channel(records: Records) -> None:
    opened = await records.channels.open("im.test", "cn_1", "", "edge-1", "s", NOW)
    channel = opened.channel.channel_id
    assert (await records.outbox.add(channel, "im.test", "m", b"{}", NOW, 60.0, 5)).edge_id == "edge-1"
    await add(records, "m", "elsewhere")
    assert await records.outbox.channels_with_pending(10) == [(channel, "edge-1"), ("elsewhere", "")]
    assert await records.outbox.channels_with_pending(1) == [(channel, "edge-1")]


async def test_an_accepted_message_loses_its_body_and_keeps_its_key(records: Records) -> None:
    await add(records, "m")
    await records.outbox.settle("c", "m", "accepted")
    row = await records.outbox.get("c", "m")
    assert row is not None
    assert (row.state, row.payload) == ("accepted", b"")
    assert await add(records, "m") == "duplicate"
    assert await records.outbox.pending("c", NOW, 10) == []
    assert await records.outbox.find(10) == []


async def test_a_rejected_message_becomes_a_dead_letter_that_can_be_sent_again(records: Records) -> None:
    await add(records, "m")
    await records.outbox.attempted("c", "m")
    await records.outbox.settle("c", "m", "rejected", "agent_gone")
    (dead,) = await records.dead.find(10)
    assert (dead.direction, dead.code, dead.body, dead.attempts) == ("in", "agent_gone", b"m", 1)
    assert await records.dead.retry(dead.id, len, NOW + 100)
    assert await records.dead.find(10) == []
    (row,) = await records.outbox.pending("c", NOW + 100, 10)
    assert (row.message_id, row.payload, row.attempts, row.expires_at) == ("m", b"m", 0, NOW + 3700)


async def test_a_message_past_its_hour_expires_with_its_dead_letter(records: Records) -> None:
    await add(records, "late")
    await add(records, "later", at=NOW + 30)
    assert await records.outbox.expire(NOW + 59, 10) == []
    assert names(await records.outbox.pending("c", NOW + 60, 10)) == ["later"]
    assert await records.outbox.expire(NOW + 60, 10) == [("c", "late")]
    assert await records.outbox.expire(NOW + 60, 10) == []
    (dead,) = await records.dead.find(10)
    assert (dead.code, dead.message_id, dead.body) == ("expired", "late", b"late")
    assert names(await records.outbox.find(10, "c")) == ["late", "later"]


async def test_an_acceptance_after_the_hour_takes_the_dead_letter_back(records: Records) -> None:
    await add(records, "m")
    await records.outbox.expire(NOW + 60, 10)
    await records.outbox.settle("c", "m", "rejected")
    await records.outbox.settle("c", "m", "accepted")
    assert await records.dead.find(10) == []
    await records.outbox.settle("c", "m", "rejected")
    assert await records.dead.find(10) == []


async def test_an_operator_retries_and_drops(records: Records) -> None:
    for name in ("a", "b"):
        await add(records, name)
    await records.outbox.expire(NOW + 60, 10)
    assert await records.outbox.retry("c", "a", NOW + 100)
    assert await records.outbox.retry("c", "a", NOW + 100)
    assert not await records.outbox.retry("c", "unknown", NOW)
    assert [dead.message_id for dead in await records.dead.find(10)] == ["b"]
    await records.outbox.drop("c", "a")
    assert {dead.message_id: dead.code for dead in await records.dead.find(10)} == {"a": "dropped", "b": "expired"}
    assert await records.outbox.pending("c", NOW, 10) == []


async def test_purge_forgets_the_keys_of_what_ended(records: Records) -> None:
    for name in ("ended", "waits"):
        await add(records, name)
    await records.outbox.settle("c", "ended", "accepted")
    assert await records.outbox.purge(NOW) == 0
    assert await records.outbox.purge(NOW + 1) == 1
    assert await add(records, "ended") == "added"
    assert await add(records, "waits") == "duplicate"


async def test_a_dead_letter_is_one_however_often_it_is_filed(records: Records) -> None:
    await records.dead.bury([letter("x"), letter("y", detail="a\0b")])
    await records.dead.bury([letter("x", attempts=9), letter("x", attempts=10)])
    assert sorted(dead.id for dead in await records.dead.find(10)) == ["x", "y"]
    found = await records.dead.get("x")
    assert found is not None
    assert found.attempts == 10
    assert (await records.dead.find(10, "nowhere")) == []
    assert await records.dead.purge(NOW + 1) == 2


async def test_an_outbound_dead_letter_moves_to_its_lane_once(records: Records) -> None:
    await records.dead.bury([letter("x", "cch_9")])
    moved = await asyncio.gather(*(records.dead.retry("x", len, NOW + 5) for _ in range(5)))
    assert sorted(moved) == [False] * 4 + [True]
    (row,) = await records.parked.find(10)
    assert (row.kind, row.channel, row.partition, row.due_at, row.attempts) == ("retry", "cch_9", 5, NOW + 5, 0)
    (item,) = unpack(row.item)
    assert (item.kind, item.card, item.channel, item.raw) == ("packet", "im.test", "cch_9", b'{"type":"chat.message"}')
    assert await records.dead.get("x") is None


async def test_a_retry_that_fails_leaves_the_dead_letter(records: Records) -> None:
    def broken(channel: str) -> int:
        raise LookupError(channel)

    await records.dead.bury([letter("x"), letter("b", direction="bus")])
    with pytest.raises(LookupError):
        await records.dead.retry("x", broken, NOW)
    assert not await records.dead.retry("b", len, NOW)
    assert await records.dead.get("x") is not None
    assert await records.dead.get("b") is not None
    assert await records.parked.count() == 0


async def test_what_a_removed_channel_still_owed_is_filed(records: Records) -> None:
    opened = await records.channels.open("im.test", "cn_1", "", "e", "s", NOW)
    channel = opened.channel.channel_id
    await add(records, "m", channel)
    await records.parked.park([parked(channel, b"work")])
    await records.channels.delete(channel)
    assert await records.channels.get(channel) is None
    assert await records.parked.count() == 0
    letters = {dead.direction: (dead.code, dead.body) for dead in await records.dead.find(10)}
    assert letters == {"in": ("channel_removed", b"m"), "bus": ("channel_removed", b"work")}
    with pytest.raises(NotOwned):
        await records.channels.open("im.test", "cn_2", await _opened_by(records, "cn_1"), "e", "s", NOW)


async def _opened_by(records: Records, connector_id: str) -> str:
    return (await records.channels.open("im.test", connector_id, "", "e", "s", NOW)).channel.channel_id


async def test_work_parked_first_is_ahead_of_its_lane_and_of_no_other(records: Records) -> None:
    """What was parked of the lane keeps its own order behind it, and its time."""
    await records.parked.park([parked("a", b"2", due_at=5.0), parked("b", b"1"), parked("a", b"3")])
    await records.parked.park_first(parked("a", b"1"))
    assert [(row.item, row.due_at) for row in await records.parked.head("a", 9)] == [
        (b"1", NOW),
        (b"2", 5.0),
        (b"3", NOW),
    ]
    await records.parked.park_first(parked("a", b"0"))
    await records.parked.park([parked("a", b"4")])
    assert [row.item for row in await records.parked.head("a", 9)] == [b"0", b"1", b"2", b"3", b"4"]
    assert [row.item for row in await records.parked.head("b", 9)] == [b"1"]
    await records.parked.park_first(parked("c", b"alone"))
    assert [row.item for row in await records.parked.head("c", 9)] == [b"alone"]
