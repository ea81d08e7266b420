"""`CheckReader` where a broker is away, partitions are added or the group takes back what was just read.

What it hears, and where it goes on, is in tests/contract/test_check_reader.py.
"""

from collections.abc import Callable
from contextlib import nullcontext

import pytest

from tests.support.producer_stage import CHECK, GROUP, PATIENCE_S, ProducerStage, StagedMember
from tests.support.waiting import wait_until
from txlayer.adapters.readers import CheckReader
from txlayer.config import ProducerConfig
from txlayer.errors import BrokerUnavailableError, TopicMismatchError


class Scene:
    """A topic of four partitions, of which the reader counts three at first, with a record in each."""

    def __init__(self, *, start_patience_s: float = PATIENCE_S) -> None:
        self.stage = ProducerStage().connect(ProducerConfig())
        self.stage.set_topic(CHECK, partitions=4)
        self.write()
        self.partition_count = 3
        self.failure: Exception | None = None
        self.reader, self.member = self.make(start_patience_s)

    def make(self, start_patience_s: float = PATIENCE_S) -> tuple[CheckReader, StagedMember]:
        member = self.stage.make_check_member(GROUP)
        reader = CheckReader(
            member, topic=CHECK, count_partitions=self._count, positions={}, start_patience_s=start_patience_s
        )
        return reader, member

    def write(self) -> None:
        for partition in range(4):
            self.stage.kafka.append(CHECK, b"q", partition=partition)

    def read(self) -> tuple[int, frozenset[int]]:
        """(how many records, whose questions were ours)."""
        heard = self.reader.read(record_count_max=10, timeout_s=0.01)
        return len(heard.records), heard.own_partitions

    def until(self, is_so: Callable[[], bool]) -> None:
        def read() -> bool:
            self.read()
            return is_so()

        wait_until(read, within=PATIENCE_S, what="the group's next word")

    def start(self) -> None:
        self.reader.start()
        assert not self.reader.is_member
        self.until(lambda: self.reader.is_member)

    def _count(self) -> int:
        if self.failure is not None:
            raise self.failure
        return self.partition_count


def test_the_ends_are_known_before_the_group_sees_a_member() -> None:
    scene = Scene()
    scene.failure = TopicMismatchError("no such topic")

    with pytest.raises(TopicMismatchError):
        scene.reader.start()

    assert not scene.stage.kafka.admin().group(f"{CHECK}.{GROUP}").members


@pytest.mark.parametrize(("start_patience_s", "is_started"), [(0.0, False), (60.0, True)])
def test_a_broker_that_is_away_at_the_start_is_asked_again_for_so_long(
    start_patience_s: float, is_started: bool
) -> None:
    scene = Scene(start_patience_s=start_patience_s)
    scene.member.deaf_count = 2

    with nullcontext() if is_started else pytest.raises(BrokerUnavailableError):
        scene.start()

    assert is_started is scene.reader.is_member


def test_records_belong_to_the_share_under_which_they_were_read() -> None:
    scene = Scene()
    scene.start()
    everything = scene.reader.own_partitions
    scene.write()
    scene.member.is_revoked = True

    assert (3, everything) == scene.read()
    assert (frozenset(), False) == (scene.reader.own_partitions, scene.reader.is_member)


@pytest.mark.parametrize(("count", "expected"), [(4, {0: 1, 1: 1, 2: 1, 3: 1}), (None, {0: 1, 1: 1, 2: 1})])
def test_a_partition_that_was_added_is_read_from_its_end_at_the_next_share(
    count: int | None, expected: dict[int, int]
) -> None:
    """A broker that does not count partitions at that moment stops nothing."""
    scene = Scene()
    scene.reader.start()
    scene.partition_count = count or 3
    scene.failure = BrokerUnavailableError("nobody") if count is None else None

    scene.until(lambda: scene.reader.is_member)

    assert {(CHECK, p): at for p, at in expected.items()} == scene.member.positions


def test_a_pause_holds_also_over_a_rebalance() -> None:
    scene = Scene()
    scene.reader.pause(is_paused=True)
    scene.start()
    other, _ = scene.make()
    other.start()

    def is_shared() -> bool:
        other.read(record_count_max=10, timeout_s=0.01)
        return len(scene.reader.own_partitions) == 2 == len(other.own_partitions)

    scene.until(is_shared)
    scene.write()
    assert [0] * 5 == [scene.read()[0] for _ in range(5)]

    scene.reader.pause(is_paused=False)
    assert 3 == sum(scene.read()[0] for _ in range(5))
    other.close()
