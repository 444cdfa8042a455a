"""The two buses that the contract suite runs against, and instruments for it."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager

from shared.bus.amqp import AmqpBus
from shared.bus.memory import MemoryBroker, MemoryBus
from shared.bus.port import Bus, Done, Message, Outcome
from shared.clock import SystemClock


class FastClock(SystemClock):
    """A clock whose waits are kept in a list and take a hundredth of their time."""

    def __init__(self) -> None:
        self.waits: list[float] = []

    async def sleep(self, seconds: float) -> None:
        """Waits a hundredth of that."""
        self.waits.append(seconds)
        await asyncio.sleep(seconds / 100)


class Broker:
    """A broker for a test, in process or real, and any number of clients of it."""

    def __init__(self, url: str | None, stack: AsyncExitStack) -> None:
        self.clock = FastClock()
        self._url = url
        self._memory = MemoryBroker()
        self._stack = stack

    async def bus(self) -> Bus:
        """A new client, closed at the end of the test."""
        if self._url is None:
            memory = MemoryBus(self.clock, self._memory)
            self._stack.push_async_callback(memory.close)
            return memory
        amqp = AmqpBus(self._url, self.clock)
        self._stack.push_async_callback(amqp.close)
        await amqp.start()
        return amqp


@asynccontextmanager
async def broker_at(url: str | None) -> AsyncIterator[Broker]:
    """A broker for a test; its clients are closed on leaving."""
    async with AsyncExitStack() as stack:
        yield Broker(url, stack)


async def until(true: Callable[[], bool | Awaitable[bool]], within: float = 30.0) -> None:
    """Returns when it has become true, and fails when it does not in time."""
    async with asyncio.timeout(within):
        while True:
            found = true()
            if found if isinstance(found, bool) else await found:
                return
            await asyncio.sleep(0.01)


class Taker:
    """A handler that keeps what it got, waits at its gate, and answers as scripted, else Done."""

    def __init__(self, *outcomes: Outcome, open_gate: bool = True) -> None:
        self.got: list[Message] = []
        self.finished: list[bytes] = []
        self.cancelled: list[bytes] = []
        self.running = 0
        self.most_running = 0
        self.gate = asyncio.Event()
        if open_gate:
            self.gate.set()
        self._outcomes = list(outcomes)

    @property
    def bodies(self) -> list[bytes]:
        """What it was called with."""
        return [message.body for message in self.got]

    async def __call__(self, message: Message) -> Outcome:
        """Deals with one message."""
        self.got.append(message)
        self.running += 1
        self.most_running = max(self.most_running, self.running)
        try:
            await self.gate.wait()
        except asyncio.CancelledError:
            self.cancelled.append(message.body)
            raise
        finally:
            self.running -= 1
        self.finished.append(message.body)
        return self._outcomes.pop(0) if self._outcomes else Done()
