"""What producers, coordinators and consumers ask of a cluster, over the clients of real Kafka or of a cluster in memory.

Services take the `connect` functions as arguments, so that tests and notebooks can use another log. The Kafka client is
imported on the first call.
"""

import time
from collections.abc import Callable, Collection
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

from txlayer.adapters.ports import (
    Administration,
    GroupReader,
    IdempotentWriter,
    LogReader,
    StoringGroupReader,
    TopicLimits,
    TopicPartition,
    TransactionalWriter,
)
from txlayer.adapters.readers import LOST_TO_RESPONDER, LogHistoryReader
from txlayer.adapters.telemetry import Log
from txlayer.config import ClientConfig, ConsumerConfig, CoordinatorConfig, ProducerConfig, milliseconds
from txlayer.errors import BrokerUnavailableError

logger = Log("txlayer.kafka")

ANSWER_MS = 3_000  # how long one question waits: a service asks again, and meanwhile it must serve its group
ANSWER_TIMEOUT_MS = 10_000  # how long one question of a command waits, connecting included: a person waits for it
QUESTION_TIMEOUT_MS = 5_000
"""How long a producer's question waits. A client that learned of a controller which has died since asks that one for as long
as it may, beside brokers that live (measured: docs/explanation/kafka.md). After this it is given up, and a new one asks again."""

FETCH_WAIT_MS = 50
"""A record ends the wait; a partition that is read again waits for at most so long behind an idle one. Each consumer reads
the requests to replay and the lock log, idle most of the time: at 10 ms that was 100 fetches a second for nothing."""
LINGER_MS = 0.3
"""How long a half writer waits for further records of a partition before it sends the first: requests cost the broker more than
records do. 32 threads that wait for each record: 13,200/s, and 11,300/s with 1 ms."""
LINGER_OF_TASKS_MS = 1.0  # the same for asyncio: 1,000 tasks make 33,700/s, and 29,600/s with 0.3 ms
OPERATOR_WRITE_MS = 30_000  # how long a record that an operator writes may wait for its acknowledgement
OPERATOR_TRANSACTION_MS = 10_000
"""Time-out of an operator's Kafka transaction, as of a consumer's: readers of its partitions wait for so long."""
CHECK_FETCH_WAIT_MS = 500  # a question ends the wait; an idle responder should not ask a hundred times a second


class SharedQuestions(Protocol):
    """An administrator's view for any thread."""

    def topic_limits(self, topic: str) -> TopicLimits | None: ...
    def groups_with_members(self, groups: Collection[str]) -> frozenset[str]: ...
    def end_offsets(
        self, partitions: Collection[TopicPartition], *, is_committed: bool
    ) -> dict[TopicPartition, int]: ...
    def close(self) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Clients:
    """What makes the clients of one cluster; Kafka's and those in memory take the same arguments, by keyword."""

    config: ClientConfig
    admin: Callable[..., Administration]
    shared_questions: Callable[..., SharedQuestions]
    reader: Callable[..., LogReader]
    writer: Callable[..., TransactionalWriter]
    idempotent_writer: Callable[..., IdempotentWriter]
    group_reader: Callable[..., GroupReader]
    storing_group_reader: Callable[..., StoringGroupReader]
    serialize: Callable[..., bytes | None]
    clock: Callable[[], float] = time.monotonic
    wall_clock: Callable[[], float] = time.time

    def history(self) -> LogHistoryReader:
        """The reader of transaction histories; it makes clients for each call, so any thread may call it."""
        return LogHistoryReader(self)

    def operator_writer(self, batch_bytes_max: int) -> IdempotentWriter:
        """A writer of an operator's records, whose batches have at most so many bytes."""
        return self.idempotent_writer(
            batch_bytes_max=batch_bytes_max, message_timeout_ms=OPERATOR_WRITE_MS, linger_ms=LINGER_MS
        )

    def make_writer(self, transactional_id: str, *, batch_bytes_max: int) -> TransactionalWriter:
        """A writer of an operator's Kafka transactions, not initialised yet."""
        return self.writer(
            transactional_id=transactional_id,
            timeout_ms=OPERATOR_TRANSACTION_MS,
            batch_bytes_max=batch_bytes_max,
            compression="none",
        )


class ProducerConnections:
    """The calls to a cluster that a producer needs. Thread-safe."""

    def __init__(self, clients: Clients, config: ProducerConfig) -> None:
        self._clients = clients
        self._config = config
        # A client of its own: the writing client's metadata requests may create a mistyped topic on clusters that allow it.
        patience_ms = milliseconds(config.start_timeout)
        self._questions = clients.shared_questions(
            timeout_ms=min(patience_ms, QUESTION_TIMEOUT_MS), patience_ms=patience_ms
        )
        self.topic_limits = self._questions.topic_limits  # it asks for as long as the start time-out
        self.serialize = clients.serialize  # the serializer may append to `headers`; its exception propagates unchanged
        self.history = clients.history

    def make_half_writer(self, *, batch_bytes_max: int, linger_ms: float = LINGER_MS) -> IdempotentWriter:
        """A writer; one batch of its records is smaller than `batch_bytes_max`, and begins `linger_ms` after its first record."""
        return self._clients.idempotent_writer(
            batch_bytes_max=batch_bytes_max,
            message_timeout_ms=milliseconds(self._config.prepare_timeout),
            linger_ms=linger_ms,
        )

    def make_check_member(self, producer_group: str) -> GroupReader:
        """A member of the producer group's check group, not started yet; it receives the group's check-backs."""
        return self._clients.group_reader(
            group=self._config.topics.check_group(producer_group),
            session_timeout_ms=milliseconds(self._config.check_session_timeout),
            fetch_wait_ms=CHECK_FETCH_WAIT_MS,
            lost_to=LOST_TO_RESPONDER,
        )

    def close(self) -> None:
        self._questions.close()


class _Connected:
    """What coordinators and consumers have in common; one administrator's view answers all questions, as in `Administration`.

    Those of `_aside` are for another thread than the service's own.
    """

    _compression = "none"

    def __init__(
        self,
        clients: Clients,
        config: CoordinatorConfig | ConsumerConfig,
        *,
        timeout_ms: int = ANSWER_MS,
        **reading: Any,
    ) -> None:
        self.config = config
        self._clients = clients
        self._transaction_timeout_ms = milliseconds(config.kafka_transaction_timeout)
        self._reading = reading
        self._admin = admin = clients.admin(timeout_ms=timeout_ms)
        self.stored_offsets = admin.stored_offsets
        self.start_offsets = admin.start_offsets
        self.end_offsets = admin.end_offsets
        self.offsets_at = admin.offsets_at
        self.topic_limits = admin.topic_limits
        self.group = admin.group
        self._aside = clients.shared_questions(timeout_ms=timeout_ms)
        self.topic_limits_in_background = self._aside.topic_limits

    def wait_until_reachable(self, topic: str, *, timeout_s: float) -> None:
        """Return when a broker answers a question about `topic`; log every few seconds that none does.

        Raises:
            BrokerUnavailableError, NotAuthorisedError: none did within `timeout_s`, or it refused the credentials.
        """
        servers, clock = self._clients.config.bootstrap_servers, self._clients.clock
        started = clock()
        while True:
            try:
                self._admin.partition_count(topic)
            except BrokerUnavailableError as exc:
                waited_s = clock() - started
                if waited_s >= timeout_s:
                    raise BrokerUnavailableError(
                        f"{exc.detail}; is the address right and the broker up?",
                        bootstrap_servers=servers,
                        waited_ms=int(waited_s * 1000),
                    ) from exc
                waiting = {"waited_s": round(waited_s, 1), "gives_up_after_s": timeout_s}
                logger.warning(
                    "broker.unreachable", extra={"bootstrap_servers": servers, "reason": exc.detail, **waiting}
                )
            else:
                return

    def make_writer(self, transactional_id: str, *, batch_bytes_max: int) -> TransactionalWriter:
        """A writer, not initialised yet. The broker refuses any batch larger than the topic's largest message."""
        return self._clients.writer(
            transactional_id=transactional_id,
            timeout_ms=self._transaction_timeout_ms,
            batch_bytes_max=batch_bytes_max,
            compression=self._compression,
        )

    def make_reader(self, isolation: str, *, is_sparing: bool = False) -> LogReader:
        """A reader that assigns partitions itself; `read_committed` or `read_uncommitted`. `is_sparing`: it fetches little at once."""
        reading = {**self._reading, "is_sparing": True} if is_sparing else self._reading
        return self._clients.reader(isolation=isolation, **reading)

    def close(self) -> None:
        self._admin.close()
        self._aside.close()


class CoordinatorConnections(_Connected):
    """The calls to a cluster that a coordinator needs."""

    config: CoordinatorConfig

    def __init__(
        self, clients: Clients, config: CoordinatorConfig, *, timeout_ms: int = ANSWER_MS, is_sparing: bool = False
    ) -> None:
        """With `is_sparing`, readers take more requests and less memory."""
        super().__init__(clients, config, timeout_ms=timeout_ms, **({"is_sparing": True} if is_sparing else {}))
        self._compression = config.compression
        self.groups_with_members = self._aside.groups_with_members
        # A client of its own, without a connection until scheduled messages are due: they wait for no other question.
        self._ends = clients.shared_questions(timeout_ms=timeout_ms)
        self.end_offsets_in_background = self._ends.end_offsets
        self.operator_writer = clients.operator_writer
        self.history = clients.history

    def close(self) -> None:
        super().close()
        self._ends.close()

    def make_group_reader(self) -> GroupReader:
        return self._clients.group_reader(
            group=self.config.topics.coordinator_group,
            session_timeout_ms=milliseconds(self.config.session_timeout),
            tells_end=True,
        )


class ConsumerConnections(_Connected):
    """The calls to a cluster that a consumer needs. Not thread-safe."""

    config: ConsumerConfig

    def __init__(self, clients: Clients, config: ConsumerConfig) -> None:
        super().__init__(clients, config, fetch_wait_ms=FETCH_WAIT_MS)

    def make_group_reader(self, group: str) -> StoringGroupReader:
        config = self.config
        # At a rebalance handlers end, their results are stored, and dead letters are written.
        busy = 2 * config.revoke_timeout + config.store_timeout + config.kafka_transaction_timeout
        return self._clients.storing_group_reader(
            group=group,
            session_timeout_ms=milliseconds(config.session_timeout),
            busy_ms=milliseconds(busy) + 2 * ANSWER_MS,
            fetch_wait_ms=FETCH_WAIT_MS,
            instance_id=config.instance_id,
        )

    def make_log_writer(self, *, batch_bytes_max: int) -> IdempotentWriter:
        """An idempotent writer of single records (locks, requests); the caller names their partition."""
        return self._clients.idempotent_writer(
            batch_bytes_max=batch_bytes_max,
            message_timeout_ms=milliseconds(self.config.store_timeout),
            linger_ms=LINGER_MS,
        )


ConnectProducer = Callable[[ProducerConfig], ProducerConnections]
ConnectCoordinator = Callable[[CoordinatorConfig], CoordinatorConnections]
ConnectConsumer = Callable[[ConsumerConfig], ConsumerConnections]


def kafka_clients(config: ClientConfig) -> Clients:
    """Clients of real Kafka with these settings; each connects at its first use."""
    from txlayer.adapters.kafka.admin import KafkaAdmin, SharedAdmin
    from txlayer.adapters.kafka.client import KafkaGroupReader, KafkaStoringGroupReader, PlainReader, serialize
    from txlayer.adapters.kafka.writers import KafkaIdempotentWriter, KafkaTransactionalWriter

    return Clients(
        config=config,
        admin=partial(KafkaAdmin, config),
        shared_questions=partial(SharedAdmin, config),
        reader=partial(PlainReader, config),
        writer=partial(KafkaTransactionalWriter, config),
        idempotent_writer=partial(KafkaIdempotentWriter, config),
        group_reader=partial(KafkaGroupReader, config),
        storing_group_reader=partial(KafkaStoringGroupReader, config),
        serialize=serialize,
    )


def connect_producer(config: ProducerConfig) -> ProducerConnections:
    """A producer's calls to a real Kafka; it connects at the first question."""
    return ProducerConnections(kafka_clients(config), config)


def connect_coordinator(config: CoordinatorConfig, *, is_one_shot: bool = False) -> CoordinatorConnections:
    """A coordinator's calls to a real Kafka; it connects at the first question.

    A coordinator repeats its questions, so each one waits for 3 s; with `is_one_shot` it waits as long as in a command.
    """
    timeout_ms = ANSWER_TIMEOUT_MS if is_one_shot else ANSWER_MS
    return CoordinatorConnections(kafka_clients(config), config, timeout_ms=timeout_ms)


def connect_consumer(config: ConsumerConfig) -> ConsumerConnections:
    """A consumer's calls to a real Kafka; it connects at the first question."""
    return ConsumerConnections(kafka_clients(config), config)
