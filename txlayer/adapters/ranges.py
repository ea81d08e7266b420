"""Ranges of partitions, read whole by a reader that assigns itself. Never a rule of what is read."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from txlayer.adapters.ports import LogReader, TopicPartition
from txlayer.errors import BrokerUnavailableError, RetriableError

READ_COUNT_MAX = 20_000
"""Records per read: bounds the time between two signs of life."""

RUN_GAP_MAX = 5_000
"""Records read in vain rather than sought over: a seek costs about as much as reading this many (1.2 ms)."""

Range = tuple[int, int]
"""[from, to)."""


def read_ranges(
    reader: LogReader,
    ranges: Mapping[TopicPartition, Range],
    on_record: Callable[[Any], None],
    *,
    is_still_ours: Callable[[], None] = lambda: None,
    patience_s: float,
    clock: Callable[[], float] = time.monotonic,
) -> None:
    """Call `on_record` for every record of the ranges, in offset order per partition.

    Raises:
        BrokerUnavailableError: nothing came for `patience_s`; some records were given already.
        RetriableError: an offset is not in the log any more, or not yet; ask for starts and ends again.
    """
    ends = {partition: to for partition, (start, to) in ranges.items() if start < to}
    if not ends:
        return
    reader.assign({partition: ranges[partition][0] for partition in ends})
    heard_at = clock()
    while ends:
        records = reader.read(record_count_max=READ_COUNT_MAX, timeout_s=0.1)
        is_still_ours()
        if records:
            heard_at = clock()
        elif clock() - heard_at > patience_s:
            raise BrokerUnavailableError(
                "ranges that must be read did not come: "
                + ", ".join(f"{t}-{p}" for t, p in sorted(ends)),
                waited_ms=int(patience_s * 1000),
            )
        topic, number, partition, start, end = "", -1, ("", -1), 0, None
        for record in records:  # hot path: records of one partition mostly follow each other
            if record.partition() != number or record.topic() != topic:
                topic, number = partition = (record.topic(), record.partition())
                end = ends.get(partition)
                start = ranges[partition][0] if end is not None else 0
            if end is None:
                continue
            error = record.error()
            if error is not None:
                _check_end(error, record, partition)
                if record.offset() >= end:
                    del ends[partition]
                    end = None
                continue
            offset = record.offset()
            if start <= offset < end:
                on_record(record)
            if offset >= end - 1:
                del ends[partition]
                end = None
                reader.pause(partition)


def _check_end(error: Any, record: Any, partition: TopicPartition) -> None:
    if error.name() == "_AUTO_OFFSET_RESET":
        raise RetriableError(
            f"{partition[0]}-{partition[1]}: what must be read is not in the log ({error.str()}); it was removed meanwhile"
        )
    if error.name() != "_PARTITION_EOF":
        raise BrokerUnavailableError(
            f"{partition[0]}-{partition[1]}@{record.offset()}: {error.name()}"
        )


def runs_of(spans: Iterable[Range]) -> list[Range]:
    """The spans in order, joined where reading what lies between costs less than seeking over it."""
    runs: list[Range] = []
    for start, end in sorted(spans):
        if runs and start - runs[-1][1] <= RUN_GAP_MAX:
            runs[-1] = (runs[-1][0], max(runs[-1][1], end))
        else:
            runs.append((start, end))
    return runs
