import asyncio
from collections.abc import AsyncGenerator
from uuid import uuid4

import pytest

from shared.state.client import Script, State, StateError, StateUnavailable, open_state
from tests.contract.states import KINDS, state_of
from tests.support.proxy import delay_proxy
from tests.support.redis import RedisServer, free_port

ECHO = Script[list[bytes]]("return {KEYS[1], ARGV[1]}", repeatable=True)
ONCE = Script[int]("return redis.call('INCR', KEYS[1])")
GET = Script[bytes | None]("return redis.call('GET', KEYS[1])", repeatable=True)
SET = Script[bytes]("return redis.call('SET', KEYS[1], ARGV[1], 'PX', 60000)", repeatable=True)


@pytest.fixture(params=KINDS)
async def state(request: pytest.FixtureRequest) -> AsyncGenerator[State]:
    """An in-process state, then a real one."""
    async with state_of(request) as state:
        yield state


async def test_a_script_is_known_by_its_hash_or_given_by_its_text(state: State) -> None:
    """The first call meets NOSCRIPT, the second does not."""
    script = Script[bytes](f"return '{uuid4()}'")
    assert await state.call(script, [], []) == await state.call(script, [], [])


async def test_bytes_pass_unchanged(state: State) -> None:
    """All 256 of them, as key and as argument."""
    data = bytes(range(256))
    assert await state.call(ECHO, [data], [data]) == [data, data]


async def test_a_sign_of_life_is_given(state: State) -> None:
    """PING is answered."""
    await state.ping()


async def test_a_script_that_fails_is_an_error_not_worth_a_second_try(state: State) -> None:
    """The plain StateError, not StateUnavailable."""
    with pytest.raises(StateError) as caught:
        await state.call(Script[int]("return redis.call('INCR')"), [], [])
    assert not isinstance(caught.value, StateUnavailable)


@pytest.mark.parametrize(
    "url", ["", "localhost:6379", "http://x", "memory://x", "redis://h:port/0", "redis://h/0?db=x"]
)
async def test_a_wrong_address_names_the_setting_and_keeps_the_secret(url: str) -> None:
    """The cause would quote the address."""
    with pytest.raises(ValueError, match="SLUICE_STATE_URL") as caught:
        async with open_state(url):
            pass
    assert caught.value.__cause__ is None


async def test_nobody_listening_is_unavailable() -> None:
    """A refused connection is worth a second try."""
    async with open_state(f"redis://127.0.0.1:{free_port()}/0") as state:
        with pytest.raises(StateUnavailable):
            await state.ping()


async def test_flushed_scripts_are_sent_again(redis_server: RedisServer) -> None:
    """SCRIPT FLUSH between two calls is not noticed."""
    async with open_state(redis_server.url) as state:
        assert await state.call(ONCE, ["n"], []) == 1
        with redis_server.admin() as admin:
            admin.script_flush()
        assert await state.call(ONCE, ["n"], []) == 2


async def test_a_restart_is_survived(redis_server: RedisServer) -> None:
    """Away while it is away; afterwards every pooled connection works."""
    async with open_state(redis_server.url) as state:
        await asyncio.gather(*(state.call(ONCE, ["n"], []) for _ in range(8)))
        redis_server.kill()
        with pytest.raises(StateUnavailable):
            await state.call(ONCE, ["n"], [])
        redis_server.start()
        counts = await asyncio.gather(*(state.call(ONCE, ["n"], []) for _ in range(8)))
        assert sorted(counts) == list(range(1, 9))


async def test_full_memory_is_unavailable_and_passes(redis_server: RedisServer) -> None:
    """OOM is worth a second try."""
    async with open_state(redis_server.url) as state:
        with redis_server.admin() as admin:
            admin.config_set("maxmemory", "1kb")
            with pytest.raises(StateUnavailable):
                await state.call(SET, ["k"], [b"v"])
            admin.config_set("maxmemory", "0")
        await state.call(SET, ["k"], [b"v"])
        assert await state.call(GET, ["k"], []) == b"v"


async def test_a_stale_primary_is_unavailable_and_passes(redis_server: RedisServer) -> None:
    """READONLY is worth a second try."""
    async with open_state(redis_server.url) as state:
        with redis_server.admin() as admin:
            admin.execute_command("REPLICAOF", "127.0.0.1", str(free_port()))
            with pytest.raises(StateUnavailable):
                await state.call(SET, ["k"], [b"v"])
            admin.execute_command("REPLICAOF", "NO", "ONE")
        await state.call(SET, ["k"], [b"v"])


async def test_a_cancelled_call_never_answers_another(redis_server: RedisServer) -> None:
    """Field report 36: 200 rounds, each cancelled at another point of its way."""
    with redis_server.admin() as admin:
        admin.set("a", b"AAAA")
        admin.set("b", b"BBBB")
    async with (
        delay_proxy(redis_server.port, 0.01) as port,
        open_state(f"redis://127.0.0.1:{port}/0", pool_size=4) as state,
    ):
        await state.call(GET, ["a"], [])
        for turn in range(200):
            reading = asyncio.create_task(state.call(GET, ["a"], []))
            await asyncio.wait([reading], timeout=turn % 16 / 1000)
            reading.cancel()
            assert await state.call(GET, ["b"], []) == b"BBBB"
            if not turn % 10:
                await state.ping()
        assert await asyncio.gather(*(state.call(GET, ["b"], []) for _ in range(16))) == [b"BBBB"] * 16


async def test_a_cancelled_call_leaves_at_once(redis_server: RedisServer) -> None:
    """Its command is finished behind its back, and the pool of one is whole."""
    async with (
        delay_proxy(redis_server.port, 0.2) as port,
        open_state(f"redis://127.0.0.1:{port}/0", pool_size=1) as state,
    ):
        calls = [asyncio.create_task(state.ping()) for _ in range(3)]
        await asyncio.sleep(0)
        for call in calls:
            call.cancel()
        done, waiting = await asyncio.wait(calls, timeout=0.1)
        assert (len(done), len(waiting)) == (3, 0)
        await state.ping()
