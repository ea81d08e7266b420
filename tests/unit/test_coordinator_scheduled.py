"""A coordinator releases scheduled messages at their times, by the clock of the broker, over restarts."""

from typing import Any

import pytest

from tests.support.core_records import op_line, options, txn_key
from tests.support.still_coordinator import StillCoordinator
from txlayer.coordinator.targets import Targets
from txlayer.core.messages import HalfOptions, txn_id_of

A, B = txn_key("a"), txn_key("b")
LATE_MS = 1_000
"""How late a message may become visible."""


def scheduled(stage: StillCoordinator, key: str, *, after_ms: int) -> tuple[int, int]:
    """Commit a message that is due so much later; the offset of its half record, and its time."""
    at_ms = stage.world.now_ms() + after_ms
    offset = stage.half(key, options=HalfOptions(deliver_at_ms=at_ms))
    stage.commit(key, offset)
    return offset, at_ms


def visible_at(stage: StillCoordinator) -> list[int]:
    """When the messages became visible, by the broker's clock."""
    return [record.timestamp()[1] for record in stage.kafka.records("orders")]


@pytest.mark.promise("P3")
@pytest.mark.parametrize("after_ms", [0, 999, 60_000, 30 * 24 * 3_600_000])
def test_a_message_becomes_visible_at_its_time_and_not_before(after_ms: int) -> None:
    stage = StillCoordinator()
    _, at_ms = scheduled(stage, A, after_ms=after_ms)
    stage.work(seconds=2)
    if after_ms > 10_000:
        stage.world.advance(ms=after_ms - 5_000)
        stage.work(seconds=2)
        assert [] == stage.visible()
    stage.work(seconds=10)

    [seen_ms] = visible_at(stage)
    assert at_ms <= seen_ms <= at_ms + LATE_MS


@pytest.mark.promise("P2")
def test_a_successor_releases_what_the_one_before_it_kept() -> None:
    stage = StillCoordinator()
    scheduled(stage, A, after_ms=20_000)
    for _ in range(15):
        stage.work(seconds=2)

    assert [txn_id_of(A)] == stage.visible()
    assert {} == stage.on_doubt()


@pytest.mark.promise("P3")
@pytest.mark.parametrize("skew_s", [-30.0, 30.0, 3_600.0])
def test_the_time_is_that_of_the_broker(skew_s: float) -> None:
    stage = StillCoordinator(wall_skew_s=skew_s)
    _, at_ms = scheduled(stage, A, after_ms=10_000)
    stage.work(seconds=15)

    [seen_ms] = visible_at(stage)
    assert at_ms <= seen_ms <= at_ms + LATE_MS


def committed_for_one_time(stage: StillCoordinator, count: int) -> list[str]:
    """The id/nonce of so many transactions, each of one message that is due in 5 s."""
    at_ms = stage.world.now_ms() + 5_000
    keys = [txn_key(f"t{number}") for number in range(count)]
    for key in keys:
        stage.commit(key, stage.half(key, options=HalfOptions(deliver_at_ms=at_ms)))
    return keys


@pytest.mark.slow
def test_very_many_that_are_due_at_once_are_released_in_pieces() -> None:
    stage, count = StillCoordinator(), 2_500
    keys = committed_for_one_time(stage, count)
    stage.work(seconds=20)

    assert sorted(map(txn_id_of, keys)) == sorted(stage.visible())
    # One append time for all of a batch: of one ordering key none comes too early and the one behind it in time.
    assert len(released_by(stage)) <= 3


@pytest.mark.promise("P1")
@pytest.mark.parametrize("bytes_max", [700, 2_000])
def test_many_that_are_due_at_once_are_released_although_op_takes_small_records_alone(bytes_max: int) -> None:
    stage, count = StillCoordinator(), 300
    stage.kafka.cluster.alter_topic(stage.topics.op, {"max.message.bytes": str(bytes_max)})
    keys = committed_for_one_time(stage, count)
    stage.work(seconds=20)

    assert sorted(map(txn_id_of, keys)) == sorted(stage.visible())


@pytest.mark.promise("P1")
def test_many_of_one_key_are_released_by_few_lines_where_nobody_says_how_large_a_record_op_takes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Targets, "limit_of", lambda _self, _topic: None)
    stage, count = StillCoordinator(), 150
    at_ms = stage.world.now_ms() + 5_000
    keys = [txn_key(f"t{number}") for number in range(count)]
    for key in keys:
        stage.commit(key, stage.half(key, options=options("red")._replace(deliver_at_ms=at_ms)))
    stage.work(seconds=20)

    assert list(map(txn_id_of, keys)) == stage.visible()
    # One asks op for its time; a hundred are one record then.
    assert len(released_by(stage)) <= 3


def released_by(stage: StillCoordinator) -> list[Any]:
    """The op records whose lines release messages."""
    return [record for record in stage.kafka.records(stage.topics.op) if b"|policy|" in (record.value() or b"")]


@pytest.mark.promise("P6")
@pytest.mark.fault("clock: the clock of the next leader is a moment behind")
@pytest.mark.parametrize("bytes_max", [600, 1_000_000])
def test_of_one_key_none_overtakes_another_although_their_lines_are_in_two_records(bytes_max: int) -> None:
    stage = StillCoordinator()
    stage.kafka.cluster.alter_topic(stage.topics.op, {"max.message.bytes": str(bytes_max)})
    at_ms = stage.world.now_ms() + 5_000
    red = options("red")._replace(deliver_at_ms=at_ms)
    for key in (A, B):
        stage.commit(key, stage.half(key, options=red))
    stage.work(seconds=4)
    stage.op(op_line("U", A, 0), ahead_s=1.1)  # by the clock of this leader their time has come
    written: list[list[Any]] = []

    def take(topic: str, records: list[Any]) -> None:
        if topic == stage.topics.op:
            # Not by that of the next one, but for what is written a moment later.
            stage.world.advance(ms=at_ms - stage.world.now_ms() - (not written))
            written.append(records)

    stage.refuse(take)
    stage.work(seconds=5)

    assert 1 < len(written)
    assert [txn_id_of(A), txn_id_of(B)] == stage.visible()
