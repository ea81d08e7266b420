"""Markers that land late: what is visible, stored and possible meanwhile."""

import pytest

from tests.support.memory_stage import GROUP, SOURCE, Stage, commit
from txlayer.adapters.ports import StoredOffset
from txlayer.errors import BrokerUnavailableError

HELD = float("inf")


def test_a_commit_is_answered_before_its_markers_land() -> None:
    stage = Stage(marker_delay_ms=lambda: HELD)
    commit(stage.writer(), b"v")

    assert (2, []) == (len(stage.kafka.cluster.markers), stage.values())
    assert [b"v"] == stage.values("read_uncommitted")
    with pytest.raises(BrokerUnavailableError):
        stage.connections().stored_offsets(GROUP, [SOURCE], is_stable=True)

    assert 2 == stage.kafka.land_markers()
    assert [b"v"] == stage.values()
    assert {SOURCE: StoredOffset(1, "")} == stage.kafka.stored_offsets(GROUP)


def test_markers_land_place_by_place() -> None:
    stage = Stage(marker_delay_ms=lambda: HELD)
    commit(stage.writer(), b"v")

    assert 1 == stage.kafka.land_markers(count=1)

    assert [b"v"] == stage.values()
    assert {} == stage.kafka.stored_offsets(GROUP)


def test_a_writers_next_kafka_transaction_waits_for_its_markers_and_anothers_does_not() -> None:
    stage = Stage(marker_delay_ms=lambda: 500)
    first, second = stage.writer("a"), stage.writer("b")
    commit(first, b"0")
    commit(second, b"1", offset=2)
    assert 0.5 > stage.world.passed_s
    assert [] == stage.values()

    commit(first, b"2", offset=3)

    assert 0.4 < stage.world.passed_s
    stage.world.advance(ms=500)
    assert [b"0", b"1", b"2"] == stage.values()
    assert {SOURCE: StoredOffset(3, "")} == stage.kafka.stored_offsets(GROUP)


def test_an_init_waits_for_the_markers_of_what_it_ends() -> None:
    stage = Stage(marker_delay_ms=lambda: 500)
    zombie = stage.writer()
    zombie.begin()
    zombie.produce("orders", b"zombie", None, 0)
    zombie.flush(timeout_s=5)

    stage.writer()

    assert 0.5 <= stage.world.passed_s
    assert (0, []) == (len(stage.kafka.cluster.markers), stage.values())
    assert {("orders", 0): 2} == stage.connections().end_offsets([("orders", 0)])


def test_markers_of_a_deleted_topic_hold_nothing_up() -> None:
    stage = Stage(marker_delay_ms=lambda: 500)
    writer = stage.writer()
    commit(writer, b"0")
    stage.kafka.delete_topic("orders")
    stage.kafka.create_topic("orders")
    stage.world.advance(ms=500)

    commit(writer, b"1")

    stage.world.advance(ms=500)
    assert [b"1"] == stage.values()
