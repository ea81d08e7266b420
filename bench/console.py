"""The console beside 100,000 transactions in doubt: how long until its pages show them, its memory, a page of 100 rows.

    python bench/console.py [--open 100000]

The transactions are written as raw half records and moved to doubt by a coordinator, which goes on beside the console.
"""

from __future__ import annotations

import argparse
import statistics
import time
import urllib.request
from contextlib import ExitStack

from harness import Child, Figure, broker, make_namespace, settings_line, show_figures, wait_for, working_coordinator
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


def main() -> int:
    """Measure and show."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--open", type=int, default=100_000, help="transactions in doubt")
    arguments = parser.parse_args()
    print(settings_line())
    namespace, count = "console", arguments.open
    with broker() as kafka, ExitStack() as stack:
        servers = kafka.bootstrap_servers
        make_namespace(servers, namespace)
        write_open(servers, namespace, count)
        working_coordinator(stack, servers, namespace, "--doubt-after", "1s")
        wait_for(lambda: sum(doubt_low_waters(servers, namespace)) >= count, within_s=600, what="not all moved")
        started = time.monotonic()
        arguments_of_it = ["-m", "txlayer", "console", "--port", "0", "-b", servers, "-n", namespace]
        console = Child("console", arguments_of_it)
        stack.callback(console.end)
        address = console.line().rstrip("/")
        listening_s = time.monotonic() - started
        wait_for(lambda: f"{count:,} not settled" in get(f"{address}/transactions"), within_s=60, what="never ready")
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
        figures = [
            Figure("listening after", listening_s, 2, "s", is_at_most=True),
            Figure("every transaction shown after", ready_s, 2, "s", is_at_most=True),
            Figure("memory", console.memory_bytes() / 1e6, 100, "MB", is_at_most=True),
            Figure("slowest page, median", slowest * 1000, 200, "ms", is_at_most=True),
            Figure("CPU while nothing happens", (console.cpu_s() - before) * 10, 5, "%", is_at_most=True),
        ]
    return show_figures(figures)


if __name__ == "__main__":
    raise SystemExit(main())
