"""The one way to Redis: a bounded pool, scripts by their hash, and errors that say whether to try again.

    StateError
    └── StateUnavailable    nobody could answer just now: try again

A caller that is cancelled never leaves its reply behind in a pooled connection (field report 36): each command runs in
a task of its own, which reads its reply to the end, or drops its connection, whatever becomes of the caller.
"""

import asyncio
import hashlib
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Final, Generic, TypeVar, cast

from redis.asyncio import BlockingConnectionPool, Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import (
    ClusterDownError,
    MasterDownError,
    NoScriptError,
    OutOfMemoryError,
    ReadOnlyError,
    RedisError,
    ResponseError,
    TryAgainError,
)
from redis.exceptions import (
    ConnectionError as RedisConnectionError,
)
from redis.exceptions import (
    TimeoutError as RedisTimeoutError,
)

R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)

Value = str | bytes | int | float

#: Seconds to wait for a connection of the pool, for the socket to open, and for a reply.
POOL_TIMEOUT: Final = 3.0
CONNECT_TIMEOUT: Final = 2.0
REPLY_TIMEOUT: Final = 3.0
POOL_SIZE: Final = 16

_DROPPED = (RedisConnectionError, RedisTimeoutError, OSError)
_PASSING = (ClusterDownError, MasterDownError, OutOfMemoryError, ReadOnlyError, TryAgainError)
_PASSING_WORDS = ("BUSY", "MISCONF", "NOREPLICAS", "OOM", "READONLY")


class StateError(Exception):
    """The shared state answered with an error: trying again would not help."""


class StateUnavailable(StateError):
    """The shared state cannot answer just now (away, full, a stale primary): try again."""


class Script(Generic[R_co]):
    """A Lua script, called by its hash.

    Args:
        text: the Lua source. `R_co` is the shape of its reply as redis-py gives it.
        repeatable: running it twice leaves what running it once does, so a dropped connection is tried once more.
    """

    __slots__ = ("repeatable", "sha", "text")

    def __init__(self, text: str, *, repeatable: bool = False) -> None:
        self.text = text
        self.repeatable = repeatable
        self.sha = hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest()


class State:
    """The shared state. Made by `open_state`.

    Args:
        redis: a client that gives bytes and does not retry by itself.
    """

    def __init__(self, redis: Redis) -> None:
        self._redis = redis
        self._execute: Callable[..., Awaitable[object]] = redis.execute_command
        self._running: set[asyncio.Task[object]] = set()

    async def call(self, script: Script[R], keys: Sequence[str | bytes], args: Sequence[Value]) -> R:
        """Runs a script as one round trip; a server that does not know it yet is given its text.

        Raises:
            StateUnavailable: no answer just now. The script may have run.
            StateError: the script failed.
        """
        return cast("R", await self._finish(self._run(script, keys, args)))

    async def ping(self) -> None:
        """Asks the server for a sign of life.

        Raises:
            StateUnavailable: there is none.
        """
        await self._finish(self._ping())

    async def close(self) -> None:
        """Waits for the commands under way, each bounded by the timeouts, and closes the pool."""
        if self._running:
            await asyncio.wait(self._running)
        await self._redis.aclose()
        await self._redis.connection_pool.disconnect()

    async def _finish(self, command: Awaitable[object]) -> object:
        # Shielded, not cancelled: cancelling redis-py may leave a connection out of the pool for good.
        task: asyncio.Task[object] = asyncio.ensure_future(command)
        self._running.add(task)
        task.add_done_callback(self._forget)
        return await asyncio.shield(task)

    def _forget(self, task: asyncio.Task[object]) -> None:
        self._running.discard(task)
        if not task.cancelled():
            task.exception()  # looked at here, since the caller may be gone

    async def _run(self, script: Script[R], keys: Sequence[str | bytes], args: Sequence[Value]) -> object:
        async def evaluate() -> object:
            try:
                return await self._execute("EVALSHA", script.sha, len(keys), *keys, *args)
            except NoScriptError:
                return await self._execute("EVAL", script.text, len(keys), *keys, *args)

        return await self._translated(self._repeated(evaluate) if script.repeatable else evaluate())

    async def _ping(self) -> object:
        return await self._translated(self._repeated(lambda: self._execute("PING")))

    @staticmethod
    async def _repeated(command: Callable[[], Awaitable[object]]) -> object:
        try:
            return await command()
        except RedisConnectionError:
            return await command()

    async def _translated(self, command: Awaitable[object]) -> object:
        try:
            return await command
        except ReadOnlyError as error:
            # The name may lead to the new primary by now: connect anew (field report 37).
            await self._redis.connection_pool.disconnect(inuse_connections=False)
            raise StateUnavailable(str(error)) from error
        except (*_DROPPED, *_PASSING) as error:
            raise StateUnavailable(f"{type(error).__name__}: {error}") from error
        except ResponseError as error:
            kind = StateUnavailable if str(error).startswith(_PASSING_WORDS) else StateError
            raise kind(str(error)) from error
        except RedisError as error:
            raise StateError(str(error)) from error


@asynccontextmanager
async def open_state(url: str, *, pool_size: int = POOL_SIZE) -> AsyncGenerator[State]:
    """Opens the shared state; nothing is connected before the first command.

    Args:
        url: `memory://` (in this process, gone with it) or `redis://[[user]:password@]host[:port][/db]`
            (`rediss://` for TLS).
        pool_size: the most connections; further commands wait for one.

    Raises:
        ValueError: the address is none of these.
    """
    state = State(_memory() if url == "memory://" else _client(url, pool_size))
    try:
        yield state
    finally:
        await state.close()


def _memory() -> Redis:
    from fakeredis import FakeAsyncRedis, FakeServer  # noqa: PLC0415 - a role of the fleet has no use for it

    return cast("Redis", FakeAsyncRedis(server=FakeServer()))


def _client(url: str, pool_size: int) -> Redis:
    wrong = "SLUICE_STATE_URL must be memory:// or redis://host:port/db"
    if not url.startswith(("redis://", "rediss://")):
        raise ValueError(wrong)
    try:
        pool = BlockingConnectionPool.from_url(
            url,
            max_connections=pool_size,
            timeout=POOL_TIMEOUT,
            socket_connect_timeout=CONNECT_TIMEOUT,
            socket_timeout=REPLY_TIMEOUT,
            socket_keepalive=True,
            retry=Retry(NoBackoff(), 0),
            protocol=2,
            decode_responses=False,
        )
    except ValueError:
        raise ValueError(wrong) from None  # the cause would quote the address, password and all
    return Redis(connection_pool=pool)
