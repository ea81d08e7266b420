"""The `ConsumerConnections` of real Kafka."""

from __future__ import annotations

from collections.abc import Sequence

from confluent_kafka import KafkaException

from txlayer.adapters.kafka.admin import KafkaAdmin
from txlayer.adapters.kafka.client import PlainReader
from txlayer.adapters.kafka.consumer_group import KafkaStoringGroupReader
from txlayer.adapters.kafka.coordinator_clients import ANSWER_MS, wait_for_answer
from txlayer.adapters.kafka.errors import translate
from txlayer.adapters.kafka.half_writer import KafkaHalfWriter
from txlayer.adapters.kafka.writer import KafkaTransactionalWriter
from txlayer.adapters.ports import StoredOffset, TopicLimits, TopicPartition
from txlayer.config import ConsumerConfig, milliseconds

FETCH_WAIT_MS = 50
"""A record ends the wait; a partition that is read again waits for at most so long behind an idle one. Each consumer reads
the requests to replay and the lock log, idle most of the time: at 10 ms that was 100 fetches a second for nothing."""


class KafkaConsumerConnections:
    """Makes clients with a consumer's settings; one admin client answers all questions. One thread uses it."""

    def __init__(self, config: ConsumerConfig) -> None:
        self._config = config
        self._admin = KafkaAdmin(config, timeout_ms=ANSWER_MS)

    def wait_until_reachable(self, *, topic: str, timeout_s: float) -> None:
        """Return when a broker answers; says every few seconds that it is still waiting.

        Raises:
            BrokerUnavailableError: none answered within `timeout_s`.
            NotAuthorisedError: a broker refused the credentials.
        """
        wait_for_answer(
            lambda: self._admin.partition_count(topic),
            timeout_s=timeout_s,
            bootstrap_servers=self._config.bootstrap_servers,
        )

    def make_group_reader(self, group: str) -> KafkaStoringGroupReader:
        """A member of the consumer group, not started yet."""
        try:
            return KafkaStoringGroupReader(
                self._config,
                group=group,
                session_timeout_ms=milliseconds(self._config.session_timeout),
                fetch_wait_ms=FETCH_WAIT_MS,
                instance_id=self._config.instance_id,
            )
        except KafkaException as exc:  # a setting that the client refuses
            raise translate(exc) from exc

    def make_writer(
        self, transactional_id: str, *, batch_bytes_max: int
    ) -> KafkaTransactionalWriter:
        """A writer, not initialised yet."""
        return KafkaTransactionalWriter(
            self._config,
            transactional_id=transactional_id,
            timeout_ms=milliseconds(self._config.kafka_transaction_timeout),
            batch_bytes_max=batch_bytes_max,
        )

    def make_log_writer(self, *, batch_bytes_max: int) -> KafkaHalfWriter:
        """An idempotent writer of records that stand for themselves."""
        return KafkaHalfWriter(
            self._config,
            batch_bytes_max=batch_bytes_max,
            message_timeout_ms=milliseconds(self._config.store_timeout),
        )

    def make_reader(self, isolation: str) -> PlainReader:
        """A reader that assigns itself."""
        return PlainReader(self._config, isolation=isolation, fetch_wait_ms=FETCH_WAIT_MS)

    def stored_offsets(
        self, group: str, partitions: Sequence[TopicPartition], *, is_stable: bool
    ) -> dict[TopicPartition, StoredOffset | None]:
        """What a group stored; with `is_stable` the answer waits for pending transactional offsets.

        Raises:
            BrokerUnavailableError: no answer in time, for instance because offsets are pending; ask again.
        """
        return self._admin.stored_offsets(group, partitions, is_stable=is_stable)

    def start_offsets(self, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
        """The first offset that is still there, per partition."""
        return self._admin.start_offsets(partitions)

    def end_offsets(
        self, partitions: Sequence[TopicPartition], *, is_committed: bool = True
    ) -> dict[TopicPartition, int]:
        """The next offset per partition: the last stable one, or without `is_committed` the high watermark."""
        return self._admin.end_offsets(partitions, is_committed=is_committed)

    def offsets_at(
        self, partitions: Sequence[TopicPartition], *, at_ms: int
    ) -> dict[TopicPartition, int]:
        """The first offset whose record is of `at_ms` or later, else the next offset, per partition."""
        return self._admin.offsets_at(partitions, at_ms=at_ms)

    def topic_limits(self, topic: str) -> TopicLimits | None:
        """What the broker says of a topic now; None: there is no such topic.

        Raises:
            BrokerUnavailableError, NotAuthorisedError: it did not answer, or this principal may not ask.
        """
        return self._admin.topic_limits(topic)

    def close(self) -> None:
        """Give the admin client back."""
        self._admin.close()
