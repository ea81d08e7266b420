"""What pages take for granted before their commands are typed: dead letters, and transactions that wait for a person."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta

from confluent_kafka import Producer

from tests.support.doubt import read_doubt
from tests.support.waiting import wait_until
from txlayer import UNKNOWN, CheckRequest, OrderedConsumer, Resolution, TransactionalProducer
from txlayer.adapters.kafka.admin import KafkaAdmin
from txlayer.config import ClientConfig, CoordinatorConfig, SystemTopics
from txlayer.core.dead_letters import DLQ_HEADER, DeadLetter, DeadLetterReason, dead_letter_topic, encode_dead_letter
from txlayer.core.messages import Origin
from txlayer.core.topics import AlterSetting
from txlayer.testing.stage import RunningCoordinator

MINUTE_MS = 60_000


@contextmanager
def writers_times(servers: str, topic: str) -> Iterator[None]:
    """Until its end, a topic keeps the times that writers give their records."""
    setting = "message.timestamp.type"
    with KafkaAdmin(ClientConfig(bootstrap_servers=servers)) as admin:
        admin.alter_settings([AlterSetting(topic, setting, None, "CreateTime", why="the test")])
        yield
        admin.alter_settings([AlterSetting(topic, setting, None, "LogAppendTime", why="the test")])


def plant_dead_letters(servers: str, *, group: str, topic: str, partition: int, count: int, age_ms: int) -> None:
    """Dead letters of customer-7, one after the other, as a consumer writes them; the first stands at the next offset."""
    producer = Producer({"bootstrap.servers": servers, "acks": "all", "log_level": 0})
    now_ms = int(time.time() * 1000)
    at_ms = now_ms - age_ms
    letters = dead_letter_topic(group, topic)
    for number in range(count):
        letter = DeadLetter(
            DeadLetterReason.ATTEMPTS_EXHAUSTED,
            Origin(topic, partition, number),
            at_ms - 5_000,
            16,
            at_ms - 4_000,
            at_ms,
            "ValueError",
            "no such customer",
            group,
        )
        producer.produce(
            letters,
            b"an order",
            b"customer-7",
            partition,
            headers=[(DLQ_HEADER, encode_dead_letter(letter))],
            timestamp=at_ms,
        )
    assert not producer.flush(30)


@contextmanager
def mended_consumer(servers: str, *, group: str, topic: str) -> Iterator[list[bytes]]:
    """A consumer of the group whose handler succeeds; the values that it was given."""
    handled: list[bytes] = []
    consumer = OrderedConsumer(bootstrap_servers=servers, group=group, topics=[topic], start_at="earliest")
    consumer.handler(lambda message, _context: handled.append(message.value))
    with consumer:
        yield handled


@contextmanager
def waiting_for_a_person(servers: str, *, namespace: str, group: str, topic: str) -> Iterator[Parking]:
    """A namespace at work whose producer group knows nothing of its transactions: they are parked at once."""
    config = CoordinatorConfig(
        bootstrap_servers=servers,
        namespace=namespace,
        session_timeout=timedelta(seconds=3),
        check_immunity=timedelta(milliseconds=200),
        check_max=1,
    )

    def check(_request: CheckRequest) -> Resolution:
        return UNKNOWN

    with (
        RunningCoordinator(config),
        TransactionalProducer(bootstrap_servers=servers, namespace=namespace, group=group, check=check) as producer,
    ):
        yield Parking(producer, servers, topic, SystemTopics(namespace).doubt)


class Parking:
    """Makes transactions of which nobody knows what became of their local transaction."""

    def __init__(self, producer: TransactionalProducer, servers: str, topic: str, doubt: str) -> None:
        self._producer = producer
        self._servers = servers
        self._topic = topic
        self._doubt = doubt

    def park(self, txn_ids: Sequence[str]) -> None:
        """Prepare them, say nothing, and wait until they are parked."""
        for txn_id in txn_ids:
            with self._producer.transaction(txn_id) as tx:
                tx.send(self._topic, key=txn_id, value="an order")
                tx.prepare()
                tx.unknown()

        def are_parked() -> bool:
            shelf = read_doubt(self._servers, self._doubt)
            parked = {s.key.split("/")[0] for s in shelf.summaries.values() if s.state == "parked"}
            return set(txn_ids) <= parked

        wait_until(are_parked, within=60, what=f"{txn_ids} parked")
