"""The `ProducerConnections` of real Kafka."""

from __future__ import annotations

import threading
from typing import Any

from confluent_kafka import KafkaException
from confluent_kafka.serialization import MessageField, SerializationContext

from txlayer.adapters.kafka.admin import KafkaAdmin
from txlayer.adapters.kafka.errors import translate
from txlayer.adapters.kafka.group import KafkaGroupReader
from txlayer.adapters.kafka.half_writer import KafkaHalfWriter
from txlayer.adapters.kafka.history import KafkaHistoryReader
from txlayer.adapters.ports import TopicLimits
from txlayer.config import ProducerConfig, milliseconds

CHECK_FETCH_WAIT_MS = 500
"""A question ends the wait; an idle responder should not ask a hundred times a second."""


class KafkaProducerConnections:
    """Makes clients with a producer's settings; any thread may use it."""

    def __init__(self, config: ProducerConfig) -> None:
        self._config = config
        # Never the writing client: its metadata requests may create a mistyped topic on clusters that allow it.
        self._admin = KafkaAdmin(config, timeout_ms=milliseconds(config.start_timeout))
        self._lock = threading.Lock()

    def topic_limits(self, topic: str) -> TopicLimits | None:
        """What the broker says of a topic now; None: there is no such topic."""
        with self._lock:
            return self._admin.topic_limits(topic)

    def make_half_writer(self, *, batch_bytes_max: int) -> KafkaHalfWriter:
        """A writer of half and op records."""
        try:
            return KafkaHalfWriter(
                self._config,
                batch_bytes_max=batch_bytes_max,
                message_timeout_ms=milliseconds(self._config.prepare_timeout),
            )
        except KafkaException as exc:  # a setting that the client refuses
            raise translate(exc) from exc

    def make_check_member(self, producer_group: str) -> KafkaGroupReader:
        """A member of the producer group's check group, not started yet."""
        try:
            return KafkaGroupReader(
                self._config,
                group=self._config.topics.check_group(producer_group),
                session_timeout_ms=milliseconds(self._config.check_session_timeout),
                fetch_wait_ms=CHECK_FETCH_WAIT_MS,
            )
        except KafkaException as exc:  # a setting that the client refuses
            raise translate(exc) from exc

    def serialize(
        self,
        serializer: Any,
        value: Any,
        *,
        topic: str,
        headers: list[tuple[str, bytes | None]],
    ) -> bytes | None:
        """A value as the user's serializer writes it."""
        # The list itself, not a copy: a serializer may append to it.
        context = SerializationContext(topic, MessageField.VALUE, headers)  # type: ignore[arg-type]  # invariant list
        written: bytes | None = serializer(value, context)
        return written

    def history(self) -> KafkaHistoryReader:
        """What reads a transaction's traces."""
        return KafkaHistoryReader(self._config)

    def close(self) -> None:
        """Give the admin client back."""
        with self._lock:
            self._admin.close()
