"""Ranges of a log, read one after the other with one reader."""

from contextlib import closing

from tests.contract.clients import TIMEOUT_S
from tests.support.broker import unique_name
from tests.support.lab import Lab
from txlayer.adapters.readers import records_of

PARTITION_COUNT = 4
RECORD_COUNT = 24_000
SLICE_COUNT = 400
"""Small slices: the end of one and the start of the next come close together, 240 times."""


def test_slices_read_with_one_reader_bring_every_record_once(lab: Lab) -> None:
    topic = lab.topic(partitions=PARTITION_COUNT)
    per_partition = RECORD_COUNT // PARTITION_COUNT
    for partition in range(PARTITION_COUNT):
        lab.write(topic, *[b"x" * 100] * per_partition, partition=partition)
    seen: dict[int, list[int]] = {p: [] for p in range(PARTITION_COUNT)}

    with closing(lab.coordinator(unique_name("ns")).make_reader("read_committed")) as reader:
        for _ in range(4):
            for start in range(0, per_partition, SLICE_COUNT):
                ranges = {(topic, p): (start, start + SLICE_COUNT) for p in range(PARTITION_COUNT)}
                for record in records_of(reader, ranges, patience_s=TIMEOUT_S):
                    seen[record.partition()].append(record.offset())

    assert {p: list(range(per_partition)) * 4 for p in range(PARTITION_COUNT)} == seen
