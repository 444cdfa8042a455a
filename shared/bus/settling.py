"""From a handler's meaning to the end of a message: the one place where that is decided."""

import logging
from collections.abc import Awaitable, Callable

from shared.bus.port import BusError, Done, Handler, Message, Reject, Retry
from shared.clock import Clock
from shared.wire.ids import DEAD_QUEUE

log = logging.getLogger(__name__)

TRIES = 5
FIRST_PAUSE = 1.0
LONGEST_PAUSE = 30.0


async def settle(
    queue: str,
    message: Message,
    handler: Handler,
    publish: Callable[[str, Message], Awaitable[None]],
    clock: Clock,
) -> None:
    """Returns when the message may be acked: done, or safely among the dead letters."""
    failures = 0
    while True:
        try:
            outcome = await handler(message)
        except Exception as error:
            failures += 1
            log.exception("a handler failed: queue=%s failures=%d", queue, failures)
            if failures < TRIES:
                await clock.sleep(min(FIRST_PAUSE * 2 ** (failures - 1), LONGEST_PAUSE))
                continue
            outcome = Reject("handler_failed", type(error).__name__)
        match outcome:
            case Done():
                return
            case Retry(after):
                await clock.sleep(after)
            case Reject(code, detail):
                await _bury(queue, message, code, detail, publish, clock)
                return


async def _bury(
    queue: str,
    message: Message,
    code: str,
    detail: str,
    publish: Callable[[str, Message], Awaitable[None]],
    clock: Clock,
) -> None:
    headers = {**message.headers, "x-reason": code, "x-detail": detail[:200], "x-queue": queue}
    while True:
        try:
            await publish(DEAD_QUEUE, Message(message.body, headers, message.message_id, message.deliveries))
        except BusError as error:
            log.warning("the dead letters cannot be reached: %s", type(error).__name__)
            await clock.sleep(FIRST_PAUSE)
        else:
            return
