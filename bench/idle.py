"""What a coordinator costs that has nothing to do: CPU and memory, default settings, 8 half partitions, without and with metrics.

With metrics somebody scrapes every 15 s, as Prometheus does.

    python bench/idle.py [--seconds 60]
"""

from __future__ import annotations

import argparse
import sys
import time
import urllib.request
from contextlib import ExitStack
from typing import Any, NamedTuple

from harness import Figure, broker, make_namespace, settings_line, show_figures, working_coordinator

from txlayer.adapters.kafka.local.server import free_ports

CPU_PERCENT_MAX = 2.0
MEMORY_MB_MAX = 80.0
SETTLE_S = 15.0
"""Behind the take-over, so that the start is not measured."""
SCRAPE_S = 15.0


class Idle(NamedTuple):
    """One run."""

    cpu_percent: float  # of one core
    memory_mb: float  # the most that was resident


def measure(servers: str, namespace: str, *, seconds: float, port: int | None) -> Idle:
    """One coordinator, alone on its namespace."""
    make_namespace(servers, namespace)
    arguments = [] if port is None else ["--metrics-port", str(port)]
    with ExitStack() as stack:
        child = working_coordinator(stack, servers, namespace, *arguments)
        time.sleep(SETTLE_S)
        began_s, began_cpu_s, most = time.monotonic(), child.cpu_s(), 0
        scraped_s = began_s
        while (now_s := time.monotonic()) < began_s + seconds:
            if port is not None and now_s - scraped_s >= SCRAPE_S:
                scraped_s = now_s
                scrape(port)
            most = max(most, child.memory_bytes())
            time.sleep(0.5)
        cpu_s = child.cpu_s() - began_cpu_s
    return Idle(cpu_s / (now_s - began_s) * 100, most / 2**20)


def scrape(port: int) -> None:
    """Read the metrics page."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as page:
        page.read()


def main() -> int:
    """Both ways."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0)
    given: Any = parser.parse_args()
    print(settings_line())
    figures = []
    with broker() as kafka:
        for name, port in (("alone", None), ("scraped", free_ports(1)[0])):
            idle = measure(kafka.bootstrap_servers, name, seconds=given.seconds, port=port)
            print(f"{name}: {idle.cpu_percent:.2f} % of a core, {idle.memory_mb:.1f} MiB", flush=True)
            figures += [
                Figure(f"idle coordinator, {name}: CPU", idle.cpu_percent, CPU_PERCENT_MAX, is_at_most=True, unit="%"),
                Figure(f"idle coordinator, {name}: memory", idle.memory_mb, MEMORY_MB_MAX, is_at_most=True, unit="MiB"),
            ]
    return show_figures(figures)


if __name__ == "__main__":
    sys.exit(main())
