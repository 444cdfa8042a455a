"""How each kind of queue is declared at RabbitMQ 3.10 to 4.x."""

from aiormq.abc import AbstractChannel, ArgumentsType

from shared.bus.port import INBOX_MAX_BYTES, INBOX_MAX_MESSAGES, QUEUE_MAX_BYTES, QueueKind
from shared.wire.ids import DEAD_QUEUE

_NO_DELIVERY_LIMIT = 1_000_000_000  # attempts are counted by us; innocents share a prefetch window (field report 34)

_DEAD: ArgumentsType = {
    "x-queue-type": "quorum",
    "x-delivery-limit": _NO_DELIVERY_LIMIT,
    "x-max-length-bytes": QUEUE_MAX_BYTES,
    "x-overflow": "reject-publish",
}
_PARTITION: ArgumentsType = {
    **_DEAD,
    "x-single-active-consumer": True,
    "x-dead-letter-exchange": "",  # the default exchange, to which every queue is bound by its name
    "x-dead-letter-routing-key": DEAD_QUEUE,
}
_INBOX: ArgumentsType = {
    "x-max-length": INBOX_MAX_MESSAGES,
    "x-max-length-bytes": INBOX_MAX_BYTES,
    "x-overflow": "reject-publish",
}


async def declare(channel: AbstractChannel, queue: str, kind: QueueKind, within: float) -> None:
    """Makes sure that the queue is there, and with a partition the dead queue too."""
    match kind:
        case QueueKind.PARTITION:
            await declare(channel, DEAD_QUEUE, QueueKind.DEAD, within)
            await channel.queue_declare(queue, durable=True, arguments=_PARTITION, timeout=within)
        case QueueKind.DEAD:
            await channel.queue_declare(queue, durable=True, arguments=_DEAD, timeout=within)
        case QueueKind.INBOX:
            await channel.queue_declare(queue, exclusive=True, auto_delete=True, arguments=_INBOX, timeout=within)
