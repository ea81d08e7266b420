"""What a cluster's topics hold, read whole by plain clients: nothing of txlayer's own reading is trusted here."""

import time
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from confluent_kafka import Consumer, KafkaError, TopicPartition
from confluent_kafka.admin import AdminClient

Headers = list[tuple[str, bytes | None]]

READ_PATIENCE_S = 60.0
"""A log of which nothing comes for this time is a broken broker's."""


class Seen(NamedTuple):
    """One record as a reader got it."""

    topic: str
    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    headers: Headers
    timestamp_ms: int


def seen(record: Any) -> Seen:
    """The client's record as a value."""
    return Seen(
        record.topic(),
        record.partition(),
        record.offset(),
        record.key(),
        record.value(),
        list(record.headers() or ()),
        record.timestamp()[1],
    )


def plain_reader(servers: str, *, isolation: str, wait_ms: int = 10) -> Consumer:
    """A consumer without a group of its own that reports the end of each partition.

    At an end it asks the broker again every `wait_ms`. A new record is there at once, however long that is.
    """
    return Consumer(
        {
            "bootstrap.servers": servers,
            "group.id": "tests-read-only",
            "isolation.level": isolation,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "fetch.wait.max.ms": wait_ms,
            "log_level": 0,
        }
    )


def partition_counts(servers: str, topics: Sequence[str]) -> dict[str, int]:
    """{topic: partitions} of those that exist."""
    found = AdminClient({"bootstrap.servers": servers, "log_level": 0}).list_topics(timeout=20)
    return {t: len(found.topics[t].partitions) for t in topics if t in found.topics}


def read_log(servers: str, topics: Sequence[str], *, isolation: str = "read_committed") -> dict[str, list[Seen]]:
    """Every record of the topics up to their ends as `isolation` sees them, in offset order per partition."""
    counts = partition_counts(servers, topics)
    open_ones = {(t, p) for t, count in counts.items() for p in range(count)}
    records: dict[str, list[Seen]] = {topic: [] for topic in topics}
    reader = plain_reader(servers, isolation=isolation)
    try:
        reader.assign([TopicPartition(t, p, 0) for t, p in sorted(open_ones)])
        give_up_at = time.monotonic() + READ_PATIENCE_S
        while open_ones:
            if time.monotonic() > give_up_at:
                raise AssertionError(f"not read to the end: {sorted(open_ones)}")
            found = reader.consume(5_000, 0.1)
            if found:
                give_up_at = time.monotonic() + READ_PATIENCE_S
            for record in found:
                error = record.error()
                if error is None:
                    records[str(record.topic())].append(seen(record))
                elif error.code() == KafkaError._PARTITION_EOF:
                    open_ones.discard((str(record.topic()), int(record.partition() or 0)))
                else:
                    raise AssertionError(f"{record.topic()}-{record.partition()}: {error}")
    finally:
        reader.close()
    for log in records.values():
        log.sort(key=lambda r: (r.partition, r.offset))
    return records


def ends(servers: str, topics: Sequence[str], *, isolation: str) -> dict[tuple[str, int], int]:
    """Where each partition ends: the last stable offset, or the high watermark with `read_uncommitted`."""
    reader = plain_reader(servers, isolation=isolation)
    try:
        return {
            (t, p): int(reader.get_watermark_offsets(TopicPartition(t, p), timeout=10)[1])
            for t, count in partition_counts(servers, topics).items()
            for p in range(count)
        }
    finally:
        reader.close()


def both_ends(servers: str, topics: Sequence[str]) -> dict[tuple[str, int], tuple[int, int]]:
    """{partition: (last stable offset, end)}."""
    stable = ends(servers, topics, isolation="read_committed")
    whole = ends(servers, topics, isolation="read_uncommitted")
    return {p: (stable[p], end) for p, end in whole.items()}


def hanging(servers: str, topics: Sequence[str]) -> dict[tuple[str, int], tuple[int, int]]:
    """The same, where an open Kafka transaction holds readers back."""
    return {p: (stable, end) for p, (stable, end) in both_ends(servers, topics).items() if stable != end}


def header(headers: Headers | Mapping[str, bytes | None], name: str) -> bytes | None:
    """The last header of this name."""
    return dict(headers).get(name)
