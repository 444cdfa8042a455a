"""The port of the bus.

BusError
├── Unroutable     no such queue: the receiver is gone
├── Unavailable    the broker is away or did not confirm: publish again
└── Full           the queue is at its cap: publish again later
"""

from collections.abc import Awaitable, Callable
from enum import Enum
from typing import Protocol

from msgspec import Struct


class BusError(Exception):
    """A publish that was not confirmed."""


class Unroutable(BusError):  # noqa: N818 - a condition
    """See the module."""


class Unavailable(BusError):  # noqa: N818 - a condition
    """See the module."""


class Full(BusError):  # noqa: N818 - a condition
    """See the module."""


class QueueKind(Enum):
    """What a queue is for."""

    PARTITION = "partition"
    INBOX = "inbox"
    DEAD = "dead"


class Message(Struct, frozen=True):
    """A message; `deliveries` is how often it had been delivered before."""

    body: bytes
    headers: dict[str, str] = {}
    message_id: str = ""
    deliveries: int = 0


class Done(Struct, frozen=True):
    """Settled."""


class Retry(Struct, frozen=True):
    """The same message again, after so many seconds, in its place."""

    after: float


class Reject(Struct, frozen=True):
    """Never: to the dead letters, with a code and what was wrong."""

    code: str
    detail: str = ""


Outcome = Done | Retry | Reject
Handler = Callable[[Message], Awaitable[Outcome]]


class Subscription(Protocol):
    """A consumer."""

    async def stop(self) -> None:
        """Takes nothing new, and returns when what is under way is settled."""
        ...

    async def abandon(self) -> None:
        """Stops at once; what is under way goes back, in order."""
        ...


class Bus(Protocol):
    """Carries messages between services."""

    async def declare(self, queue: str, kind: QueueKind) -> None:
        """Makes sure that a queue is there."""
        ...

    async def publish(self, queue: str, message: Message) -> None:
        """Returns when the bus has taken responsibility.

        Raises:
            BusError: it has not.
        """
        ...

    async def subscribe(
        self, queue: str, handler: Handler, *, prefetch: int, on_lost: Callable[[], None] | None
    ) -> Subscription:
        """Handlers run side by side up to `prefetch`, and are started in the order of the queue."""
        ...

    async def depth(self, queue: str) -> int:
        """How many messages wait."""
        ...

    def ready(self) -> bool:
        """Whether it is connected and every subscription is served."""
        ...
