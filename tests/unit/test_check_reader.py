"""`CheckReader`: reads everything, answers its share, keeps its positions."""

from __future__ import annotations

from contextlib import nullcontext

import pytest

from tests.support.fake_member import TOPIC, FakeMember, question
from txlayer.adapters.readers import CheckReader
from txlayer.errors import BrokerUnavailableError, TopicMismatchError


class Scene:
    """A reader on a fake member."""

    def __init__(self, *, share: tuple[int, ...] = (1,), partition_count: int = 3) -> None:
        self.member = FakeMember(share=share)
        self.member.ends = {0: 5, 1: 6, 2: 7, 3: 8}
        self.positions: dict[int, int] = {}
        self.partition_count = partition_count
        self.failure: Exception | None = None
        self.reader = self.make(self.member)

    def make(self, member: FakeMember) -> CheckReader:
        return CheckReader(member, topic=TOPIC, count_partitions=self._count, positions=self.positions)

    def read(self) -> tuple[int, frozenset[int]]:
        """(how many records, whose questions were ours)."""
        heard = self.reader.read(record_count_max=10, timeout_s=0)
        return len(heard.records), heard.own_partitions

    def _count(self) -> int:
        if self.failure is not None:
            raise self.failure
        return self.partition_count


def test_all_partitions_are_read_from_their_ends_and_only_the_share_is_ones_own() -> None:
    scene = Scene()
    scene.reader.start()
    assert not scene.reader.is_member

    scene.read()

    assert {(TOPIC, 0): 5, (TOPIC, 1): 6, (TOPIC, 2): 7} == scene.member.positions
    assert frozenset({1}) == scene.reader.own_partitions
    assert scene.reader.is_member


def test_the_ends_are_known_before_the_group_sees_a_member() -> None:
    scene = Scene()
    scene.failure = TopicMismatchError("no such topic")

    with pytest.raises(TopicMismatchError):
        scene.reader.start()
    assert not scene.member.is_started

    scene.failure = None
    scene.reader.start()
    scene.member.ends[1] = 60  # asked between the start and the first share
    scene.read()

    assert 6 == scene.member.positions[TOPIC, 1]


@pytest.mark.parametrize(("start_patience_s", "is_started"), [(0.0, False), (60.0, True)])
def test_a_broker_that_is_away_at_the_start_is_asked_again_for_so_long(
    start_patience_s: float, is_started: bool
) -> None:
    member = FakeMember(share=(1,))
    member.deaf_count = 2
    reader = CheckReader(
        member, topic=TOPIC, count_partitions=lambda: 3, positions={}, start_patience_s=start_patience_s
    )

    with nullcontext() if is_started else pytest.raises(BrokerUnavailableError):
        reader.start()

    assert is_started is member.is_started


def test_a_rebalance_goes_on_where_reading_stopped() -> None:
    scene = Scene()
    scene.reader.start()
    scene.read()
    scene.member.say(question("a"), question("b"), partition=0)
    assert (2, frozenset({1})) == scene.read()

    scene.member.revoke()
    scene.read()
    assert frozenset() == scene.reader.own_partitions
    assert not scene.reader.is_member
    scene.member.give(0, 2)
    scene.read()

    assert 1 == scene.member.positions[TOPIC, 0]  # the fake's records all have offset 0
    assert frozenset({0, 2}) == scene.reader.own_partitions


def test_records_belong_to_the_share_under_which_they_were_read() -> None:
    scene = Scene()
    scene.reader.start()
    scene.read()
    scene.member.say(question(), partition=1)
    scene.member.revoke()

    assert (1, frozenset({1})) == scene.read()
    assert frozenset() == scene.reader.own_partitions


def test_a_partition_that_was_added_is_read_from_its_end_at_the_next_share() -> None:
    scene = Scene()
    scene.reader.start()
    scene.read()

    scene.partition_count = 4
    scene.member.give(1, 3)
    scene.read()

    assert 8 == scene.member.positions[TOPIC, 3]


def test_a_broker_that_does_not_count_partitions_now_stops_nothing() -> None:
    scene = Scene()
    scene.reader.start()
    scene.failure = BrokerUnavailableError("nobody")

    scene.read()

    assert scene.reader.is_member
    assert 3 == len(scene.member.positions)


def test_the_next_reader_goes_on_where_this_one_stopped() -> None:
    scene = Scene()
    scene.reader.start()
    scene.read()
    scene.member.say(question(), partition=2)
    scene.read()
    scene.reader.close()
    assert scene.member.is_closed

    second = FakeMember(share=(0, 1, 2))
    second.ends = {0: 100, 1: 100, 2: 100}
    scene.reader = scene.make(second)
    scene.reader.start()
    scene.read()

    assert {(TOPIC, 0): 5, (TOPIC, 1): 6, (TOPIC, 2): 1} == second.positions


def test_a_pause_holds_every_partition_also_over_a_rebalance() -> None:
    scene = Scene()
    scene.reader.start()
    scene.reader.pause(is_paused=True)
    assert set() == scene.member.paused
    scene.read()
    everything = {(TOPIC, 0), (TOPIC, 1), (TOPIC, 2)}
    assert everything == scene.member.paused

    scene.member.paused.clear()  # as an assignment does
    scene.member.give(0)
    scene.read()
    assert everything == scene.member.paused

    scene.reader.pause(is_paused=False)
    assert set() == scene.member.paused
