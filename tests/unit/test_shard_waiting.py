"""How long op lines wait for half: for their position in op, once, by the broker's word."""

from collections.abc import Sequence
from typing import Any

import pytest

from tests.support.core_records import FAR_AWAY, op_line, txn_key
from tests.support.partition_driver import PartitionDriver
from txlayer.config import SystemTopics
from txlayer.coordinator.shard import LogTime, Shard

PATIENCE_S = 10.0


class Half:
    """What the broker says of half's end."""

    def __init__(self, end: int) -> None:
        self.end = end

    def end_offsets(self, places: Sequence[tuple[str, int]], *, is_committed: bool) -> dict[tuple[str, int], int]:
        assert not is_committed
        return dict.fromkeys(places, self.end)


class Waiting:
    """A partition whose clock a test moves."""

    def __init__(self) -> None:
        self.driver = PartitionDriver()
        ledger = self.driver.ledger
        self.shard = Shard(ledger, ledger.positions(), 0, 0, LogTime(lambda: 0.0))
        self.half: Any = Half(0)
        self.now = 0.0

    def look(self, *, after_s: float) -> None:
        """Time passes, and the loop turns."""
        self.now += after_s
        self.shard.give_up_misplaced_lines(
            SystemTopics("txlayer"), connections=self.half, now=self.now, patience_s=PATIENCE_S
        )
        self.driver.turn()

    def waits_for(self) -> int | None:
        """The half offset that is waited for."""
        return self.driver.ledger.waits_for_half


@pytest.mark.fault("data: an op without its half record, a half record without op, or an op that is read first")
def test_the_lines_of_one_record_wait_once() -> None:
    waiting = Waiting()
    keys = [txn_key(f"far{number}") for number in range(15)]
    waiting.driver.op_lines(*(op_line("C", key, FAR_AWAY + n) for n, key in enumerate(keys)))
    waiting.driver.turn()
    waiting.look(after_s=0.0)
    waiting.look(after_s=PATIENCE_S - 1)
    assert FAR_AWAY == waiting.waits_for()

    waiting.look(after_s=1)

    assert waiting.waits_for() is None
    assert set(keys) == set(waiting.driver.log.on_doubt())


def test_a_record_that_came_during_the_wait_has_a_wait_of_its_own() -> None:
    waiting = Waiting()
    waiting.driver.op("C", txn_key("a"), FAR_AWAY)
    waiting.driver.turn()
    waiting.look(after_s=0.0)
    waiting.driver.op("C", txn_key("b"), FAR_AWAY + 1)
    waiting.look(after_s=PATIENCE_S)
    assert FAR_AWAY + 1 == waiting.waits_for()

    waiting.look(after_s=0.0)
    waiting.look(after_s=PATIENCE_S - 1)
    assert FAR_AWAY + 1 == waiting.waits_for()
    waiting.look(after_s=1)

    assert waiting.waits_for() is None


def test_nothing_is_given_up_that_the_broker_has() -> None:
    waiting = Waiting()
    waiting.driver.op("C", txn_key("a"), 0)
    waiting.driver.turn()
    waiting.half.end = 1  # not read yet
    for _ in range(5):
        waiting.look(after_s=PATIENCE_S)

    assert 0 == waiting.waits_for()
    assert [] == waiting.driver.log.kept_aside


@pytest.mark.promise("P1", "P11")
def test_a_line_that_names_nothing_is_given_up_although_half_never_stops_growing() -> None:
    waiting = Waiting()
    committed = txn_key("committed")
    waiting.driver.op("C", txn_key("a"), FAR_AWAY)
    waiting.driver.op("C", committed, waiting.driver.half(committed))
    waiting.driver.turn()
    for number in range(4):
        waiting.half.end = len(waiting.driver.log.half) + 1  # one record came since the last read
        waiting.look(after_s=PATIENCE_S / 2)
        waiting.driver.half(txn_key(f"other{number}"))
        waiting.driver.turn()

    assert waiting.waits_for() is None
    assert [committed] == waiting.driver.log.forwarded


@pytest.mark.promise("P1", "P7")
def test_a_line_that_names_nothing_is_given_up_although_half_waits_for_memory() -> None:
    """What would make room is behind that line."""
    waiting, committed, unread = Waiting(), txn_key("committed"), txn_key("unread")
    waiting.driver.op("C", txn_key("a"), FAR_AWAY)
    waiting.driver.op("C", committed, waiting.driver.half(committed))
    waiting.driver.op("C", unread, 3)
    waiting.driver.turn()
    waiting.half.end = 5  # the broker has more, and half is paused

    waiting.look(after_s=0.0)
    waiting.look(after_s=PATIENCE_S)
    waiting.look(after_s=PATIENCE_S)

    assert ([committed], 3) == (waiting.driver.log.forwarded, waiting.waits_for())
    assert 1 == len(waiting.driver.log.kept_aside)
