"""What metrics cost: counting while Kafka transactions go through, and a look at all that is open when somebody scrapes.

One process and no broker: half and op records are made in memory and folded by the coordinator's own ledger, once as it is and once
with what the loop counts beside it.

    python bench/metrics.py [--count 200000] [--rounds 5]
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from typing import Any

from harness import Figure, settings_line, show_figures

from txlayer.adapters.exposition import MetricsServer
from txlayer.adapters.ports import Assignment
from txlayer.config import MetricsConfig
from txlayer.coordinator.metrics import CoordinatorCounts, CoordinatorView, ObservedCoordinator
from txlayer.coordinator.shard import LogTime, Shard
from txlayer.core import codec
from txlayer.core.ledger.ledger import Ledger, LedgerSettings
from txlayer.core.ledger.transaction import accepting_target
from txlayer.core.messages import NO_OPTIONS, HalfHeader, OpMessage, Resolution, Source

COORDINATOR_US = 21.7
"""CPU per transaction of a coordinator under full load, from README.md."""
NOW_MS = 1_800_000_000_000
SETTINGS = LedgerSettings("b.half", "b.op", 1, 60_000, 10**9, 10_000)


class Record:
    """A half record's content."""

    def key(self) -> None:
        """None."""

    def headers(self) -> list[tuple[str, bytes]]:
        """That of txlayer alone."""
        return [(codec.HALF_HEADER, b"")]

    def __len__(self) -> int:
        return 100


def ledger_of(count: int) -> Ledger:
    """A ledger with so many open transactions."""
    ledger = Ledger(0, settings=SETTINGS, targets={"orders": accepting_target(1_000_000)})
    record = Record()
    for number in range(count):
        key = f"{number:032d}/0000000a"
        header = codec.encode_half_header(HalfHeader(key, "bench", "orders", 0, 1, NOW_MS, NO_OPTIONS))
        ledger.fold_half(number, NOW_MS, header, record)
    return ledger


def lines_of(count: int, per_record: int) -> list[bytes]:
    """Op records that commit all of them."""
    lines = [
        codec.encode_op(
            OpMessage(Resolution.COMMIT, f"{number:032d}/0000000a", "bench", number, NOW_MS, Source.PRODUCER)
        )
        for number in range(count)
    ]
    return ["\n".join(lines[at : at + per_record]).encode() for at in range(0, count, per_record)]


def counting_us(count: int, batch_size: int) -> float:
    """CPU per transaction of what is counted beside the fold, in microseconds."""
    ledger, counts = ledger_of(count), CoordinatorCounts()
    before = ledger.positions()
    spent = 0.0
    for offset, value in enumerate(lines_of(count, batch_size)):
        ledger.add_ops(offset, NOW_MS + offset, value, None)
        batch = ledger.advance(line_count_max=1 << 40, byte_count_max=1 << 40)
        after = ledger.positions()
        start = time.process_time()
        counts.stored(batch, before, after, now_ms=NOW_MS + offset + 20)
        counts.publishing.took(0.0, 0.001, 0.002, 0.003, 0.004)
        spent += time.process_time() - start
        ledger.published({})
        before = after
    assert counts.seconds.view().counts[-1] == count
    return spent / count * 1e6


def scrape_ms(open_count: int, rounds: int) -> float:
    """CPU of a scrape beside so many open transactions, in milliseconds; the first one, that looks at their ages."""
    ledger = ledger_of(open_count)
    shard = Shard(ledger, ledger.positions(), 0, 0, LogTime(lambda: 0.0))
    shard.time.see(NOW_MS)
    assignment = Assignment((("b.half", 0), ("b.op", 0)), None, 1)
    seen = CoordinatorView("b", CoordinatorCounts(turned_at=0.0), {0: shard}, assignment, {})
    took = []
    for _ in range(rounds):
        observed = ObservedCoordinator(lambda: seen, version="bench", clock=lambda: 0.0)
        server = MetricsServer(MetricsConfig(), observed)  # a new one: a page is kept for a second
        start = time.process_time()
        server.metrics_page()
        took.append((time.process_time() - start) * 1000)
    return statistics.median(took)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=200_000)
    parser.add_argument("--rounds", type=int, default=5)
    given: Any = parser.parse_args()
    print(settings_line())
    shares = {}
    for batch_size in (10, 100, 1_000):
        found = [counting_us(given.count, batch_size) for _ in range(given.rounds)]
        shares[batch_size] = statistics.median(found)
        print(f"batches of {batch_size}: {', '.join(f'{us:.3f}' for us in found)} us a transaction")
    scrapes = {count: scrape_ms(count, given.rounds) for count in (0, 20_000, 1_000_000)}
    for count, ms in scrapes.items():
        print(f"scrape beside {count:,} open: {ms:.1f} ms")
    return show_figures(
        [
            Figure(
                "counting, of a coordinator's CPU at full load (batches of 100)",
                shares[100] / COORDINATOR_US * 100,
                2.0,
                is_at_most=True,
                unit="%",
            ),
            Figure(
                "a scrape every 15 s beside 1,000,000 open, of a core",
                scrapes[1_000_000] / 15_000 * 100,
                1.0,
                is_at_most=True,
                unit="%",
            ),
        ]
    )


if __name__ == "__main__":
    sys.exit(main())
