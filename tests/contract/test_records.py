import asyncio
import sys
from collections.abc import AsyncGenerator
from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import Connection

from shared.records import Records, migrate, open_records
from shared.records.database import make_engine, read_url
from shared.records.errors import NotOwned, RecordsUnavailable
from shared.records.model import AuthSession, TranscriptRow
from shared.records.tables import metadata
from tests.contract.databases import KINDS, NOW, database_of, file_row, parked, records_of
from tests.support.postgres import PostgresServer


@pytest.fixture(params=KINDS)
async def url(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncGenerator[str]:
    async with database_of(request, tmp_path) as url:
        yield url


@pytest.fixture(params=KINDS)
async def records(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncGenerator[Records]:
    async with records_of(request, tmp_path) as records:
        yield records


async def open_channel(records: Records, channel: str = "", edge: str = "e1", session: str = "s1") -> str:
    opened = await records.channels.open("im.test", "cn_1", channel, edge, session, NOW)
    return opened.channel.channel_id


# -- opening ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "url", ["mysql://user:hush@host/db", "redis://h", "not a url", "", "sqlite://"], indirect=False
)
async def test_a_wrong_url_is_refused_by_the_name_of_its_setting(url: str) -> None:
    with pytest.raises(ValueError, match="SLUICE_RECORDS_URL") as refused:
        await migrate(url)
    assert "hush" not in str(refused.value)
    with pytest.raises(ValueError, match="SLUICE_RECORDS_URL"):
        async with open_records(url):
            pass


async def test_roles_that_start_together_migrate_once(url: str) -> None:
    code = "import asyncio, sys; from shared.records import migrate; asyncio.run(migrate(sys.argv[1]))"
    roles = [await asyncio.create_subprocess_exec(sys.executable, "-c", code, url) for _ in range(3)]
    await asyncio.gather(migrate(url), migrate(url))
    assert [await role.wait() for role in roles] == [0, 0, 0]
    async with open_records(url) as records:
        await records.check()
        assert await records.parked.count() == 0


async def test_migrations_make_exactly_the_tables_that_queries_name(url: str) -> None:
    def differences(connection: Connection) -> list[object]:
        return list(compare_metadata(MigrationContext.configure(connection), metadata))

    await migrate(url)
    engine = make_engine(read_url(url))
    async with engine.begin() as connection:
        assert await connection.run_sync(differences) == []
    await engine.dispose()


async def test_a_postgres_that_is_away_is_unavailable_and_used_again_when_it_is_back(
    postgres_server: PostgresServer,
) -> None:
    await migrate(postgres_server.url)
    async with open_records(postgres_server.url) as records:
        await open_channel(records)
        await records.ledger.get([("c", "m")])
        await asyncio.to_thread(postgres_server.kill)
        with pytest.raises(RecordsUnavailable):
            await records.check()
        with pytest.raises(RecordsUnavailable):
            await records.ledger.get([("c", "m")])
        with pytest.raises(RecordsUnavailable):
            await open_channel(records)
        await asyncio.to_thread(postgres_server.start)
        await records.check()
        assert await records.ledger.get([("c", "m")]) == [None]
        assert len(await records.channels.find(10)) == 1


async def test_a_sqlite_file_that_cannot_be_opened_is_unavailable(tmp_path: Path) -> None:
    async with open_records(f"sqlite:///{tmp_path}/no/such/folder/x.db") as records:
        with pytest.raises(RecordsUnavailable):
            await records.check()


async def test_many_writers_and_readers_at_once_all_get_their_turn(records: Records) -> None:
    channels = await asyncio.gather(*(open_channel(records, session=f"s{number}") for number in range(40)))
    found = await asyncio.gather(*(records.channels.get(channel) for channel in channels))
    assert [channel.session_id for channel in found if channel] == [f"s{number}" for number in range(40)]


async def test_a_cancelled_operation_leaves_the_records_usable(records: Records) -> None:
    for turn in range(20):
        task = asyncio.create_task(open_channel(records))
        for _ in range(turn):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    channel = await open_channel(records)
    assert await records.channels.get(channel) is not None


# -- connectors ------------------------------------------------------------------------------------------------------


async def test_a_connector_keeps_its_id_on_its_card_only(records: Records) -> None:
    fresh = await records.connectors.hello("im.test", "", NOW)
    assert fresh.startswith("cn_")
    assert await records.connectors.hello("im.test", fresh, NOW + 1) == fresh
    assert await records.connectors.hello("im.other", fresh, NOW) != fresh
    assert await records.connectors.hello("im.test", "cn_made_up", NOW) not in ("cn_made_up", fresh)


async def test_stale_connectors_come_with_their_channels_and_go_with_them(records: Records) -> None:
    old = await records.connectors.hello("im.test", "", NOW)
    live = await records.connectors.hello("im.test", "", NOW)
    opened = await records.channels.open("im.test", old, "", "e", "s", NOW)
    await records.connectors.touch([live, "cn_unknown"], NOW + 100)
    await records.connectors.touch([live], NOW + 50)
    await records.connectors.touch([], NOW)
    assert await records.connectors.stale(NOW + 90, 10) == [("im.test", old, [opened.channel.channel_id])]
    await records.connectors.remove(old)
    assert await records.connectors.stale(NOW + 90, 10) == []
    assert await records.channels.get(opened.channel.channel_id) is None


# -- channels --------------------------------------------------------------------------------------------------------


async def test_a_channel_is_opened_fresh_and_moves_with_whoever_opens_it(records: Records) -> None:
    first = await records.channels.open("im.test", "cn_1", "cch_unknown", "e1", "s1", NOW, status="connected")
    channel = first.channel.channel_id
    assert channel.startswith("cch_")
    assert channel != "cch_unknown"
    assert (first.moved_from, first.channel.status) == (None, "connected")
    again = await records.channels.open("im.test", "cn_1", channel, "e1", "s1", NOW)
    assert again.moved_from is None
    moved = await records.channels.open("im.test", "cn_1", channel, "e2", "s2", NOW)
    assert moved.moved_from == ("e1", "s1")
    assert await records.channels.get(channel) == moved.channel
    assert not await records.channels.close(channel, "s1")
    assert await records.channels.close(channel, "s2")
    assert (await records.channels.open("im.test", "cn_1", channel, "e3", "s3", NOW)).moved_from is None


@pytest.mark.parametrize(("card", "connector"), [("im.test", "cn_2"), ("im.other", "cn_1")])
async def test_a_channel_of_another_is_refused(records: Records, card: str, connector: str) -> None:
    channel = await open_channel(records)
    with pytest.raises(NotOwned):
        await records.channels.open(card, connector, channel, "e2", "s2", NOW)
    kept = await records.channels.get(channel)
    assert kept is not None
    assert kept.session_id == "s1"


async def test_concurrent_openers_hand_the_channel_on_in_a_chain(records: Records) -> None:
    channel = await open_channel(records, session="s")
    opened = await asyncio.gather(
        *(records.channels.open("im.test", "cn_1", channel, "e", f"s{n}", NOW) for n in range(6))
    )
    last = await records.channels.get(channel)
    assert last is not None
    left = [one.moved_from[1] for one in opened if one.moved_from]
    assert sorted([*left, last.session_id]) == ["s", *(f"s{n}" for n in range(6))]


async def test_routes_go_with_their_socket_and_their_edge(records: Records) -> None:
    one, two, three = [
        await open_channel(records, edge=e, session=s) for e, s in (("e1", "a"), ("e1", "b"), ("e2", "a"))
    ]
    assert await records.channels.close_session("e1", "a") == 1
    assert await records.channels.close_edge("e1") == 1
    found = [await records.channels.get(channel) for channel in (one, two, three)]
    assert [channel.edge_id for channel in found if channel] == ["", "", "e2"]


async def test_a_binding_is_kept_and_hides_its_credential(records: Records) -> None:
    channel = await open_channel(records)
    await records.channels.bind(channel, "connected", {"label": "A \U0001f600 \0"}, b"\0sealed\xff")
    bound = await records.channels.get(channel)
    assert bound is not None
    assert (bound.status, bound.target, bound.sealed) == (
        "connected",
        {"label": "A \U0001f600 \ufffd"},
        b"\0sealed\xff",
    )
    assert "sealed" not in repr(bound)
    await records.channels.set_status(channel, "revoked", "410")
    (row,) = await records.channels.find(10, "im.test")
    assert (row.status, row.reason, row.sealed) == ("revoked", "410", b"\0sealed\xff")
    assert await records.channels.find(10, "im.other") == []


# -- parked ----------------------------------------------------------------------------------------------------------


async def test_a_lane_is_kept_in_order_and_shown_by_its_head(records: Records) -> None:
    rows = [parked("a", b"1", due_at=NOW + 9), parked("b", b"2", due_at=NOW + 5), parked("a", b"3", due_at=NOW)]
    await records.parked.park([*rows, parked("far", partition=7)])
    await records.parked.park([])
    assert await records.parked.lanes([0, 1], 10) == [("b", 0, NOW + 5), ("a", 0, NOW + 9)]
    assert await records.parked.lanes([7], 10) == [("far", 7, NOW)]
    assert await records.parked.lanes([], 10) == []
    head = await records.parked.head("a", 10)
    assert [row.item for row in head] == [b"1", b"3"]
    await records.parked.reschedule(head[0].id, NOW + 60, 4, "429\0")
    changed = await records.parked.get(head[0].id)
    assert changed is not None
    assert (changed.due_at, changed.attempts, changed.reason) == (NOW + 60, 4, "429\ufffd")
    await records.parked.retry(head[0].id)
    assert (await records.parked.lanes([0], 1))[0][0] == "a"
    await records.parked.remove([row.id for row in head])
    assert [row.channel for row in await records.parked.find(10)] == ["b", "far"]
    assert await records.parked.count() == 2
    assert len(await records.parked.find(10, "b")) == 1


async def test_the_id_of_a_removed_row_is_never_given_again(records: Records) -> None:
    await records.parked.park([parked("a")])
    (first,) = await records.parked.head("a", 1)
    await records.parked.remove([first.id])
    await records.parked.park([parked("a")])
    (second,) = await records.parked.head("a", 1)
    assert second.id > first.id


# -- the rest --------------------------------------------------------------------------------------------------------


async def test_a_file_lives_until_its_end_and_goes_with_its_channel(records: Records) -> None:
    channel = await open_channel(records)
    await records.files.add(file_row("r1", NOW + 10))
    await records.files.add(file_row("r2", NOW + 99, channel))
    assert await records.files.get("r1", NOW) == file_row("r1", NOW + 10)
    assert await records.files.get("r1", NOW + 10) is None
    await records.channels.delete(channel)
    assert [row.ref for row in await records.files.expired(NOW + 10, 10)] == ["r2", "r1"]
    await records.files.remove(["r1", "r2"])
    assert await records.files.expired(NOW + 1000, 10) == []


async def test_a_sign_in_is_kept_as_it_is_now(records: Records) -> None:
    await records.auth.save(AuthSession("as_1", "c", "token", "pending", "", NOW + 60))
    ended = AuthSession("as_1", "c", "token", "failed", "wrong", NOW + 90)
    await records.auth.save(ended)
    assert await records.auth.get("as_1") == ended
    assert await records.auth.get("as_2") is None
    assert await records.auth.purge(NOW + 91) == 1


async def test_a_line_that_is_written_again_keeps_its_place(records: Records) -> None:
    def line(name: str, text: str) -> TranscriptRow:
        return TranscriptRow(
            channel="c", seq=0, message_id=name, author="agent", text=text, files=b"[]", at=NOW, revision=0
        )

    first = await records.transcript.put(line("m1", "hel"))
    second = await records.transcript.put(line("m2", "x"))
    again = await records.transcript.put(line("m1", "hello"))
    assert (again.seq, again.revision, second.seq > first.seq) == (first.seq, first.revision + 1, True)
    assert [row.text for row in await records.transcript.find("c", 0, 10)] == ["hello", "x"]
    assert await records.transcript.find("c", first.seq, 10) == [second]
    await records.transcript.trim("c", 2)
    assert len(await records.transcript.find("c", 0, 10)) == 2
    await records.transcript.trim("c", 1)
    assert await records.transcript.find("c", 0, 10) == [second]


async def test_attempts_count_each_beginning(records: Records) -> None:
    assert await records.attempts.bump(["b", "a", "b"], NOW) == [1, 1, 2]
    assert await records.attempts.bump(["a"], NOW + 5) == [2]
    assert await records.attempts.purge(NOW + 5) == 1
    assert await records.attempts.bump(["a", "b"], NOW) == [3, 1]
