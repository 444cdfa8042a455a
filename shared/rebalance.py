"""Who should have which partitions: a pure rule that all members come to by themselves from the same view."""

from collections import Counter
from collections.abc import Collection, Mapping

import msgspec


class Plan(msgspec.Struct, frozen=True):
    """What one member should do now.

    Args:
        take: free partitions to acquire.
        give: partitions of its own to hand back.
        short: how many it is short of its share, those to take included.
    """

    take: tuple[int, ...]
    give: tuple[int, ...]
    short: int


def rebalance(
    member: str, members: Collection[str], partitions: int, holders: Mapping[int, str], own: Collection[int]
) -> Plan:
    """Shares partitions out evenly over the live members while moving as few as can be.

    Args:
        member: whose plan it is.
        members: all that live.
        partitions: how many there are, numbered from 0.
        holders: who holds which, those being drained included.
        own: what the member has and is not handing back.
    """
    order = _by_holding({*members, member}, holders)
    shares = _shares(order, partitions)
    surplus = len(own) - shares[member]
    free = [p for p in range(partitions) if p not in holders and p not in own]
    held = Counter(holders.values())
    before = sum(max(shares[m] - held[m], 0) for m in order[: order.index(member)])
    # Each takes its own stretch of what is free, so that members with the same view do not race for one lease.
    wanted = max(-surplus, 0)
    give = sorted(own, reverse=True)[: max(surplus, 0)]
    return Plan(take=tuple(free[before : before + wanted]), give=tuple(give), short=wanted)


def _by_holding(members: Collection[str], holders: Mapping[int, str]) -> list[str]:
    # Those who hold most get the larger share: nothing moves that need not.
    held = Counter(holders.values())
    return sorted(members, key=lambda m: (-held[m], m))


def _shares(order: list[str], partitions: int) -> dict[str, int]:
    share, extra = divmod(partitions, len(order))
    return {m: share + (rank < extra) for rank, m in enumerate(order)}
