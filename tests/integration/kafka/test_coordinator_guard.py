"""The guard against requests that arrive again (P2, P5): with it nothing is early or torn, without it both are.

The hazard: EndTxn and TxnOffsetCommit name a producer and its epoch, not a Kafka transaction. When the connection of one
is lost the client sends it again, and the first may still arrive: in the middle of the producer's next Kafka transaction.
Here the proxy loses the answer and lets the request arrive once more when that next one is open: the test says when.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from datetime import timedelta
from typing import Any

import pytest
from confluent_kafka import Consumer, TopicPartition

from tests.support.broker import create_topic, unique_name
from tests.support.faultproxy import END_TXN, TXN_OFFSET_COMMIT, FaultProxy, Rules
from tests.support.kafka_cluster import KafkaCluster
from tests.support.logs import read_log
from tests.support.waiting import wait_until
from txlayer.adapters.connect import connect_coordinator
from txlayer.adapters.kafka.local import LocalConfig
from txlayer.adapters.kafka.local.server import free_ports
from txlayer.adapters.kafka.writers import KafkaTransactionalWriter
from txlayer.adapters.ports import StoredOffset
from txlayer.config import CoordinatorConfig
from txlayer.coordinator.publish import Publisher
from txlayer.coordinator.targets import Targets
from txlayer.core.ledger.batch import Batch
from txlayer.core.ledger.transaction import Transaction
from txlayer.errors import TxLayerError

pytestmark = pytest.mark.kafka

GUARDED = timedelta(milliseconds=70)
UNGUARDED = timedelta(hours=1)


class HalfRecord:
    """What a forward needs of a half record."""

    def __init__(self, value: bytes) -> None:
        self._value = value

    def key(self) -> bytes:
        return b"key"

    def value(self) -> bytes:
        return self._value

    def headers(self) -> list[tuple[str, bytes]]:
        return [("txl", b"ours")]

    def __len__(self) -> int:
        return len(self._value)


class Slow(KafkaTransactionalWriter):
    """A writer whose Kafka transaction can be held open at two places until a late request has arrived."""

    stage: Stage

    def slow_produce(self, topic: str, *rest: Any) -> None:
        if topic == self.stage.topics[1] and self.stage.before_second_topic is not None:
            self.flush(timeout_s=10)
            self.stage.before_second_topic()
        self._producer.produce(topic, *rest)

    def commit(self, *, timeout_s: float) -> None:
        if self.stage.before_commit is not None:
            self.stage.before_commit()
        super().commit(timeout_s=timeout_s)


class Stage:
    """A publisher behind the proxy, a group member, two real topics."""

    def __init__(self, broker: KafkaCluster, proxy: FaultProxy, *, recycle_after: timedelta) -> None:
        self.proxy = proxy
        self.servers = broker.bootstrap_servers
        self.topics = [create_topic(self.servers, unique_name("real")) for _ in range(2)]
        self.source = create_topic(self.servers, unique_name("half"))
        self.group = unique_name("group")
        self.config = CoordinatorConfig(
            bootstrap_servers=broker.proxied_servers(listener=1), recycle_after=recycle_after
        )
        self.connections = connect_coordinator(self.config)
        self.before_second_topic: Any = None
        self.before_commit: Any = None
        self.book = Targets(self.config, self.connections)
        while self.book.learn(self.topics) < set(self.topics):
            pass  # it asks for a tenth of a second at a time
        self.publisher = Publisher(
            self.config, name=unique_name("writer"), make_writer=self._make_writer, targets=self.book
        )
        self._consumer = Consumer(
            {"bootstrap.servers": self.servers, "group.id": self.group, "enable.auto.commit": False, "log_level": 0}
        )
        self._consumer.subscribe([self.source])
        wait_until(lambda: self._consumer.poll(0.1) or self._consumer.assignment(), within=30, what="joined")
        self.member = self._consumer.consumer_group_metadata()
        self.publisher.start()

    def close(self) -> None:
        self.publisher.close()
        self._consumer.close()

    def publish(self, number: int) -> None:
        """One Kafka transaction: a message for each topic, and offset `number`."""
        batch = Batch()
        for topic in self.topics:
            txn = Transaction(
                f"txn-{number}/00000000", "g", topic, number, 0, "0", (0, 0), HalfRecord(str(number).encode())
            )
            batch.forwards.append(txn)
        offsets = {(self.source, 0): StoredOffset(number, "")}
        self.publisher.publish([(0, batch)], offsets, self.member)

    def visible(self) -> list[list[bytes | None]]:
        """Per topic, what a `read_committed` reader sees."""
        read = read_log(self.servers, self.topics)
        return [[record.value for record in read[topic]] for topic in self.topics]

    def stored(self) -> int:
        """The group's offset."""
        (answer,) = self._consumer.committed([TopicPartition(self.source, 0)], timeout=10)
        return int(answer.offset)

    def end_what_is_open(self) -> None:
        """What recovery does first: initialise both ids anew."""
        for letter in "ab":
            writer = self.connections.make_writer(f"{self.publisher.name}.{letter}", batch_bytes_max=100_000)
            writer.initialise(timeout_s=10)
            writer.close()

    def let_the_late_one_come(self, api: int) -> None:
        """What the proxy held back arrives now."""
        self.proxy.release()
        wait_until(lambda: self.proxy.echoed[api], within=30, what="the late request")

    def _make_writer(self, transactional_id: str, *, batch_bytes_max: int) -> Slow:
        writer = Slow(
            self.config, transactional_id=transactional_id, timeout_ms=10_000, batch_bytes_max=batch_bytes_max
        )
        # A successor may be made only now, beside the other writer's work: all ask the stage where they wait.
        writer.stage = self
        writer.produce = writer.slow_produce
        return writer

    def slow_down(self, *, before_second_topic: Any = None, before_commit: Any = None) -> None:
        """From now on Kafka transactions wait there."""
        self.before_second_topic, self.before_commit = before_second_topic, before_commit


@pytest.fixture(scope="module")
def proxied(local_config: LocalConfig) -> Iterator[tuple[KafkaCluster, FaultProxy]]:
    """A broker of this file's own, and the proxy in front of it."""
    (port,) = free_ports(1)
    with (
        KafkaCluster(brokers=1, config=local_config, proxied_listeners=[[port]]) as broker,
        FaultProxy(broker.upstream(listener=1), port=port) as proxy,
    ):
        yield broker, proxy


def stage(proxied: tuple[KafkaCluster, FaultProxy], stack: ExitStack, *, recycle_after: timedelta) -> Stage:
    broker, proxy = proxied
    proxy.use()
    proxy.echoed.clear()
    made = Stage(broker, proxy, recycle_after=recycle_after)
    stack.callback(made.close)
    return made


def torn_by_a_late_end(made: Stage) -> list[list[bytes | None]]:
    """What is visible when the third Kafka transaction dies while a late EndTxn of the first one arrives."""
    made.proxy.use(Rules(actions={END_TXN: "cut_after+echo"}, action_count_max=1))
    made.publish(1)
    made.proxy.use()
    made.publish(2)

    def die() -> None:
        raise TxLayerError("the process dies here")

    made.slow_down(before_second_topic=lambda: made.let_the_late_one_come(END_TXN), before_commit=die)
    with pytest.raises(TxLayerError, match="dies here"):
        made.publish(3)
    made.end_what_is_open()
    assert 1 == made.proxy.echoed[END_TXN]
    return made.visible()


@pytest.mark.fault("broker: is frozen for seconds, and requests are sent again late")
@pytest.mark.promise("P5")
@pytest.mark.parametrize("is_guarded", [True, False])
def test_a_late_end_of_an_earlier_kafka_transaction_tears_a_later_one_without_the_guard_alone(
    proxied: tuple[KafkaCluster, FaultProxy], *, is_guarded: bool
) -> None:
    with ExitStack() as stack:
        made = stage(proxied, stack, recycle_after=GUARDED if is_guarded else UNGUARDED)

        visible = torn_by_a_late_end(made)

        # The third one died. Torn, half of it is visible; its offset is not stored, so it would be forwarded once more.
        torn = [] if is_guarded else [b"3"]
        assert [[b"1", b"2", *torn], [b"1", b"2"]] == visible
        assert 2 == made.stored()
        assert int(is_guarded) == made.publisher.stats.replaced_count


def stored_after_a_late_offset(made: Stage) -> int:
    """The stored offset when a late TxnOffsetCommit of the first one arrives right before the third one's end."""
    rule = Rules(actions={TXN_OFFSET_COMMIT: "cut_after+echo"}, action_count_max=1)
    made.proxy.use(rule)
    made.publish(1)
    made.proxy.use()
    made.publish(2)
    made.slow_down(before_commit=lambda: made.let_the_late_one_come(TXN_OFFSET_COMMIT))
    made.publish(3)
    every = [[b"1", b"2", b"3"], [b"1", b"2", b"3"]]
    # Markers are written behind the answer.
    wait_until(lambda: every == made.visible(), within=30, what="all are visible")
    return made.stored()


@pytest.mark.fault("broker: is frozen for seconds, and requests are sent again late")
@pytest.mark.promise("P2")
@pytest.mark.parametrize(("recycle_after", "stored"), [(GUARDED, 3), (UNGUARDED, 1)])
def test_late_offsets_of_an_earlier_kafka_transaction_replace_newer_ones_without_the_guard_alone(
    proxied: tuple[KafkaCluster, FaultProxy], recycle_after: timedelta, stored: int
) -> None:
    with ExitStack() as stack:
        made = stage(proxied, stack, recycle_after=recycle_after)

        # At 1 everything between would be forwarded a second time.
        assert stored == stored_after_a_late_offset(made)
