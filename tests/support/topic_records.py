"""Any records on any topics of a test, written with a plain client in one go."""

from collections.abc import Iterable
from functools import partial
from typing import Any, NamedTuple

from confluent_kafka import KafkaError, KafkaException, Producer

from tests.support.logs import Headers

FLUSH_S = 60.0
RECORD_BYTES_MAX = 1_000_000
"""What clients and brokers allow unless they are told otherwise."""


_FORGOTTEN = (KafkaError._UNKNOWN_TOPIC, KafkaError._UNKNOWN_PARTITION)
"""The client may say so of a topic that was deleted and made anew, until it asks for it."""


class Record(NamedTuple):
    """One record to write."""

    topic: str
    value: bytes | None = None
    key: bytes | None = None
    headers: Headers | None = None
    partition: int = 0
    timestamp_ms: int = 0
    """0: now."""


class RecordWriter:
    """A plain producer that waits for every acknowledgement."""

    def __init__(self, servers: str, *, record_bytes_max: int = RECORD_BYTES_MAX, compression: str = "none") -> None:
        """Nothing is written yet."""
        self._producer = Producer(
            {
                "bootstrap.servers": servers,
                "compression.type": compression,
                "enable.idempotence": True,
                "linger.ms": 0,
                "log_level": 0,
                "message.max.bytes": record_bytes_max,
            }
        )

    def write(self, records: Iterable[Record]) -> list[int]:
        """The records' offsets, in their order; all are acknowledged."""
        offsets: dict[int, int] = {}
        for number, record in enumerate(records):

            def done(error: Any, written: Any, number: int = number) -> None:
                assert error is None, error
                offsets[number] = written.offset()

            produce = partial(
                self._producer.produce,
                record.topic,
                record.value,
                record.key,
                record.partition,
                done,
                headers=list(record.headers or ()),
                timestamp=record.timestamp_ms,
            )
            try:
                produce()
            except KafkaException as exc:
                if exc.args[0].code() not in _FORGOTTEN:
                    raise
                self._producer.list_topics(record.topic, timeout=FLUSH_S)
                produce()
            self._producer.poll(0)
        assert not self._producer.flush(FLUSH_S), "records were not acknowledged"
        return [offsets[number] for number in sorted(offsets)]


def write_records(servers: str, records: Iterable[Record]) -> list[int]:
    """The same once."""
    return RecordWriter(servers).write(records)
