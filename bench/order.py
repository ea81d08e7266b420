"""What order by message key costs a coordinator: its own work on transactions with an ordering key and without one, in turns.

One process and no broker: half and op records are made in memory, read as the loop reads them, folded by the coordinator's
own ledgers, and forwarded into a writer that drops them. CPU time of one thread; the figure is the median of the ratios of
two neighbouring rounds.

    python bench/order.py [--count 100000] [--rounds 15] [--keys 1000] [--profile]
"""

from __future__ import annotations

import argparse
import cProfile
import gc
import os
import pstats
import random
import statistics
import sys
import time
from collections.abc import Sequence
from typing import Any

from bare import uuid7
from confluent_kafka import Message as Record
from harness import Figure, settings_line, show_figures

from txlayer.cli.services import GC_THRESHOLD
from txlayer.config import CoordinatorConfig
from txlayer.coordinator.publish import NO_PRECAUTIONS, Publisher
from txlayer.coordinator.targets import Targets
from txlayer.core import codec
from txlayer.core.codec import PlainHeaders
from txlayer.core.ledger.batch import Positions
from txlayer.core.ledger.doubt import DoubtFold
from txlayer.core.ledger.ledger import Ledger, LedgerSettings
from txlayer.core.ledger.transaction import accepting_target
from txlayer.core.messages import NO_OPTIONS, HalfHeader, HalfOptions
from txlayer.core.partitions import half_partition, key_hash
from txlayer.core.topics import PARTITION_COUNT

NOW_MS = 1_800_000_000_000
PER_MS = 50
"""Transactions born in one millisecond."""
READ_COUNT = 5_000
"""Half records per read: as many as a producer has in flight."""
LINES_PER_OP = 50
NOTHING = Positions(0, 0, 0, 0, 0, 0, 0)
VALUE = b"x" * 1_000
SETTINGS = LedgerSettings("b.half", "b.op", PARTITION_COUNT, 60_000, 10**9, 10_000)


class Dropping:
    """A writer that keeps nothing."""

    def __init__(self) -> None:
        self.count = 0

    def produce(self, *_: Any) -> None:
        """Count it."""
        self.count += 1


def reads_of(count: int, key_count: int, *, is_ordered: bool) -> list[tuple[list[Any], list[Any]]]:
    """What so many transactions of so many message keys leave in half and op: per read the records of both."""
    keys = [f"customer-{number}".encode() for number in range(key_count)]
    hashes = [key_hash(key) for key in keys]
    half_next, op_next = [0] * PARTITION_COUNT, [0] * PARTITION_COUNT
    reads = []
    for start in range(0, count, READ_COUNT):
        halves: list[Any] = []
        lines: list[list[str]] = [[] for _ in range(PARTITION_COUNT)]
        for number in range(start, min(start + READ_COUNT, count)):
            born_ms = NOW_MS + number // PER_MS
            key, hashed = keys[number % key_count], hashes[number % key_count]
            txn = f"{uuid7(at_ms=born_ms, random_bits=random.getrandbits(74))}/{os.urandom(4).hex()}"
            partition = half_partition(
                ordering_key=key if is_ordered else None, txn_id=txn[:-9], partition_count=PARTITION_COUNT
            )
            options = HalfOptions(key_hash=hashed) if is_ordered else NO_OPTIONS
            header = codec.encode_half_header(HalfHeader(txn, "bench", "orders", 0, 1, born_ms, options))
            offset = half_next[partition]
            half_next[partition] += 1
            halves.append(_record("b.half", partition, offset, born_ms, key, VALUE, header))
            lines[partition].append(codec.producer_op("C", txn, "bench", offset, born_ms))
        ops = []
        for partition, found in enumerate(lines):
            for at in range(0, len(found), LINES_PER_OP):
                value = codec.encode_ops(found[at : at + LINES_PER_OP])
                ops.append(_record("b.op", partition, op_next[partition], NOW_MS, None, value, None))
                op_next[partition] += 1
        reads.append((halves, ops))
    return reads


def _record(
    topic: str, partition: int, offset: int, at_ms: int, key: bytes | None, value: bytes, header: bytes | None
) -> Any:
    headers: Any = None if header is None else [(codec.HALF_HEADER, header)]
    return Record(
        topic=topic, partition=partition, offset=offset, key=key, value=value, headers=headers, timestamp=(2, at_ms)
    )


class Reading:
    """A coordinator's ledgers and the way to its writer."""

    def __init__(self) -> None:
        config = CoordinatorConfig(bootstrap_servers="localhost:9")
        book = Targets(config, None)  # type: ignore[arg-type]  # it asks no cluster
        book.targets["orders"] = accepting_target(1_048_588)
        self.writer: Any = Dropping()
        self.publisher = Publisher(config, name="b", make_writer=None, targets=book)  # type: ignore[arg-type]  # it makes none
        headers = PlainHeaders(book.targets)
        self.ledgers = {
            p: Ledger(p, settings=SETTINGS, targets=book.targets, headers=headers) for p in range(PARTITION_COUNT)
        }

        for ledger in self.ledgers.values():  # as after a restart over an empty log
            ledger.start_replay(NOTHING, DoubtFold(op_offset=0), doubt_next=0)
            ledger.end_replay(NOTHING)

    def turn(self, records: Sequence[Any]) -> None:
        """Fold, forward, go on: what `Coordinator` does with a read."""
        ledgers = self.ledgers
        for record in records:
            ledger = ledgers[record.partition()]
            appended_ms = record.timestamp()[1]
            if record.topic() == "b.half":
                ledger.fold_half(record.offset(), appended_ms, record.headers()[-1][1], record)
            else:
                ledger.add_ops(record.offset(), appended_ms, record.value(), record)
        batches = [(p, ledger.advance(line_count_max=20_000, byte_count_max=1 << 30)) for p, ledger in ledgers.items()]
        written = self.publisher._records_of(self.writer, NO_PRECAUTIONS)  # noqa: SLF001 - `publish` would ask for a broker
        for partition, batch in batches:
            written.write(partition, batch)
        for ledger in ledgers.values():
            ledger.positions()
            ledger.published({})


def cost_us(count: int, key_count: int, *, is_ordered: bool, profile: cProfile.Profile | None = None) -> float:
    """CPU per transaction, in microseconds."""
    reads, reading = reads_of(count, key_count, is_ordered=is_ordered), Reading()
    gc.collect()
    gc.freeze()  # the records were there before, as those of the client are
    spent = 0.0
    for halves, ops in reads:
        if profile is not None:
            profile.enable()
        began = time.thread_time()
        reading.turn(halves)
        reading.turn(ops)
        spent += time.thread_time() - began
        if profile is not None:
            profile.disable()
    gc.unfreeze()
    assert reading.writer.count == count
    return spent / count * 1e6


def main() -> int:
    """Measure, print, judge."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--keys", type=int, default=1_000)
    parser.add_argument("--profile", action="store_true", help="where the time goes with order")
    given: Any = parser.parse_args()
    gc.set_threshold(GC_THRESHOLD)
    print(settings_line())
    if given.profile:
        profile = cProfile.Profile()
        cost_us(given.count, given.keys, is_ordered=True, profile=profile)
        pstats.Stats(profile).sort_stats("tottime").print_stats(25)
        return 0
    without: list[float] = []
    ordered: list[float] = []
    for number in range(given.rounds):
        for is_ordered in (False, True) if number % 2 else (True, False):
            found = cost_us(given.count, given.keys, is_ordered=is_ordered)
            (ordered if is_ordered else without).append(found)
    ratios = [a / b for a, b in zip(without, ordered, strict=True)]
    print(f"without {statistics.median(without):.2f} µs, of the fastest {min(without):.2f}")
    print(f"ordered {statistics.median(ordered):.2f} µs, of the fastest {min(ordered):.2f}")
    return show_figures([Figure("order by message key, CPU of the same without", statistics.median(ratios), 0.85)])


if __name__ == "__main__":
    sys.exit(main())
