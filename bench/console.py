"""The console beside 100,000 transactions in doubt and a day's history: how soon it shows them, its memory, a page of 100 rows.

While it reads, a page is asked for four times a second: a browser asks less often.

    python bench/console.py [--open 100000] [--history 1000000] [--starts 3]

The transactions are written as raw half records and moved to doubt by a coordinator; then those of the history are published
through it. It goes on beside the console. Figures are medians of as many starts.
"""

from __future__ import annotations

import argparse
import statistics
import time
import urllib.request
from contextlib import ExitStack
from typing import NamedTuple

from harness import (
    Child,
    Figure,
    broker,
    make_namespace,
    publish_and_read,
    settings_line,
    show_figures,
    wait_for,
    working_coordinator,
)
from recovery import doubt_low_waters, write_open

PAGES = (
    "/",
    "/transactions",
    "/transactions?sort=-age",
    "/transactions?sort=id",
    "/transactions?sort=group&state=open",
    "/transactions?group=bench&older=1s&sort=-id",
)
ROUNDS = 5


def get(address: str) -> str:
    """A page."""
    with urllib.request.urlopen(address, timeout=30) as answer:
        return str(answer.read().decode())


class Run(NamedTuple):
    """One start of the console."""

    listening_s: float
    first_page_s: float
    ready_s: float
    memory_mb: float
    slowest_page_ms: float
    idle_cpu_percent: float


def measure(servers: str, namespace: str, count: int) -> Run:
    """Start it, wait for every transaction, and ask for its pages."""
    with ExitStack() as stack:
        started = time.monotonic()
        console = Child("console", ["-m", "txlayer", "console", "--port", "0", "-b", servers, "-n", namespace])
        stack.callback(console.end)
        address = console.line().rstrip("/")
        listening_s = time.monotonic() - started
        assert "the logs are being read" in get(f"{address}/transactions")
        first_page_s = time.monotonic() - started

        def is_ready() -> bool:
            page = get(f"{address}/transactions")
            return f"{count:,} not settled" in page and "being read" not in page

        wait_for(is_ready, within_s=60, what="never ready", every_s=0.25)
        ready_s = time.monotonic() - started
        slowest = 0.0
        for page in PAGES:
            times = []
            for _ in range(ROUNDS):
                at = time.monotonic()
                get(address + page)
                times.append(time.monotonic() - at)
            print(f"{page}: {statistics.median(times) * 1000:.0f} ms, at most {max(times) * 1000:.0f} ms", flush=True)
            slowest = max(slowest, statistics.median(times))
        time.sleep(10)
        before = console.cpu_s()
        time.sleep(10)
        cpu_percent = (console.cpu_s() - before) * 10
        run = Run(listening_s, first_page_s, ready_s, console.memory_bytes() / 1e6, slowest * 1000, cpu_percent)
    print(run, flush=True)
    return run


def main() -> int:
    """Measure and show."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--open", type=int, default=100_000, help="transactions in doubt")
    parser.add_argument("--history", type=int, default=1_000_000, help="transactions that are settled since")
    parser.add_argument("--starts", type=int, default=3)
    arguments = parser.parse_args()
    print(settings_line())
    namespace, count = "console", arguments.open
    with broker() as kafka, ExitStack() as stack:
        servers = kafka.bootstrap_servers
        make_namespace(servers, namespace)
        write_open(servers, namespace, count)
        working_coordinator(stack, servers, namespace, "--doubt-after", "1s")
        wait_for(lambda: sum(doubt_low_waters(servers, namespace)) >= count, within_s=600, what="not all moved")
        if arguments.history:
            publish_and_read(servers, namespace, arguments.history)
        runs = [measure(servers, namespace, count) for _ in range(arguments.starts)]
    median = Run(*(statistics.median(column) for column in zip(*runs, strict=True)))
    return show_figures(
        [
            Figure("listening after", median.listening_s, 2, "s", is_at_most=True),
            Figure(
                "first page, which says how far the reading is, after", median.first_page_s, 2, "s", is_at_most=True
            ),
            Figure("every transaction shown after", median.ready_s, 2, "s", is_at_most=True),
            Figure("memory", median.memory_mb, 100, "MB", is_at_most=True),
            Figure("slowest page, median", median.slowest_page_ms, 200, "ms", is_at_most=True),
            Figure("CPU while nothing happens", median.idle_cpu_percent, 5, "%", is_at_most=True),
        ]
    )


if __name__ == "__main__":
    raise SystemExit(main())
