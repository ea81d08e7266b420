"""Writers of real Kafka: the transactional one, and the idempotent one for half and op records.

The client sends EndTxn and TxnOffsetCommit again on its own, and a late one lands in a later Kafka transaction
(KAFKA-17754, seen on 4.3.0). `txlayer.runtime.kafka_transactions` says when a writer is replaced because of that.
"""

import contextlib
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from confluent_kafka import KafkaError, KafkaException, Producer
from confluent_kafka import TopicPartition as ClientPartition

from txlayer.adapters.errors import (
    GIVEN_UP_CODES,
    NOT_AUTHORISED_CODES,
    ClientError,
    TranslatedWriter,
    translate_fatal,
    translate_unwritten,
)
from txlayer.adapters.kafka.client import MESSAGE_BYTES_MAX, Deadline, base_settings, kafka_error, new_client
from txlayer.adapters.ports import StoredOffset, TopicPartition
from txlayer.adapters.telemetry import Log
from txlayer.config import ClientConfig
from txlayer.errors import BrokerUnavailableError, TxLayerError


class KafkaTransactionalWriter(TranslatedWriter):
    """The `TransactionalWriter` of real Kafka. One thread uses it."""

    def __init__(
        self,
        config: ClientConfig,
        *,
        transactional_id: str,
        timeout_ms: int,
        batch_bytes_max: int,
        compression: str = "none",
    ) -> None:
        super().__init__(
            transactional_id=transactional_id,
            batch_bytes_max=batch_bytes_max,
            bootstrap_servers=config.bootstrap_servers,
        )
        settings = {
            "compression.type": compression,
            **base_settings(config),
            "transactional.id": transactional_id,
            "transaction.timeout.ms": timeout_ms,
            # Equal, so that a slow answer is waited for and not asked for again.
            "socket.timeout.ms": timeout_ms,
            "message.timeout.ms": timeout_ms - 1000,
            "linger.ms": 0,
            # When no broker answers, the default forgets all of them, the transaction's coordinator too, and send_offsets
            # waits for it for ever (librdkafka #5511). A writer that fails is replaced: the next one begins at bootstrap.
            "metadata.recovery.strategy": "none",
            "allow.auto.create.topics": False,
            "partitioner": "murmur2_random",
            "queue.buffering.max.messages": 1_000_000,
            # The broker knows each topic's limit; the client's own of 1 MB would refuse what a topic allows.
            "message.max.bytes": MESSAGE_BYTES_MAX,
            "batch.size": batch_bytes_max,
        }
        self._producer = new_client(Producer, settings)
        self._deadline = Deadline("txlayer-send-offsets")
        self.produce: Callable[..., None] = self._producer.produce

    def initialise(self, *, timeout_s: float) -> None:
        with self._errors_as_ours():
            # Connect first: an init without a connection waits for the client's own timer of 500 ms in 5-40 % of tries.
            self._producer.list_topics(topic="__transaction_state", timeout=timeout_s)
            self._producer.init_transactions(timeout_s)

    def begin(self) -> None:
        with self._errors_as_ours():
            self._producer.begin_transaction()

    def flush(self, *, timeout_s: float) -> int:
        with self._errors_as_ours():
            return int(self._producer.flush(timeout_s))

    def poll(self) -> None:
        with self._errors_as_ours():
            self._producer.poll(0.01)

    def _cause(self, error: ClientError) -> ClientError:
        """Why the Kafka transaction cannot go on, where `error` says no more than that it cannot."""
        return (self._failed_for() or error) if error.code() in GIVEN_UP_CODES else error

    def _failed_for(self) -> KafkaError | None:
        try:
            self._producer.begin_transaction()  # refused while one is open, and with the reason when it failed
        except KafkaException as exc:
            cause = kafka_error(exc)
            return None if cause.code() == KafkaError._STATE else cause
        return None

    def send_offsets(self, offsets: Mapping[TopicPartition, StoredOffset], member: Any, *, timeout_s: float) -> None:
        partitions = [ClientPartition(t, p, o.offset, o.metadata) for (t, p), o in offsets.items()]

        def send() -> None:
            self._producer.send_offsets_to_transaction(partitions, member, timeout_s)

        with self._errors_as_ours():
            try:
                self._deadline.call(send, within_s=timeout_s)
            except TimeoutError as exc:
                raise BrokerUnavailableError(
                    f"send_offsets: {exc}", bootstrap_servers=self._bootstrap_servers, waited_ms=int(timeout_s * 1000)
                ) from exc

    def commit(self, *, timeout_s: float) -> None:
        with self._errors_as_ours(is_commit=True):
            self._producer.commit_transaction(timeout_s)

    def close(self) -> None:
        """End; TxLayerError: the client could not be closed, as after a fatal error, and is discarded all the same."""
        self._deadline.close()
        try:
            self._producer.purge()
            self._producer.close()
        except (KafkaException, RuntimeError, SystemError) as exc:
            raise TxLayerError(f"closing {self.transactional_id}: {exc}") from exc

    def _error_in(self, exc: Exception) -> ClientError | None:
        # A report that is handed over while the client's error is set can lose it: the SystemError then has no cause.
        return raised_by_client(exc) or (self._failed_for() if isinstance(exc, SystemError) else None)


def raised_by_client(exc: Exception) -> KafkaError | None:
    """The client's error in an exception of one of its calls; None: it is another exception."""
    # The client raises a fatal error out of `poll` and `flush`, whatever callbacks there are. When it still has a log
    # line or a report to hand over, that call runs into the error that is set, and Python says SystemError.
    found = exc.__cause__ if isinstance(exc, SystemError) else exc
    return kafka_error(found) if isinstance(found, KafkaException) else None


logger = Log("txlayer.kafka")

_PURGE_S = 1.0  # how long the reports of what was given up at the end may take


class KafkaIdempotentWriter:
    """One client, used by all threads of one producer; `poll` and `close` by one of them."""

    def __init__(
        self, config: ClientConfig, *, batch_bytes_max: int, message_timeout_ms: int, linger_ms: float
    ) -> None:
        self._failure: TxLayerError | None = None
        self._is_refusal_logged = False
        settings = {
            "linger.ms": linger_ms,
            **base_settings(config),
            "enable.idempotence": True,
            "acks": "all",
            "message.timeout.ms": message_timeout_ms,
            # Sizes are checked against the topics' own limits; a second limit in the client would only contradict them.
            "message.max.bytes": MESSAGE_BYTES_MAX,
            # The broker refuses a whole batch that is larger than the topic's largest message.
            "batch.size": batch_bytes_max,
            "error_cb": self._on_error,
        }
        self._producer = new_client(Producer, settings)
        # Bound once: these are called for every record and every round.
        self.produce: Callable[..., None] = self._producer.produce
        self.poll: Callable[[float], int] = partial(self._served, self._producer.poll)
        self.unreported_count: Callable[[], int] = self._producer.__len__

    def _served(self, call: Callable[[float], int], timeout_s: float) -> int:
        """What `poll` or `flush` returns; 0 if it raises that the client can write nothing any more, which `failure` says from then on."""
        try:
            return call(timeout_s)
        except (KafkaException, SystemError) as exc:
            error = raised_by_client(exc)
            if error is None or not error.fatal():
                raise
            self._failure = translate_fatal(error)
            return 0

    def error_of(self, error: Any, *, topic: str, txn_id: str) -> TxLayerError:
        if isinstance(error, Exception) and not isinstance(error, KafkaException):
            return TxLayerError(f"the client took no record for {topic}: {error}")  # it is closed, for example
        return translate_unwritten(kafka_error(error), topic=topic, txn_id=txn_id)

    def failure(self) -> TxLayerError | None:
        return self._failure

    def close(self, timeout_s: float) -> None:
        """Wait for what is queued for at most `timeout_s` seconds, report the rest as errors, and end."""
        deadline = time.monotonic() + timeout_s
        # In slices, because the client does not react to signals while it waits.
        while self._served(self._producer.flush, 0.1) and time.monotonic() < deadline:
            pass
        if len(self._producer):
            self._producer.purge()
            self._served(self._producer.flush, _PURGE_S)
        with contextlib.suppress(KafkaException):  # raised again after a fatal error, which was reported already
            self._producer.close()

    def _on_error(self, error: KafkaError) -> None:
        # Called from within `poll`; it must not raise. The client does not call it for fatal errors.
        if error.code() in NOT_AUTHORISED_CODES and not self._is_refusal_logged:
            # The client tries again for ever: the right may come back, and records time out meanwhile.
            self._is_refusal_logged = True
            logger.error("producer.refused", extra={"reason": error.str()})
