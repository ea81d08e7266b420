"""The `ProducerConnections` of real Kafka."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any, Protocol

from confluent_kafka import KafkaException
from confluent_kafka.serialization import MessageField, SerializationContext

from txlayer.adapters.kafka.admin import KafkaAdmin
from txlayer.adapters.kafka.errors import translate
from txlayer.adapters.kafka.group import KafkaGroupReader
from txlayer.adapters.kafka.half_writer import KafkaHalfWriter
from txlayer.adapters.kafka.history import KafkaHistoryReader
from txlayer.adapters.ports import TopicLimits
from txlayer.adapters.translation import RESPONDER_ADVICE
from txlayer.config import ProducerConfig, milliseconds
from txlayer.errors import BrokerUnavailableError

CHECK_FETCH_WAIT_MS = 500
"""A question ends the wait; an idle responder should not ask a hundred times a second."""

QUESTION_TIMEOUT_MS = 5_000
"""A client that was told of a controller which has died since asks that one for as long as it may, beside brokers that
live (measured: docs/explanation/kafka.md). After this it is given up, and a new one asks again."""

_PAUSE_S = 0.1


class AsksOfTopics(Protocol):
    """What is used of `KafkaAdmin`, whose next question after a failure is a new client's."""

    def topic_limits(self, topic: str) -> TopicLimits | None:
        """`ProducerConnections.topic_limits`."""
        ...

    def close(self) -> None:
        """Give the client back."""
        ...


class KafkaProducerConnections:
    """Makes clients with a producer's settings; any thread may use it."""

    def __init__(
        self,
        config: ProducerConfig,
        *,
        make_admin: Callable[..., AsksOfTopics] = KafkaAdmin,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._config = config
        self._clock = clock
        timeout_ms = min(milliseconds(config.start_timeout), QUESTION_TIMEOUT_MS)
        # Never the writing client: its metadata requests may create a mistyped topic on clusters that allow it.
        self._admin = make_admin(config, timeout_ms=timeout_ms)
        self._lock = threading.Lock()
        self._is_closed = False

    def topic_limits(self, topic: str) -> TopicLimits | None:
        """What the broker says of a topic now; None: there is no such topic."""
        began, patience_s = self._clock(), self._config.start_timeout.total_seconds()
        while True:
            try:
                # For one question at a time: whoever closes does not wait for all of them.
                with self._lock:
                    return self._admin.topic_limits(topic)
            except BrokerUnavailableError as exc:
                waited_s = self._clock() - began
                if self._is_closed or waited_s + _PAUSE_S >= patience_s:
                    raise BrokerUnavailableError(
                        exc.detail,
                        bootstrap_servers=exc.bootstrap_servers,
                        waited_ms=int(waited_s * 1000),
                    ) from exc
            time.sleep(_PAUSE_S)

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
                reader="the responder",
                advice=RESPONDER_ADVICE,
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
        self._is_closed = True
        with self._lock:
            self._admin.close()
