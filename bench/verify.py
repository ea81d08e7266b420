"""How long `txlayer verify` takes per million records that it reads, and its memory, at two sizes: it must not grow.

python bench/verify.py [--count 300000]
"""

from __future__ import annotations

import argparse
import sys
from contextlib import ExitStack
from typing import Any, NamedTuple

from harness import (
    Child,
    Figure,
    broker,
    drop_namespace,
    make_namespace,
    publish_and_read,
    settings_line,
    show_figures,
    working_coordinator,
)

MEMORY_GROWTH_MAX = 1.2


class Run(NamedTuple):
    """One verification."""

    record_count: int
    took_s: float
    memory_mb: float
    """The most that was resident."""


def verify(servers: str, namespace: str, count: int) -> Run:
    """Publish so many transactions of 1 KB through a coordinator, and prove them."""
    make_namespace(servers, namespace)
    with ExitStack() as stack:
        working_coordinator(stack, servers, namespace)
        publish_and_read(servers, namespace, count)
    most = 0
    command = ["verify", "-b", servers, "-n", namespace, "--since", "1h", "--grace", "0ms", "--json"]
    child = Child("verify", ["-m", "txlayer", *command])
    while not child.has_ended(0.05):
        most = max(most, child.memory_bytes())
    said = child.result(60)
    took_s = said["read_s"] + said["judge_s"]
    proved = {name: promise["status"] for name, promise in said["promises"].items()}
    record_count = sum(said["record_counts"].values())
    run = Run(record_count, took_s, most / 1e6)
    print(
        f"{count:,} transactions, {record_count:,} records: read in {said['read_s']:.1f} s, judged in {said['judge_s']:.1f} s "
        f"({took_s / record_count * 1e6:.1f} s per million), {run.memory_mb:.0f} MB; {proved}",
        flush=True,
    )
    drop_namespace(servers, namespace)
    return run


def main() -> int:
    """A small window and a large one."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=300_000)
    given: Any = parser.parse_args()
    print(settings_line())
    with broker() as kafka:
        small = verify(kafka.bootstrap_servers, "small", given.count // 4)
        large = verify(kafka.bootstrap_servers, "large", given.count)
    growth = large.memory_mb / small.memory_mb
    return show_figures([Figure("memory beside four times the records", growth, MEMORY_GROWTH_MAX, is_at_most=True)])


if __name__ == "__main__":
    sys.exit(main())
