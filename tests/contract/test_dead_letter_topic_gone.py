"""A dead-letter topic of which every partition takes nothing, or cannot be read: other keys go on (P9)."""

from collections.abc import Sequence
from datetime import timedelta
from typing import Any, cast

import pytest

from tests.contract.test_unwritten_dead_letters import NoTransactions, StuckPartition, Through, at_once, reject_bad
from tests.support.consumers import Stage
from tests.support.lab_memory import MemoryLab
from tests.support.waiting import pause, wait_until
from txlayer.config import ConsumerConfig
from txlayer.core.dead_letters import ReplayKind, ReplayRecord, encode_replay
from txlayer.core.retry import RetryPolicy
from txlayer.errors import BrokerUnavailableError


class EveryPartition:
    """Equal to each place of a topic."""

    def __init__(self, topic: str) -> None:
        self._topic = topic

    def __eq__(self, other: object) -> bool:
        return isinstance(other, tuple) and other[0] == self._topic

    def __hash__(self) -> int:
        return hash(self._topic)


class Unreadable(Through):
    """A cluster in which no partition of a topic has a leader: asking for one takes a second."""

    topic = ""

    def start_offsets(self, places: Sequence[tuple[str, int]]) -> dict[tuple[str, int], int]:
        if any(topic == self.topic for topic, _ in places):
            pause(1.0)
            raise BrokerUnavailableError("no leader", waited_ms=1000)
        return dict(self._inner.start_offsets(places))


@pytest.mark.promise("P9")
@pytest.mark.parametrize("partitions", [2, pytest.param(8, marks=pytest.mark.nightly)])
@pytest.mark.parametrize("is_topic", [True, False], ids=["no partition takes records", "no transaction coordinator"])
def test_other_keys_go_on_while_no_dead_letter_can_be_written_anywhere(
    monkeypatch: pytest.MonkeyPatch, partitions: int, *, is_topic: bool
) -> None:
    """As a dead-letter topic, or `__transaction_state`, below its `min.insync.replicas`. All times are a fortieth of the defaults."""
    at_once(monkeypatch, pause_max_ms=1_500)
    stage = Stage(MemoryLab(), partitions=partitions)
    config = ConsumerConfig(bootstrap_servers=stage.lab.servers, namespace=stage.namespace)
    inner, place = stage.lab.connect_consumer(config), cast("tuple[str, int]", EveryPartition(stage.letters))
    cluster = StuckPartition(inner, place) if is_topic else NoTransactions(inner)
    timeout = timedelta(seconds=0.25)
    try:
        for partition in range(partitions):
            stage.write(b"bad", key=b"bad", partition=partition)
        with stage.consumer(
            reject_bad,
            connect=lambda _: cluster,
            retry=RetryPolicy(attempt_count_max=1),
            kafka_transaction_timeout=timeout,
        ) as consumer:
            wait_until(lambda: consumer.stats().replaced_count >= 6, within=90, what="some tries")
            stage.write(b"good", key=b"good", partition=0)
            try:
                wait_until(lambda: stage.journal.values(b"good"), within=5, what="the other key")
            finally:
                cluster.heal()
    finally:
        stage.close()


@pytest.mark.promise("P9")
def test_leases_are_kept_while_no_partition_of_the_dead_letter_topic_can_be_read() -> None:
    """A try takes a second here (16 s in Kafka), a lease 9.5 s (57 s): with four partitions in Kafka, all of them are lost."""
    partitions = 12
    stage = Stage(MemoryLab(), partitions=partitions)
    config = ConsumerConfig(bootstrap_servers=stage.lab.servers, namespace=stage.namespace)
    cluster = Unreadable(stage.lab.connect_consumer(config))
    cluster.topic = stage.letters
    request = encode_replay(ReplayRecord(ReplayKind.REPLAY, "r", 0, text="zoe: mended"))
    times: dict[str, Any] = {"lease_expiry": timedelta(seconds=10), "lease_renewal": timedelta(seconds=3)}
    try:
        with stage.consumer(connect=lambda _: cluster, **times) as consumer:
            stage.write(b"first", key=b"a")
            stage.journal.wait_for(1)
            for partition in range(partitions):
                stage.lab.write(stage.requests, request, key=b"k", partition=partition)
            pause(0.5)
            stage.write(b"second", key=b"b")
            wait_until(
                lambda: len(stage.journal.seen) == 2 or consumer.stats().lost_lease_count, within=60, what="the second"
            )
            pause(5.0)
            assert 0 == consumer.stats().lost_lease_count
    finally:
        cluster.topic = ""
        stage.close()
