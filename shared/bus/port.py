"""The port of the bus, which every implementation honours alike (tests/contract/test_bus.py).

A handler returns a meaning; one loop per subscription settles it with the broker (style.md, rule 4).

Errors:
    BusError
    ├── Unroutable    nobody has such a queue
    ├── Unavailable   the broker is away, refuses or does not answer: try again later
    └── Full          the queue is at its bound: try again later, slower
"""

from collections.abc import Awaitable, Callable
from enum import Enum
from typing import Protocol

from msgspec import Struct

from shared.wire.ids import edge_queue

INBOX_PREFIX = edge_queue("")
INBOX_MAX_MESSAGES = 10_000
INBOX_MAX_BYTES = 64 * 1024 * 1024
QUEUE_MAX_BYTES = 1024 * 1024 * 1024
MAX_BODY = 16 * 1024 * 1024
"""RabbitMQ 4 takes no larger message."""


class BusError(Exception):
    """Anything the bus could not do."""


class Unroutable(BusError):
    """No queue of that name exists."""


class Unavailable(BusError):
    """The broker is away, refused or did not answer in time; whether it has the message is unknown."""


class Full(BusError):
    """The queue holds as much as it may."""


class QueueKind(Enum):
    """What a queue is for, and with that how it is kept."""

    PARTITION = "partition"
    """Durable and replicated; one consumer at a time; what is given up goes to the dead queue."""
    INBOX = "inbox"
    """Belongs to the bus that declared it, bounded, and gone with it."""
    DEAD = "dead"
    """Durable and replicated; the messages given up."""


class Message(Struct, frozen=True):
    """One message.

    Attributes:
        body: made by `shared.wire.items.pack`.
        headers: carried both ways.
        message_id: the sender's name for it; empty where it has none.
        deliveries: how often the broker had delivered it before.
    """

    body: bytes
    headers: dict[str, str] = {}
    message_id: str = ""
    deliveries: int = 0


class Done(Struct, frozen=True):
    """The message has been dealt with for good."""


class Retry(Struct, frozen=True):
    """The same message again, in its place, `after` seconds."""

    after: float


class Reject(Struct, frozen=True):
    """The message is given up: it goes to the dead queue with the reason.

    Attributes:
        code: the reason, for machines.
        detail: the reason, for people.
    """

    code: str
    detail: str = ""


def require_size(message: Message) -> None:
    """A body that no broker takes is its sender's mistake, and would cost everyone the channel.

    Raises:
        ValueError: it is larger than `MAX_BODY`.
    """
    if len(message.body) > MAX_BODY:
        raise ValueError(f"a message of {len(message.body)} bytes; the most is {MAX_BODY}")


Outcome = Done | Retry | Reject
Handler = Callable[[Message], Awaitable[Outcome]]


class Subscription(Protocol):
    """What a consumer holds of a queue."""

    async def stop(self) -> None:
        """Takes no more, and returns when everything taken is settled."""
        ...

    async def abandon(self) -> None:
        """Takes no more, cancels the handlers under way and gives their messages back in order."""
        ...


class Bus(Protocol):
    """Queues of messages."""

    async def publish(self, queue: str, message: Message) -> None:
        """Returns when the broker has taken the message over.

        Raises:
            Unroutable: no such queue.
            Unavailable: the broker is away or did not confirm.
            Full: the queue is at its bound.
            ValueError: the body is larger than `MAX_BODY`.
        """
        ...

    async def subscribe(
        self, queue: str, handler: Handler, *, prefetch: int, on_lost: Callable[[], None] | None = None
    ) -> Subscription:
        """Feeds the handler from the queue until the subscription is stopped, mending it whenever it breaks.

        Handlers run side by side, up to `prefetch`, and start in the order of the queue. One that raises is called
        again in place with backoff, and after its last try the message is rejected as `handler_failed`.

        Args:
            queue: a queue declared before.
            handler: deals with one message.
            prefetch: the most messages under way.
            on_lost: called when the broker took the subscription away: what is under way comes again, here or at
                another consumer.

        Raises:
            Unroutable: no such queue.
            Unavailable: the broker is away, or the queue belongs to another.
        """
        ...

    async def declare(self, queue: str, kind: QueueKind) -> None:
        """Makes sure that the queue exists; it is made again whenever it is missed.

        Raises:
            Unavailable: the broker is away, or the queue belongs to another.
        """
        ...

    async def depth(self, queue: str) -> int:
        """How many messages wait, those under way not counted.

        Raises:
            Unroutable: no such queue.
            Unavailable: the broker is away.
        """
        ...

    def ready(self) -> bool:
        """Whether the broker is there and every subscription is live."""
        ...

    async def close(self) -> None:
        """Ends everything; subscriptions still open are abandoned."""
        ...
