"""Groups in memory: shares, generations, who is left out, which offset counts."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from txlayer.adapters.memory.cluster import Group, Member, MemberMetadata, assign_ranges
from txlayer.adapters.memory.world import RefusedError

TOPICS = ("half", "op")
SESSION_MS, REBALANCE_MS = 6_000, 60_000


def group(partition_count: int = 4) -> Group:
    return Group(lambda names: dict.fromkeys(names, partition_count))


def member(name: str, *, is_beating: bool = False) -> Member:
    return Member(name, "client", session_ms=SESSION_MS, rebalance_ms=REBALANCE_MS, is_beating=lambda: is_beating)


@pytest.mark.fault("coordinator: many coordinators join and leave all the time")
@given(
    names=st.sets(st.text("abc", min_size=1, max_size=4), min_size=1, max_size=6),
    counts=st.lists(st.integers(1, 12), min_size=2, max_size=2),
)
def test_every_partition_has_one_member_and_equal_topics_are_shared_alike(names: set[str], counts: list[int]) -> None:
    sizes = dict(zip(TOPICS, counts, strict=True))
    shares = assign_ranges(dict.fromkeys(names, TOPICS), sizes)

    held = Counter(place for share in shares.values() for place in share)
    assert {(topic, p): 1 for topic, count in sizes.items() for p in range(count)} == held
    lengths = [[len([p for t, p in share if t == topic]) for topic in TOPICS] for share in shares.values()]
    for of_topic in zip(*lengths, strict=True):
        assert max(of_topic) - min(of_topic) <= 1
    if counts[0] == counts[1]:
        for share in shares.values():
            assert {p for t, p in share if t == "half"} == {p for t, p in share if t == "op"}


def test_a_generation_begins_when_every_member_has_joined() -> None:
    made = group()
    made.join(member("a"), TOPICS, 0)
    assert (1, False) == (made.generation, made.is_rebalancing)

    made.join(member("b"), TOPICS, 0)
    assert (1, True) == (made.generation, made.is_rebalancing)
    made.join(member("a"), TOPICS, 0)

    assert (2, False) == (made.generation, made.is_rebalancing)
    assert 4 == len(made.members["a"].assigned)


def test_a_member_hears_of_a_rebalance_by_its_heartbeat() -> None:
    made = group()
    made.join(member("a"), TOPICS, 0)
    made.heartbeat("a", 1, 0)
    made.join(member("b"), TOPICS, 0)

    with pytest.raises(RefusedError, match="REBALANCE_IN_PROGRESS"):
        made.heartbeat("a", 1, 0)
    with pytest.raises(RefusedError, match="UNKNOWN_MEMBER_ID"):
        made.heartbeat("nobody", 1, 0)


def test_who_is_silent_for_a_session_is_left_out_and_who_beats_is_not() -> None:
    made = group()
    made.join(member("silent"), TOPICS, 0)
    made.join(member("alive", is_beating=True), TOPICS, 0)
    made.join(member("silent"), TOPICS, 0)

    made.expire(SESSION_MS)

    assert ["alive"] == list(made.members)
    assert made.has_news("silent", 2)


@pytest.mark.fault("coordinator: a batch takes longer than the group's poll interval")
def test_who_does_not_join_again_in_time_is_left_out_although_it_beats() -> None:
    made = group()
    made.join(member("late", is_beating=True), TOPICS, 0)
    made.join(member("new", is_beating=True), TOPICS, 0)

    made.expire(REBALANCE_MS)

    assert (["new"], 2) == (list(made.members), made.generation)
    assert 8 == len(made.members["new"].assigned)


def test_a_rebalance_alone_stops_no_store_of_the_generation_that_still_counts() -> None:
    made = group()
    made.join(member("a"), TOPICS, 0)
    made.join(member("b"), TOPICS, 0)

    assert made.is_rebalancing
    made.check_fence(MemberMetadata("g", "a", 1))
