"""Consumers when the group shares anew, when handlers are slow, and at their end; over memory and over real Kafka."""

from __future__ import annotations

import threading
from datetime import timedelta

from tests.support.consumers import PATIENCE_S, Gate, MakeStage, Stage, numbers
from tests.support.waiting import wait_until

# --- rebalances and ends ----------------------------------------------------------------------------------------------


def test_when_the_group_shares_anew_what_runs_ends_and_is_not_repeated(
    make_stage: MakeStage,
) -> None:
    stage = make_stage(partitions=2)
    for n in range(20):
        for partition in range(2):
            stage.write(b"%d" % n, key=b"k%d" % partition, partition=partition)
    gate = Gate()

    with stage.consumer(gate, worker_count=4):
        gate.wait_for_one()
        with stage.consumer(gate, worker_count=4):
            gate.is_open.set()
            stage.wait_stored(20)
            stage.wait_stored(20, partition=1)

    for partition in range(2):
        assert numbers(20) == stage.journal.values(b"k%d" % partition)


def test_a_slow_handler_never_costs_the_membership(stage: Stage) -> None:
    stage.write(b"slow", b"next")
    gate = Gate()
    consumer = stage.consumer(gate, session_timeout=timedelta(seconds=6))

    with consumer:
        gate.wait_for_one()
        assert not threading.Event().wait(7)
        gate.is_open.set()
        stage.wait_stored(2)
        assert 0 == consumer.stats().rebuild_count

    assert [b"slow", b"next"] == stage.journal.values(b"k")


def test_the_end_waits_for_handlers_and_stores_what_ended(stage: Stage) -> None:
    stage.write(*numbers(3))
    gate = Gate()
    consumer = stage.consumer(gate)
    consumer.start()
    gate.wait_for_one()

    consumer.stop()
    gate.is_open.set()
    consumer.close()

    assert [b"0"] == stage.journal.values(b"k")
    assert 1 == stage.stored()


def test_what_does_not_end_in_time_is_not_stored(stage: Stage) -> None:
    stage.write(b"0")
    gate = Gate()
    consumer = stage.consumer(gate, close_timeout=timedelta(milliseconds=200))
    consumer.start()
    gate.wait_for_one()

    consumer.close()
    gate.is_open.set()

    assert 0 == stage.stored()


def test_partitions_are_paused_at_their_share_of_the_limit_and_read_again(stage: Stage) -> None:
    stage.write(*numbers(200))
    gate = Gate()
    consumer = stage.consumer(gate, record_count_max=20)

    with consumer:
        gate.wait_for_one()
        wait_until(
            lambda: consumer.stats().topics[stage.topic].paused_partitions == 1,
            within=PATIENCE_S,
            what="the partition is paused",
        )
        gate.is_open.set()
        stage.wait_stored(200)

    assert numbers(200) == stage.journal.values(b"k")
