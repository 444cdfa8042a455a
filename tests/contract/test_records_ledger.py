import asyncio
from collections.abc import AsyncGenerator
from pathlib import Path

import pytest

from shared.records import Records, migrate, open_records
from shared.records.model import Claim, Claimed, Intent
from tests.contract.databases import KINDS, NOW, database_of, receipts, records_of, written


@pytest.fixture(params=KINDS)
async def url(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncGenerator[str]:
    async with database_of(request, tmp_path) as url:
        yield url


@pytest.fixture(params=KINDS)
async def records(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncGenerator[Records]:
    async with records_of(request, tmp_path) as records:
        yield records


def claim(message_id: str, fingerprint: str = "f1", channel: str = "c", at: float = NOW) -> Claim:
    return Claim(channel, message_id, fingerprint, at)


async def test_the_first_claim_is_fresh_and_a_later_one_sees_its_entry(records: Records) -> None:
    (first,) = await records.ledger.claim([claim("m1")])
    (second,) = await records.ledger.claim([claim("m1", "f2", at=NOW + 9)])
    assert first.fresh
    assert not second.fresh
    assert second.entry == first.entry
    assert (first.entry.state, first.entry.fingerprint, first.entry.intent) == ("open", "f1", -1)
    assert first.entry.updated_at == NOW


async def test_of_duplicates_in_a_batch_only_the_first_is_fresh_and_the_order_is_kept(records: Records) -> None:
    await records.ledger.claim([claim("old")])
    batch = [claim("b"), claim("a"), claim("b", "f2"), claim("old"), claim("a", channel="c2"), claim("b", "f3")]
    claimed = await records.ledger.claim(batch)
    assert [one.fresh for one in claimed] == [True, True, False, False, True, False]
    keys = [(one.entry.channel, one.entry.message_id) for one in claimed]
    assert keys == [(one.channel, one.message_id) for one in batch]
    assert {one.entry.fingerprint for one in claimed} == {"f1"}


async def test_concurrent_claims_from_several_connections_yield_exactly_one_fresh_each(url: str) -> None:
    await migrate(url)
    messages = [f"m{number}" for number in range(50)]
    async with open_records(url) as one, open_records(url) as two:
        turns = [
            records.ledger.claim([claim(name, f"of {number}") for name in (messages if number % 2 else messages[::-1])])
            for number, records in enumerate((one, two) * 4)
        ]
        answers: list[list[Claimed]] = await asyncio.gather(*turns)
    fresh = [claimed.entry.message_id for answer in answers for claimed in answer if claimed.fresh]
    assert sorted(fresh) == sorted(messages)
    winners = {claimed.entry.message_id: claimed.entry.fingerprint for answer in answers for claimed in answer}
    assert all(winners[c.entry.message_id] == c.entry.fingerprint for answer in answers for c in answer)


async def test_a_claim_turns_a_preview_into_an_open_entry_and_keeps_what_was_shown(records: Records) -> None:
    await records.ledger.update([written("m1", "preview", preview=receipts("p0"), shown=7, code="interrupted")])
    (claimed,) = await records.ledger.claim([claim("m1")])
    assert claimed.fresh
    assert claimed.entry.state == "open"
    assert (claimed.entry.preview, claimed.entry.shown, claimed.entry.code) == (receipts("p0"), 7, "")
    assert not (await records.ledger.claim([claim("m1")]))[0].fresh


@pytest.mark.parametrize("state", ["open", "done", "rejected"])
async def test_a_preview_never_overwrites_a_final(records: Records, state: str) -> None:
    final = written("m1", state, receipts=receipts("r0"), fingerprint="f1")
    await records.ledger.update([final])
    await records.ledger.update([written("m1", "preview", preview=receipts("late"), shown=9)])
    await records.ledger.update([written("m2", "preview"), written("m2", state), written("m2", "preview", shown=9)])
    kept, together = await records.ledger.get([("c", "m1"), ("c", "m2")])
    assert kept is not None
    assert (kept.state, kept.receipts, kept.preview) == (state, receipts("r0"), ())
    assert together is not None
    assert (together.state, together.shown) == (state, 0)


async def test_a_worker_that_was_away_undoes_nothing(records: Records) -> None:
    """What it writes late changes neither an end, nor another's intent, nor the receipts that came since."""
    await records.ledger.claim([claim("ended"), claim("held"), claim("grown")])
    await records.ledger.update([written("ended", "done", receipts=receipts("r0", "r1"), holder="w1")])
    await records.ledger.intend([Intent("c", "held", 0, (), "w1", NOW)])
    await records.ledger.update([written("grown", receipts=receipts("r0", "r1"), holder="w1")])
    await records.ledger.update(
        [
            written("ended", receipts=receipts("r0"), holder="w2"),
            written("held", receipts=receipts("r0"), holder="w2"),
            written("grown", receipts=receipts("r0"), holder="w2"),
        ]
    )
    await records.ledger.update([written("ended", "rejected", holder="w2")])
    found = {
        row.message_id: row for row in await records.ledger.get([("c", n) for n in ("ended", "held", "grown")]) if row
    }
    assert (found["ended"].state, found["ended"].receipts) == ("done", receipts("r0", "r1"))
    assert (found["held"].intent, found["held"].receipts) == (0, ())
    assert found["grown"].receipts == receipts("r0", "r1")
    await records.ledger.update([written("held", receipts=receipts("r0"), holder="w1")])
    await records.ledger.update([written("grown", "rejected", holder="w2"), written("held", "done", holder="w2")])
    await records.ledger.update([written("grown", receipts=receipts("r0", "r1", "r2"), holder="w1")])
    grown, held = await records.ledger.get([("c", "grown"), ("c", "held")])
    assert grown is not None
    assert (grown.state, grown.receipts) == ("rejected", receipts("r0", "r1"))
    assert held is not None
    assert (held.state, held.receipts, held.intent) == ("done", receipts("r0"), -1)


async def test_a_refused_row_can_be_opened_again_and_no_other(records: Records) -> None:
    """One more try by an operator goes on after the parts that have landed."""
    await records.ledger.update([written("refused", "rejected", receipts=receipts("r0"), code="x", fingerprint="f1")])
    await records.ledger.update([written("done", "done", receipts=receipts("r0"))])
    for name in ("refused", "done", "unknown"):
        await records.ledger.reopen("c", name)
    refused, done, unknown = await records.ledger.get([("c", name) for name in ("refused", "done", "unknown")])
    assert refused is not None
    assert (refused.state, refused.receipts, refused.intent, refused.code) == ("open", receipts("r0"), -1, "")
    assert done is not None
    assert (done.state, unknown) == ("done", None)
    assert await records.ledger.intend([Intent("c", "refused", 1, receipts("r0"), "w1", NOW)]) == [True]


async def test_several_updates_of_one_key_in_a_batch_end_as_the_last_and_keep_the_fingerprint(records: Records) -> None:
    await records.ledger.update(
        [
            written("m1", "open", fingerprint="f1", intent=0),
            written("m1", "open", receipts=receipts("r0"), intent=1),
            written("m1", "done", receipts=receipts("r0", "r1"), detail="cut\0short", at=NOW + 2),
        ]
    )
    await records.ledger.update([written("m1", "done", receipts=receipts("r0", "r1"), at=NOW + 3)])
    (entry,) = await records.ledger.get([("c", "m1")])
    assert entry is not None
    assert (entry.state, entry.fingerprint, entry.intent, entry.updated_at) == ("done", "f1", -1, NOW + 3)
    assert entry.receipts == receipts("r0", "r1")


async def test_any_text_survives_a_batch(records: Records) -> None:
    odd = 'quo"te \\ \u2028 \U0001f600 \x01 é'
    await records.ledger.claim([claim(odd, odd, channel=odd)])
    shown = receipts("nul \0 inside", odd)
    await records.ledger.update([written(odd, "rejected", channel=odd, receipts=shown, code=odd, detail="half \ud83d")])
    (entry,) = await records.ledger.get([(odd, odd)])
    assert entry is not None
    assert (entry.fingerprint, entry.code, entry.receipts, entry.detail) == (odd, odd, shown, "half \ufffd")


async def test_get_answers_in_order_with_none_for_the_unknown(records: Records) -> None:
    await records.ledger.claim([claim("a"), claim("b")])
    found = await records.ledger.get([("c", "b"), ("c", "?"), ("c", "a"), ("c", "b")])
    assert [entry.message_id if entry else None for entry in found] == ["b", None, "a", "b"]
    assert await records.ledger.get([]) == []
    assert await records.ledger.claim([]) == []
    await records.ledger.update([])


async def test_a_restart_keeps_everything(url: str) -> None:
    await migrate(url)
    async with open_records(url) as records:
        await records.ledger.claim([claim("m1")])
        await records.ledger.update([written("m1", "done", receipts=receipts("r0"))])
        opened = await records.channels.open("im.test", "cn_1", "", "e", "s", NOW)
    await migrate(url)
    async with open_records(url) as records:
        (claimed,) = await records.ledger.claim([claim("m1")])
        assert not claimed.fresh
        assert (claimed.entry.state, claimed.entry.receipts) == ("done", receipts("r0"))
        assert await records.channels.get(opened.channel.channel_id) == opened.channel


async def test_stale_previews_are_those_unmarked_and_old(records: Records) -> None:
    await records.ledger.update(
        [
            written("old", "preview", at=NOW - 20),
            written("older", "preview", at=NOW - 30),
            written("marked", "preview", at=NOW - 20, code="interrupted"),
            written("new", "preview", at=NOW),
            written("final", "open", at=NOW - 20),
        ]
    )
    found = await records.ledger.stale_previews(NOW - 10, 10)
    assert [entry.message_id for entry in found] == ["older", "old"]


async def test_purge_forgets_what_has_rested_and_says_how_much(
    records: Records, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shared.records.sql.STEP", 3)
    await records.ledger.claim([claim(f"m{number}", at=NOW + number) for number in range(10)])
    assert await records.ledger.purge(NOW + 7) == 7
    left = await records.ledger.get([("c", f"m{number}") for number in range(10)])
    assert [entry is not None for entry in left] == [False] * 7 + [True] * 3


async def test_batches_that_meet_on_the_same_rows_never_deadlock(url: str) -> None:
    await migrate(url)
    keys = [f"m{number}" for number in range(200)]
    async with open_records(url) as one, open_records(url) as two:
        for _ in range(3):
            await asyncio.gather(
                one.ledger.update([written(key, "open") for key in keys]),
                two.ledger.update([written(key, "open") for key in reversed(keys)]),
                one.ledger.claim([claim(key) for key in keys[::2]]),
                two.ledger.claim([claim(key) for key in keys[::-3]]),
            )
        assert None not in await one.ledger.get([("c", key) for key in keys])
