"""What `txlayer dlq` and `txlayer consumer` ask of a cluster: a group's dead letters opened, writers made."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from txlayer.adapters.connect import connect_producer
from txlayer.adapters.kafka.admin import KafkaAdmin
from txlayer.adapters.kafka.client import PlainReader
from txlayer.adapters.kafka.writers import KafkaTransactionalWriter
from txlayer.config import ClientConfig, ProducerConfig
from txlayer.consumer.dead_letter_log import DeadLetterLog, topics_of
from txlayer.consumer.requests import RequestWriter
from txlayer.errors import TopicMismatchError

KAFKA_TRANSACTION_MS = 10_000
"""The broker ends a command's Kafka transaction that hangs; readers of its target wait for so long at most."""


@contextmanager
def open_logs(
    config: ClientConfig, group: str, topics: Sequence[str] = ()
) -> Iterator[dict[str, DeadLetterLog]]:
    """{topic: its dead letters}, of these topics, else of all that the group has dead letters of.

    Raises:
        TopicMismatchError: a topic that was named has no dead-letter topic, or the group has none at all.
    """
    with KafkaAdmin(config) as admin:
        found = list(dict.fromkeys(topics)) or topics_of(admin, group)
        if not found:
            raise TopicMismatchError(
                f"group {group} has no dead-letter topic; `txlayer topics apply --group {group} --topic TOPIC` creates "
                "that of a topic",
                topic=f"{group}.TOPIC.dlq", found="none",
            )  # fmt: skip
        logs = {
            topic: DeadLetterLog(
                admin, group=group, topic=topic, make_reader=lambda: PlainReader(config)
            )
            for topic in found
        }
        for log in logs.values():
            log.follow()
        yield logs


@contextmanager
def request_writer(config: ProducerConfig, group: str) -> Iterator[RequestWriter]:
    """What writes requests to a group's replay topics."""
    connections = connect_producer(config)
    try:
        yield RequestWriter(
            lambda batch_bytes: connections.make_half_writer(batch_bytes_max=batch_bytes), group=group
        )  # fmt: skip
    finally:
        connections.close()


class Writers:
    """Makes transactional writers."""

    def __init__(self, config: ClientConfig) -> None:
        self._config = config

    def make_writer(
        self, transactional_id: str, *, batch_bytes_max: int
    ) -> KafkaTransactionalWriter:
        """A writer, not initialised yet."""
        return KafkaTransactionalWriter(
            self._config,
            transactional_id=transactional_id,
            timeout_ms=KAFKA_TRANSACTION_MS,
            batch_bytes_max=batch_bytes_max,
        )
