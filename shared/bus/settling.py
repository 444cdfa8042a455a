"""How a message comes to its end, the same on every bus: handlers at work, tries, and the way to the dead queue."""

import asyncio
import logging
from collections.abc import Awaitable, Callable

from shared.bus.backoff import doubling
from shared.bus.port import Bus, BusError, Done, Handler, Message, QueueKind, Reject, Retry, Unroutable
from shared.clock import Clock
from shared.wire.ids import DEAD_QUEUE

log = logging.getLogger(__name__)

HANDLER_TRIES = 5
FIRST_WAIT = 1.0
LONGEST_WAIT = 30.0
DETAIL_LIMIT = 500


async def conclude(handler: Handler, message: Message, clock: Clock) -> Done | Reject:
    """Calls the handler until it is done with the message or gives it up."""
    failures = 0
    while True:
        try:
            outcome = await handler(message)
        except (Exception, asyncio.CancelledError) as error:
            if _is_ours(error):
                raise
            failures += 1
            log.exception("a handler failed: try=%d", failures)
            if failures >= HANDLER_TRIES:
                return Reject("handler_failed", f"{type(error).__name__}: {error}")
            await clock.sleep(doubling(failures, FIRST_WAIT, LONGEST_WAIT))
            continue
        if not isinstance(outcome, Retry):
            return outcome
        await clock.sleep(outcome.after)


def _is_ours(error: BaseException) -> bool:
    """A cancellation asked of this task, against one that the handler caught from a future it waited for."""
    task = asyncio.current_task()
    return isinstance(error, asyncio.CancelledError) and task is not None and task.cancelling() > 0


async def bury(bus: Bus, queue: str, message: Message, reject: Reject, clock: Clock) -> None:
    """Puts the message in the dead queue and returns when it is safe there, however long that takes."""
    letter = dead_letter(queue, message, reject)
    attempt = 0
    while True:
        try:
            await bus.publish(DEAD_QUEUE, letter)
        except BusError as error:
            attempt += 1
            log.warning("a dead letter has to wait: %s: %s", type(error).__name__, error)
            await clock.sleep(doubling(attempt, FIRST_WAIT, LONGEST_WAIT))
            if isinstance(error, Unroutable):
                await _redeclare(bus)
        else:
            return


async def _redeclare(bus: Bus) -> None:
    try:
        await bus.declare(DEAD_QUEUE, QueueKind.DEAD)
    except BusError as error:
        log.warning("the dead queue is missing: %s", error)


def dead_letter(queue: str, message: Message, reject: Reject) -> Message:
    """The message as it lies in the dead queue: its own body, and why it is there."""
    if queue == DEAD_QUEUE:  # it goes to the end of the line, with the reason it came with
        return Message(message.body, message.headers, message.message_id)
    detail = reject.detail[:DETAIL_LIMIT].encode(errors="replace").decode()
    reasons = {"x-reason": reject.code, "x-detail": detail, "x-queue": queue}
    return Message(message.body, message.headers | reasons, message.message_id)


class AtWork:
    """The handlers of a subscription that are under way."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()
        self._idle = asyncio.Event()
        self._idle.set()

    def __len__(self) -> int:
        """How many are under way."""
        return len(self._tasks)

    def start(self, work: Callable[[], Awaitable[None]], name: str) -> None:
        """Runs it; works start in the order of these calls."""
        task = asyncio.ensure_future(_run(work))
        task.set_name(name)
        self._tasks.add(task)
        self._idle.clear()
        task.add_done_callback(self._ended)

    def cancel(self) -> None:
        """Asks all to stop."""
        for task in self._tasks:
            task.cancel()

    async def idle(self) -> None:
        """Returns when none is under way."""
        await self._idle.wait()

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not self._tasks:
            self._idle.set()
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("a message could not be settled", exc_info=error)


async def _run(work: Callable[[], Awaitable[None]]) -> None:
    await work()
