"""Names that cannot collide: a random prefix a process, then a counter; secrets where a name is also a key."""

import itertools
import secrets
import zlib
from collections.abc import Callable


def namer(prefix: str) -> Callable[[], str]:
    """A source of names `prefix_<random>_<n>`, unique over processes and cheap to make."""
    stem = f"{prefix}_{secrets.token_hex(6)}_"
    counter = itertools.count(1)
    return lambda: stem + format(next(counter), "x")


def partition_of(channel: str, partitions: int) -> int:
    """The partition that all work of a channel belongs to (design.md, Words)."""
    return zlib.crc32(channel.encode("utf-8", "surrogatepass")) % partitions


def delivery_queue(partition: int) -> str:
    """The queue of finals and of everything else that is done in the order of a lane."""
    return f"sluice.delivery.{partition}"


def stream_queue(partition: int) -> str:
    """The queue of deltas."""
    return f"sluice.stream.{partition}"


def edge_queue(edge_id: str) -> str:
    """The inbox of one edge."""
    return f"sluice.edge.{edge_id}"


DEAD_QUEUE = "sluice.dead"
"""Where the broker's own dead letters wait until they are filed in the records."""
