"""Who is suspected, and who must not wait for it."""

from collections.abc import Collection
from typing import Any, cast

import pytest

from txlayer.config import SystemTopics
from txlayer.coordinator.refusals import UNKNOWN_COUNT, WATCH_COUNT, Refusals
from txlayer.coordinator.targets import Targets
from txlayer.core.ledger.batch import Batch, RecordToQuarantine
from txlayer.core.ledger.transaction import Transaction
from txlayer.core.messages import Origin, ParkReason, Undecodable
from txlayer.errors import BrokerUnavailableError, RefusedRecordError


class _Book:
    def look_again_at(self, topics: Any) -> None:
        del topics

    def unanswered(self, topics: Any, **large: Any) -> None:
        del topics, large


def new_refusals() -> Refusals:
    """Of a process that just started."""
    return Refusals(SystemTopics("txlayer"), clock=lambda: 0.0)


def suspicious(partition: int, *, line_count: int) -> Refusals:
    """A Kafka transaction of this partition was refused."""
    refusals = new_refusals()
    txn = Transaction("order-1/00000001", "g", "orders", 0, 0, "0", (0, 0), None)
    batch = Batch(forwards=[txn], line_count=line_count)
    refusals.learn(RefusedRecordError("too large"), {partition: batch}, cast("Targets", _Book()))
    return refusals


def test_a_suspected_partition_goes_alone_while_it_has_something_to_do() -> None:
    refusals = suspicious(0, line_count=8)

    assert 0 == refusals.partition_in_turn([0, 1])
    assert 4 == refusals.line_count_max(0, 10_000)


def test_a_suspected_partition_without_anything_to_do_holds_nobody_up() -> None:
    # Seen in a simulated world: its last lines led to nothing, and every other partition waited for its next one.
    refusals = suspicious(0, line_count=8)

    assert refusals.partition_in_turn([1]) is None


def is_careful(refusals: Refusals, partitions: Collection[int]) -> bool:
    return refusals.precautions(partitions, is_watched=False, times={}).is_careful


def test_records_that_no_op_line_brought_are_suspected_as_lines_are() -> None:
    refusals, book = new_refusals(), cast("Targets", _Book())
    why = Undecodable("half record without a header txl")
    quarantined = [RecordToQuarantine(Origin("half", 0, n), None, None, 0, why) for n in range(9)]
    refusals.learn(RefusedRecordError("too large"), {0: Batch(quarantined=quarantined)}, book)
    assert 4 == refusals.count_max(10_000)

    refusals.learn(RefusedRecordError("too large"), {0: Batch(quarantined=quarantined[:1])}, book)
    assert 1 == refusals.count_max(10_000)
    assert is_careful(refusals, {0})

    refusals.learn(RefusedRecordError("too large", doubt_key=b"origin/half/0/0"), {}, book)
    assert {b"origin/half/0/0"} == refusals.doubt_keys
    assert 10_000 == refusals.count_max(10_000)

    refusals.passed(0, Batch(quarantined=quarantined))
    assert not refusals.doubt_keys


def test_only_kafka_transactions_of_the_suspected_partition_are_careful() -> None:
    refusals = suspicious(0, line_count=1)

    assert is_careful(refusals, {0, 1})
    assert not is_careful(refusals, {1})


def test_what_doubt_refuses_is_remembered_until_it_was_written() -> None:
    """Another partition's batch goes first: forgotten then, it would be looked for again and again."""
    refusals, book = new_refusals(), cast("Targets", _Book())
    why = Undecodable("half record without a header txl")
    refused, other = (RecordToQuarantine(Origin("half", p, 0), None, None, 0, why) for p in (1, 0))
    refusals.learn(RefusedRecordError("too large", doubt_key=b"origin/half/1/0"), {}, book)

    refusals.passed(0, Batch(quarantined=[other]))
    assert {b"origin/half/1/0"} == refusals.doubt_keys

    refusals.passed(1, Batch(quarantined=[refused]))
    assert not refusals.doubt_keys


@pytest.mark.fault("data: a message that its topic refuses, or that its headers make too large")
def test_a_code_that_nobody_knows_cuts_nothing_on_doubt_before_it_came_again_and_again() -> None:
    refusals, book = new_refusals(), cast("Targets", _Book())
    why = Undecodable("half record without a header txl")
    aside = RecordToQuarantine(Origin("half", 0, 0), None, None, 0, why)
    error = RefusedRecordError("?", reason="UNKNOWN", doubt_key=b"origin/half/0/0")

    for _ in range(UNKNOWN_COUNT - 1):
        refusals.learn(error, {0: Batch(quarantined=[aside])}, book)
    assert not refusals.doubt_keys

    refusals.learn(error, {0: Batch(quarantined=[aside])}, book)
    assert {b"origin/half/0/0"} == refusals.doubt_keys


def test_nothing_that_is_known_of_transactions_outlives_the_assignment() -> None:
    """Another coordinator may have parked them, or doubt may take them whole by now."""
    book = cast("Targets", _Book())
    refusals = suspicious(0, line_count=8)
    unknown = RefusedRecordError("?", reason="UNKNOWN")
    for _ in range(UNKNOWN_COUNT - 1):
        refusals.learn(unknown, {1: Batch(policy_lines={"a": "a"})}, book)

    refusals.forget_transactions()
    assert refusals.partition_in_turn([0, 1]) is None
    refusals.learn(unknown, {1: Batch(policy_lines={"a": "a"})}, book)
    assert refusals.partition_in_turn([0, 1]) is None

    refusals.learn(RefusedRecordError("too large", doubt_key=b"a/00000001/0"), {}, book)
    refusals.learn(RefusedRecordError("too large", txn_key="a/00000001"), {}, book)
    assert ({b"a/00000001/0"}, ["a/00000001"]) == (refusals.doubt_keys, [*refusals.reasons])

    refusals.forget_transactions()
    assert (set(), {}) == (refusals.doubt_keys, refusals.reasons)


def test_answers_that_nobody_knows_count_only_in_turn() -> None:
    refusals, book = new_refusals(), cast("Targets", _Book())
    unknown = RefusedRecordError("?", reason="UNKNOWN", txn_key="a/00000001")
    batch = Batch(policy_lines={"a": "a"})
    for _ in range(UNKNOWN_COUNT - 1):
        refusals.learn(unknown, {0: batch}, book)

    refusals.passed(0, batch)
    refusals.learn(unknown, {0: batch}, book)
    assert not refusals.reasons


def test_after_a_time_out_very_many_batches_are_watched() -> None:
    refusals, batch = new_refusals(), Batch(policy_lines={"a": "a"})
    refusals.learn(BrokerUnavailableError("away"), {0: batch}, cast("Targets", _Book()))

    for _ in range(WATCH_COUNT):
        assert refusals.precautions({0}, is_watched=False, times={}).is_watched
        refusals.passed(0, batch)
    assert not refusals.precautions({0}, is_watched=False, times={}).is_watched


def test_a_transaction_is_parked_for_its_time_only_when_the_partitions_own_clock_is_refused() -> None:
    refusals, book = new_refusals(), cast("Targets", _Book())
    txn = Transaction("order-1/00000001", "g", "orders", 0, 0, "0", (0, 0), None)
    batches = {0: Batch(forwards=[txn], line_count=1)}
    error = RefusedRecordError("too far ahead", reason="INVALID_TIMESTAMP", txn_key=txn.key)

    refusals.learn(error, batches, book)
    assert ({}, True) == (refusals.reasons, refusals.is_clock_doubted)

    refusals.learn(error, batches, book)
    assert {txn.key: ParkReason.REFUSED} == refusals.reasons

    refusals.forget_transactions()
    assert not refusals.is_clock_doubted
