from hypothesis import given
from hypothesis import strategies as st

from shared.rebalance import rebalance


def settle(members: list[str], partitions: int, holders: dict[int, str]) -> tuple[dict[int, str], int]:
    """Lets all members follow their plans from the same view until nobody has any; gives the moves too."""
    moves = 0
    for _ in range(4):
        plans = {
            m: rebalance(m, members, partitions, holders, [p for p, who in holders.items() if who == m])
            for m in members
        }
        taken = [p for plan in plans.values() for p in plan.take]
        assert len(taken) == len(set(taken))
        given_back = {p for plan in plans.values() for p in plan.give}
        moves += len(given_back)
        holders = {p: who for p, who in holders.items() if p not in given_back}
        holders.update({p: m for m, plan in plans.items() for p in plan.take})
    return holders, moves


def test_a_lone_member_takes_everything() -> None:
    """All are free."""
    plan = rebalance("a", ["a"], 4, {}, [])
    assert (plan.take, plan.give, plan.short) == ((0, 1, 2, 3), (), 4)


def test_what_is_balanced_stays() -> None:
    """Whoever has the larger shares keeps them."""
    holders = {0: "b", 1: "b", 2: "a", 3: "c"}
    for member, own in (("a", [2]), ("b", [0, 1]), ("c", [3])):
        plan = rebalance(member, ["a", "b", "c"], 4, holders, own)
        assert (plan.take, plan.give) == ((), ())


def test_a_newcomer_is_given_its_share_by_those_who_have_more() -> None:
    """It waits until they are free."""
    holders = dict.fromkeys(range(5), "a")
    assert rebalance("a", ["a", "b"], 5, holders, range(5)).give == (4, 3)
    waiting = rebalance("b", ["a", "b"], 5, holders, [])
    assert (waiting.take, waiting.short) == ((), 2)


def test_partitions_being_drained_are_nobodys_to_take() -> None:
    """Not even for the one who drains them."""
    plan = rebalance("a", ["a", "b"], 4, {0: "a", 1: "a", 2: "a", 3: "a"}, [0, 1])
    assert (plan.take, plan.give) == ((), ())


def test_a_member_missing_from_the_list_counts_itself() -> None:
    """The list may be older than the member."""
    assert rebalance("b", ["a"], 4, {}, []).short == 2


def test_more_members_than_partitions_leaves_some_idle() -> None:
    """One each, as far as they go."""
    plans = [rebalance(m, ["a", "b", "c"], 2, {}, []) for m in "abc"]
    assert [plan.take for plan in plans] == [(0,), (1,), ()]


@given(
    members=st.sets(st.sampled_from("abcdefgh"), min_size=1).map(sorted),
    partitions=st.integers(1, 40),
    data=st.data(),
)
def test_from_any_state_all_end_with_an_even_share_and_then_rest(
    members: list[str], partitions: int, data: st.DataObject
) -> None:
    """And no two ever reach for the same."""
    owners = data.draw(st.lists(st.sampled_from([*members, ""]), min_size=partitions, max_size=partitions))
    held, _ = settle(members, partitions, {p: who for p, who in enumerate(owners) if who})
    assert sorted(held) == list(range(partitions))
    counts = [list(held.values()).count(m) for m in members]
    assert max(counts) - min(counts) <= 1
    assert settle(members, partitions, held) == (held, 0)
