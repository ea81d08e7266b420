"""A dead letter that cannot be written, and handlers that are slower than the pause between two tries (P9)."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest

from tests.contract.test_unwritten_dead_letters import StuckPartition
from tests.support.consumers import Stage
from tests.support.lab_memory import MemoryLab
from tests.support.waiting import pause, wait_until
from txlayer.config import ConsumerConfig
from txlayer.consumer import failed_tries
from txlayer.consumer.context import Context, ReceivedMessage
from txlayer.core.retry import HandlerResult, Reject, RetryPolicy


@pytest.fixture
def stage() -> Iterator[Stage]:
    made = Stage(MemoryLab(), partitions=2)
    yield made
    made.close()


@pytest.mark.promise("P9")
@pytest.mark.parametrize("partition", [0, 1], ids=["same-partition", "other-partition"])
def test_a_handler_that_takes_longer_than_the_pause_between_two_tries_ends(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, partition: int
) -> None:
    """All times are a fortieth of the defaults: tries a minute apart, 5 s for running handlers, and a handler of 80 s."""
    monkeypatch.setattr(failed_tries, "PAUSE_MAX_MS", 1_500)
    config = ConsumerConfig(bootstrap_servers=stage.lab.servers, namespace=stage.namespace)
    cluster = StuckPartition(stage.lab.connect_consumer(config), (stage.letters, 0))
    calls: list[int] = []

    def act(message: ReceivedMessage, _context: Context) -> HandlerResult:
        if message.key == b"bad":
            return Reject("as planned")
        if message.key == b"slow":
            calls.append(1)
            pause(2.0)
        return None

    settings: dict[str, Any] = {
        "retry": RetryPolicy(attempt_count_max=1),
        "kafka_transaction_timeout": timedelta(seconds=2),
        "revoke_timeout": timedelta(milliseconds=125),
    }
    with stage.consumer(act, connect=lambda _: cluster, **settings) as consumer:
        stage.write(b"bad", key=b"bad", partition=0)
        wait_until(lambda: consumer.stats().replaced_count >= 1, within=20, what="a failed try")
        stage.write(b"slow", key=b"slow", partition=partition)
        try:
            wait_until(
                lambda: consumer.stats().topics[stage.topic].handled >= 1,
                within=30,
                what="the slow message has ended once",
            )
        finally:
            count = len(calls)
            cluster.place = None
    assert count <= 2


@pytest.mark.promise("P9")
@pytest.mark.parametrize("partition", [0, 1], ids=["same-partition", "other-partition"])
def test_other_keys_go_on_beside_a_running_handler_when_a_dead_letter_cannot_be_written(
    stage: Stage, partition: int
) -> None:
    """The handler is within its `attempt_timeout` (5 min); nobody but its own key should wait for it."""
    config = ConsumerConfig(bootstrap_servers=stage.lab.servers, namespace=stage.namespace)
    cluster = StuckPartition(stage.lab.connect_consumer(config), (stage.letters, 0))
    gate = threading.Event()

    def act(message: ReceivedMessage, _context: Context) -> HandlerResult:
        if message.key == b"slow":
            gate.wait(40)
        return Reject("as planned") if message.key == b"bad" else None

    with stage.consumer(
        act,
        connect=lambda _: cluster,
        retry=RetryPolicy(attempt_count_max=1),
        kafka_transaction_timeout=timedelta(seconds=2),
        revoke_timeout=timedelta(milliseconds=125),
    ) as consumer:
        stage.write(b"slow", key=b"slow", partition=partition)
        stage.journal.wait_for(1)
        stage.write(b"bad", key=b"bad", partition=0)
        wait_until(lambda: consumer.stats().replaced_count >= 1, within=20, what="a failed try")
        stage.write(b"good", key=b"good", partition=partition)
        try:
            wait_until(lambda: stage.journal.values(b"good"), within=15, what="the other key")
        finally:
            gate.set()
            cluster.place = None


@pytest.mark.promise("P9")
def test_other_keys_go_on_beside_a_running_handler_when_a_dead_letter_is_refused() -> None:
    """One dead letter is too large for its topic; the handler of another key runs for minutes."""
    lab = MemoryLab()
    stage = Stage(lab)
    lab.delete_topic(stage.letters)
    lab.create(stage.letters, settings={"max.message.bytes": "2000"})
    gate = threading.Event()

    def act(message: ReceivedMessage, _context: Context) -> HandlerResult:
        if message.key == b"slow":
            gate.wait(40)
        return Reject("as planned") if message.key == b"bad" else None

    try:
        with stage.consumer(
            act, retry=RetryPolicy(attempt_count_max=1), revoke_timeout=timedelta(milliseconds=125)
        ) as consumer:
            stage.write(b"slow", key=b"slow")
            stage.journal.wait_for(1)
            stage.write(b"x" * 5_000, key=b"bad")
            wait_until(lambda: consumer.stats().replaced_count >= 1, within=20, what="a failed try")
            stage.write(b"good", key=b"good")
            try:
                wait_until(lambda: stage.journal.values(b"good"), within=10, what="the other key")
            finally:
                gate.set()
    finally:
        stage.close()


@pytest.mark.promise("P9")
@pytest.mark.parametrize("partition", [0, 1], ids=["same-partition", "other-partition"])
def test_everything_goes_on_when_a_handler_that_ran_during_a_failed_try_has_ended(stage: Stage, partition: int) -> None:
    """Its queue is taken over behind the others: what is stored for it names the writer whose Kafka transaction nobody can end."""
    config = ConsumerConfig(bootstrap_servers=stage.lab.servers, namespace=stage.namespace)
    cluster = StuckPartition(stage.lab.connect_consumer(config), (stage.letters, 0))
    gate = threading.Event()

    def act(message: ReceivedMessage, _context: Context) -> HandlerResult:
        if message.key == b"slow":
            gate.wait(40)
        return Reject("as planned") if message.key == b"bad" else None

    with stage.consumer(
        act,
        connect=lambda _: cluster,
        retry=RetryPolicy(attempt_count_max=1),
        kafka_transaction_timeout=timedelta(seconds=2),
        revoke_timeout=timedelta(milliseconds=125),
    ) as consumer:
        stage.write(b"slow", key=b"slow", partition=partition)
        stage.journal.wait_for(1)
        stage.write(b"bad", key=b"bad", partition=0)
        wait_until(lambda: consumer.stats().replaced_count >= 1, within=20, what="a failed try")
        pause(3.0)  # the queues without a running handler are taken over meanwhile
        gate.set()
        for number in range(2):
            stage.write(b"good", key=b"good-%d" % number, partition=number)
        try:
            wait_until(
                lambda: stage.journal.values(b"good-0") and stage.journal.values(b"good-1"),
                within=30,
                what=f"the other keys ({consumer.stats().replaced_count} tries)",
            )
        finally:
            cluster.place = None
