"""AMQP's exceptions in the words of the port."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

from aiormq.exceptions import AMQPError, ChannelNotFoundEntity, DeliveryError, PublishError

from shared.bus.port import INBOX_PREFIX, BusError, Full, Unavailable, Unroutable


@contextmanager
def translated(queue: str = "") -> Iterator[None]:
    """What the client library raises within comes out as a `BusError`."""
    try:
        yield
    except BusError:
        raise
    except asyncio.CancelledError as error:
        if _is_ours():
            raise
        raise Unavailable("the connection was closed") from error  # the library cancels what waits for it
    except (PublishError, ChannelNotFoundEntity) as error:
        raise Unroutable(queue) from error
    except DeliveryError as error:
        kind = Full if queue.startswith(INBOX_PREFIX) else Unavailable
        raise kind(f"{queue}: refused by the broker") from error
    except TimeoutError as error:
        raise Unavailable("the broker does not answer") from error
    except (AMQPError, OSError, RuntimeError) as error:
        raise Unavailable(f"{type(error).__name__}: {error}") from error


def _is_ours() -> bool:
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
