"""What a principal may do on a cluster, found out by doing it with plain clients."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition

from tests.support.waiting import wait_until

PATIENCE_S = 15.0
_TOPIC_DENIED = KafkaError.TOPIC_AUTHORIZATION_FAILED
_GROUP_DENIED = KafkaError.GROUP_AUTHORIZATION_FAILED
_DENIED = {_TOPIC_DENIED, KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, KafkaError.CLUSTER_AUTHORIZATION_FAILED}


class Prober:
    """Tries things as one principal; each answer is True when the broker let it."""

    def __init__(self, servers: str, settings: Mapping[str, Any]) -> None:
        self._settings = {"bootstrap.servers": servers, "log_level": 0, **settings}

    def may_write(self, topic: str, value: bytes = b"probe") -> bool:
        """One record."""
        return bool(self.writable([topic], value))

    def writable(self, topics: Iterable[str], value: bytes = b"probe") -> frozenset[str]:
        """The topics that took a record."""
        errors: dict[str, KafkaError | None] = {}

        def told(topic: str) -> Callable[[KafkaError | None, object], None]:
            return lambda error, _: errors.update({topic: error})

        # Not idempotent: who may write nothing at all gets no producer id, and that is an error of the whole client.
        producer = Producer({**self._settings, "acks": "all", "linger.ms": 0})
        for topic in topics:
            producer.produce(topic, value, b"probe", 0, on_delivery=told(topic))
        assert not producer.flush(PATIENCE_S), "records without an answer"
        return frozenset(topic for topic, error in errors.items() if _is_allowed(error))

    def readable(self, topics: Iterable[str]) -> frozenset[str]:
        """The topics whose first partition says what stands at its start."""
        words: dict[str, bool] = {}
        consumer = self._consumer("probe", {"enable.partition.eof": True})
        try:
            # A topic that may not be described is not shown, and may not be read; an assignment of it is never answered.
            asked = set(topics) & set(consumer.list_topics(timeout=PATIENCE_S).topics)
            consumer.assign([TopicPartition(topic, 0, 0) for topic in asked])

            def everybody_answered() -> bool:
                record = consumer.poll(0.05)
                word = None if record is None else _word(record, _TOPIC_DENIED)
                if record is not None and word is not None:
                    words.setdefault(str(record.topic()), word)
                return asked == set(words)

            wait_until(everybody_answered, within=PATIENCE_S, what="a word about each topic")
            return frozenset(topic for topic, may in words.items() if may)
        finally:
            consumer.close()

    def may_join(self, group: str, topic: str) -> bool:
        """A consumer group, with a topic that may be read."""
        words: list[bool] = []
        consumer = self._consumer(group, {"session.timeout.ms": 6000})
        try:
            consumer.subscribe([topic], on_assign=lambda *_: words.append(True))

            def is_answered() -> bool:
                record = consumer.poll(0.05)
                if record is not None and _word(record, _GROUP_DENIED) is False:
                    words.append(False)
                return bool(words)

            wait_until(is_answered, within=PATIENCE_S, what="a word about the group")
            return words[0]
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

    def _consumer(self, group: str, settings: Mapping[str, Any]) -> Consumer:
        # Nothing is stored: `close` would wait for a group that may not be used.
        fixed = {"group.id": group, "enable.auto.commit": False}
        return Consumer({**self._settings, **fixed, **settings})


def _word(record: Message, denial: int) -> bool | None:
    error = record.error()
    if error is None or error.code() == KafkaError._PARTITION_EOF:
        return True
    return False if error.code() == denial else None


def _is_allowed(error: KafkaError | None) -> bool:
    assert error is None or error.code() in _DENIED, error
    return error is None
