"""Ranges of a log, read one after the other with one reader."""

from contextlib import closing
from functools import partial
from itertools import islice
from random import Random

import pytest

from tests.contract.clients import TIMEOUT_S
from tests.support.broker import unique_name
from tests.support.lab import Lab
from txlayer.adapters.ports import TopicPartition
from txlayer.adapters.readers import RangeReader, records_of

PARTITION_COUNT = 4
RECORD_COUNT = 24_000
SLICE_COUNT = 400
"""Small slices: the end of one and the start of the next come close together, 240 times."""


def filled(lab: Lab, per_partition: int) -> str:
    topic = lab.topic(partitions=PARTITION_COUNT)
    for number in range(PARTITION_COUNT):
        lab.write(topic, *[b"x" * 100] * per_partition, partition=number)
    return topic


@pytest.mark.parametrize("does_read_on", [False, True])
def test_slices_read_with_one_reader_bring_every_record_once(lab: Lab, *, does_read_on: bool) -> None:
    per_partition = RECORD_COUNT // PARTITION_COUNT
    topic = filled(lab, per_partition)
    seen: dict[int, list[int]] = {p: [] for p in range(PARTITION_COUNT)}

    client = lab.coordinator(unique_name("ns")).make_reader("read_committed", is_sparing=does_read_on)
    with closing(client):
        from_anew = partial(records_of, client, patience_s=TIMEOUT_S)
        read = RangeReader(client, patience_s=TIMEOUT_S).read if does_read_on else from_anew
        for _ in range(4):
            for start in range(0, per_partition, SLICE_COUNT):
                ranges = {(topic, p): (start, start + SLICE_COUNT) for p in range(PARTITION_COUNT)}
                for record in read(ranges):
                    seen[record.partition()].append(record.offset())

    assert {p: list(range(per_partition)) * 4 for p in range(PARTITION_COUNT)} == seen


@pytest.mark.parametrize("kept_max", [50, 5_000])
def test_a_reader_that_reads_on_brings_any_ranges_whole(
    lab: Lab, monkeypatch: pytest.MonkeyPatch, kept_max: int
) -> None:
    """Ranges near each other and far apart, of some partitions or all, and some that are not read to their end."""
    monkeypatch.setattr("txlayer.adapters.readers.KEPT_COUNT_MAX", kept_max)
    monkeypatch.setattr("txlayer.adapters.readers.RUN_GAP_MAX", 200)
    per_partition, random = 2_000, Random(7)
    topic = filled(lab, per_partition)
    starts = dict.fromkeys(range(PARTITION_COUNT), 0)
    client = lab.coordinator(unique_name("ns")).make_reader("read_committed", is_sparing=True)
    with closing(RangeReader(client, patience_s=TIMEOUT_S)) as reader:
        for _ in range(80):
            ranges: dict[TopicPartition, tuple[int, int]] = {}
            for number in random.sample(range(PARTITION_COUNT), random.randint(1, PARTITION_COUNT)):
                start = random.choice([starts[number], starts[number] + 100, random.randrange(per_partition)])
                start = min(start, per_partition - 1)
                starts[number] = end = min(start + random.randint(1, 150), per_partition)
                ranges[topic, number] = start, end
            if random.random() < 0.1:
                assert 1 == len(list(islice(reader.read(ranges), 1)))
                continue
            seen: dict[TopicPartition, list[int]] = {tp: [] for tp in ranges}
            for record in reader.read(ranges):
                seen[record.topic(), record.partition()].append(record.offset())
            assert {tp: list(range(*span)) for tp, span in ranges.items()} == seen
