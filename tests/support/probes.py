"""What a principal may do on a cluster, found out by doing it with plain clients."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition

from tests.support.waiting import wait_until

PATIENCE_S = 15.0
_DENIED = {
    KafkaError.TOPIC_AUTHORIZATION_FAILED,
    KafkaError.GROUP_AUTHORIZATION_FAILED,
    KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    KafkaError.CLUSTER_AUTHORIZATION_FAILED,
}


class Prober:
    """Tries things as one principal; each answer is True when the broker let it."""

    def __init__(self, servers: str, settings: Mapping[str, Any]) -> None:
        self._settings = {"bootstrap.servers": servers, "log_level": 0, **settings}

    def may_write(self, topic: str, value: bytes = b"probe") -> bool:
        """One record."""
        errors: list[KafkaError | None] = []
        producer = Producer({**self._settings, "enable.idempotence": True})
        producer.produce(topic, value, b"probe", 0, on_delivery=lambda e, _: errors.append(e))
        assert not producer.flush(PATIENCE_S), f"{topic}: no answer"
        return _is_allowed(errors[0])

    def may_read(self, topic: str) -> bool:
        """The first partition, from its start."""
        consumer = Consumer({**self._settings, "group.id": "probe", "enable.partition.eof": True})
        try:
            consumer.assign([TopicPartition(topic, 0, 0)])
            return self._first_word(consumer, KafkaError.TOPIC_AUTHORIZATION_FAILED)
        finally:
            consumer.close()

    def may_join(self, group: str, topic: str) -> bool:
        """A consumer group, with a topic that may be read."""
        is_assigned: list[object] = []
        consumer = Consumer({**self._settings, "group.id": group, "session.timeout.ms": 6000})
        try:
            consumer.subscribe(
                [topic], on_assign=lambda _, partitions: is_assigned.append(partitions)
            )
            return self._first_word(
                consumer, KafkaError.GROUP_AUTHORIZATION_FAILED, lambda: bool(is_assigned)
            )
        finally:
            consumer.close()

    def may_be(self, transactional_id: str) -> bool:
        """The holder of a transactional id."""
        producer = Producer({**self._settings, "transactional.id": transactional_id})
        try:
            producer.init_transactions(PATIENCE_S)
        except KafkaException as exc:
            return _is_allowed(exc.args[0])
        return True

    def _first_word(
        self, consumer: Consumer, denial: int, is_there: Callable[[], bool] = lambda: False
    ) -> bool:
        words: list[bool] = []

        def heard() -> bool:
            record = consumer.poll(0.05)
            error = None if record is None else record.error()
            if error is not None and error.code() == denial:
                words.append(False)
            elif is_there() or (
                record is not None and (error is None or error.code() == KafkaError._PARTITION_EOF)
            ):
                words.append(True)
            return bool(words)

        wait_until(heard, within=PATIENCE_S, what="a word of the broker")
        return words[0]


def _is_allowed(error: KafkaError | None) -> bool:
    assert error is None or error.code() in _DENIED, error
    return error is None
