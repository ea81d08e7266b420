"""What a producer, a coordinator and a consumer use of real Kafka: the three connections ports."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection
from typing import Any, Protocol

from confluent_kafka.serialization import MessageField, SerializationContext

from txlayer.adapters.errors import RESPONDER_ADVICE
from txlayer.adapters.kafka.admin import ANSWER_TIMEOUT_MS, KafkaAdmin
from txlayer.adapters.kafka.client import PlainReader
from txlayer.adapters.kafka.group import KafkaGroupReader, KafkaStoringGroupReader
from txlayer.adapters.kafka.writers import KafkaHalfWriter, KafkaTransactionalWriter
from txlayer.adapters.ports import AdminAnswers, TopicLimits
from txlayer.adapters.readers import LogHistoryReader
from txlayer.config import ClientConfig, ConsumerConfig, CoordinatorConfig, ProducerConfig, milliseconds
from txlayer.errors import BrokerUnavailableError

logger = logging.getLogger("txlayer.kafka")

ANSWER_MS = 3_000
"""How long one question waits: a coordinator asks again, and meanwhile it must serve its group."""


def wait_for_answer(ask: Callable[[], object], *, timeout_s: float, bootstrap_servers: str) -> None:
    """Return when a broker answers what `ask` asks; says every few seconds that it is still waiting.

    Raises:
        BrokerUnavailableError: none answered within `timeout_s`.
        NotAuthorisedError: a broker refused the credentials.
    """
    started = time.monotonic()
    while True:
        try:
            ask()
        except BrokerUnavailableError as exc:
            waited_s = time.monotonic() - started
            if waited_s >= timeout_s:
                raise BrokerUnavailableError(
                    f"{exc.detail}; is the address right and the broker up?",
                    bootstrap_servers=bootstrap_servers,
                    waited_ms=int(waited_s * 1000),
                ) from exc
            logger.warning(
                "broker.unreachable",
                extra={
                    "bootstrap_servers": bootstrap_servers,
                    "reason": exc.detail,
                    "waited_s": round(waited_s, 1),
                    "gives_up_after_s": timeout_s,
                },
            )
        else:
            return


class KafkaCoordinatorConnections(AdminAnswers):
    """Makes clients with the coordinator's settings; one admin client answers all questions. One thread uses it."""

    def __init__(self, config: CoordinatorConfig, *, is_one_shot: bool = False) -> None:
        """With `is_one_shot` a question waits as long as a command's: it serves no group and asks only once."""
        self._config = config
        timeout_ms = ANSWER_TIMEOUT_MS if is_one_shot else ANSWER_MS
        super().__init__(KafkaAdmin(config, timeout_ms=timeout_ms))
        self._watch = KafkaAdmin(config, timeout_ms=timeout_ms)  # asked from other threads
        self._watching = threading.Lock()

    def wait_until_reachable(self, *, timeout_s: float) -> None:
        """Return when a broker answers; says every few seconds that it is still waiting.

        Raises:
            BrokerUnavailableError: none answered within `timeout_s`.
            NotAuthorisedError: a broker refused the credentials.
        """
        wait_for_answer(
            lambda: self._admin.partition_count(self._config.topics.half),
            timeout_s=timeout_s,
            bootstrap_servers=self._config.bootstrap_servers,
        )

    def make_writer(self, transactional_id: str, *, batch_bytes_max: int) -> KafkaTransactionalWriter:
        """A writer, not initialised yet."""
        return KafkaTransactionalWriter(
            self._config,
            transactional_id=transactional_id,
            timeout_ms=milliseconds(self._config.kafka_transaction_timeout),
            batch_bytes_max=batch_bytes_max,
            compression=self._config.compression,
        )

    def make_reader(self, isolation: str) -> PlainReader:
        """A reader that assigns itself."""
        return PlainReader(self._config, isolation=isolation)

    def make_group_reader(self) -> KafkaGroupReader:
        """A member of the coordinator group, not started yet."""
        return KafkaGroupReader(
            self._config,
            group=self._config.topics.coordinator_group,
            session_timeout_ms=milliseconds(self._config.session_timeout),
            tells_end=True,
        )

    def groups_with_members(self, groups: Collection[str]) -> frozenset[str]:
        """Those consumer groups that have a member. Another thread than the coordinator's may ask.

        Raises:
            BrokerUnavailableError, NotAuthorisedError: no answer.
        """
        with self._watching:
            return self._watch.groups_with_members(groups)

    def topic_limits_aside(self, topic: str) -> TopicLimits | None:
        """`topic_limits` for another thread than the coordinator's."""
        with self._watching:
            return self._watch.topic_limits(topic)

    def close(self) -> None:
        """Give the admin clients back."""
        super().close()
        self._watch.close()


FETCH_WAIT_MS = 50
"""A record ends the wait; a partition that is read again waits for at most so long behind an idle one. Each consumer reads
the requests to replay and the lock log, idle most of the time: at 10 ms that was 100 fetches a second for nothing."""


class KafkaConsumerConnections(AdminAnswers):
    """Makes clients with a consumer's settings; one admin client answers all questions. One thread uses it."""

    def __init__(self, config: ConsumerConfig) -> None:
        super().__init__(KafkaAdmin(config, timeout_ms=ANSWER_MS))
        self._config = config

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
        return KafkaStoringGroupReader(
            self._config,
            group=group,
            session_timeout_ms=milliseconds(self._config.session_timeout),
            fetch_wait_ms=FETCH_WAIT_MS,
            instance_id=self._config.instance_id,
        )

    def make_writer(self, transactional_id: str, *, batch_bytes_max: int) -> KafkaTransactionalWriter:
        """A writer, not initialised yet."""
        return KafkaTransactionalWriter(
            self._config,
            transactional_id=transactional_id,
            timeout_ms=milliseconds(self._config.kafka_transaction_timeout),
            batch_bytes_max=batch_bytes_max,
        )

    def make_log_writer(self, *, batch_bytes_max: int) -> KafkaHalfWriter:
        """An idempotent writer of independent records."""
        return KafkaHalfWriter(
            self._config, batch_bytes_max=batch_bytes_max, message_timeout_ms=milliseconds(self._config.store_timeout)
        )

    def make_reader(self, isolation: str) -> PlainReader:
        """A reader that assigns itself."""
        return PlainReader(self._config, isolation=isolation, fetch_wait_ms=FETCH_WAIT_MS)


class KafkaHistoryReader(LogHistoryReader):
    """Each call makes clients of its own, so any thread may call it."""

    def __init__(self, config: ClientConfig) -> None:
        super().__init__(config, make_admin=lambda: KafkaAdmin(config), make_reader=lambda: PlainReader(config))


CHECK_FETCH_WAIT_MS = 500
"""A question ends the wait; an idle responder should not ask a hundred times a second."""

QUESTION_TIMEOUT_MS = 5_000
"""A client that learned of a controller which has died since asks that one for as long as it may, beside brokers that
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
        # A client of its own: the writing client's metadata requests may create a mistyped topic on clusters that allow it.
        self._admin = make_admin(config, timeout_ms=timeout_ms)
        self._lock = threading.Lock()
        self._is_closed = False

    def topic_limits(self, topic: str) -> TopicLimits | None:
        """What the broker says of a topic now; None: there is no such topic."""
        began, patience_s = self._clock(), self._config.start_timeout.total_seconds()
        while True:
            try:
                # For one question at a time, so that `close` does not wait for all of them.
                with self._lock:
                    return self._admin.topic_limits(topic)
            except BrokerUnavailableError as exc:
                waited_s = self._clock() - began
                if self._is_closed or waited_s + _PAUSE_S >= patience_s:
                    raise BrokerUnavailableError(
                        exc.detail, bootstrap_servers=exc.bootstrap_servers, waited_ms=int(waited_s * 1000)
                    ) from exc
            time.sleep(_PAUSE_S)

    def make_half_writer(self, *, batch_bytes_max: int) -> KafkaHalfWriter:
        """A writer of half and op records."""
        return KafkaHalfWriter(
            self._config, batch_bytes_max=batch_bytes_max, message_timeout_ms=milliseconds(self._config.prepare_timeout)
        )

    def make_check_member(self, producer_group: str) -> KafkaGroupReader:
        """A member of the producer group's check group, not started yet."""
        return KafkaGroupReader(
            self._config,
            group=self._config.topics.check_group(producer_group),
            session_timeout_ms=milliseconds(self._config.check_session_timeout),
            fetch_wait_ms=CHECK_FETCH_WAIT_MS,
            reader="the responder",
            advice=RESPONDER_ADVICE,
        )

    def serialize(
        self, serializer: Any, value: Any, *, topic: str, headers: list[tuple[str, bytes | None]]
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
