"""Any records on any topics of a test, written with a plain client in one go."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

from confluent_kafka import Producer

Headers = list[tuple[str, bytes | None]]
FLUSH_S = 60.0


class Record(NamedTuple):
    """One record to write."""

    topic: str
    value: bytes | None = None
    key: bytes | None = None
    headers: Headers | None = None
    partition: int = 0


def write_records(servers: str, records: Iterable[Record]) -> list[int]:
    """The records' offsets, in their order; all are acknowledged."""
    offsets: dict[int, int] = {}
    producer = Producer(
        {"bootstrap.servers": servers, "enable.idempotence": True, "linger.ms": 5, "log_level": 0}
    )
    for number, record in enumerate(records):

        def done(error: Any, written: Any, number: int = number) -> None:
            assert error is None, error
            offsets[number] = written.offset()

        producer.produce(
            record.topic,
            record.value,
            record.key,
            record.partition,
            done,
            headers=list(record.headers or ()),
        )
        producer.poll(0)
    assert not producer.flush(FLUSH_S), "records were not acknowledged"
    return [offsets[number] for number in sorted(offsets)]
