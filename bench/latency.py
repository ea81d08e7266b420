"""From send to visible for a read_committed reader, at steady rates: txlayer beside a bare loop of the plain clients.

python bench/latency.py [--seconds 20] [--rates 100 1000 5000]
"""

from __future__ import annotations

import argparse
from contextlib import ExitStack
from typing import Any

from harness import (
    Child,
    Figure,
    broker,
    drop_namespace,
    make_namespace,
    settings_line,
    show_figures,
    warm,
    working_coordinator,
)

IN_FLIGHT = 5_000
CODE = "bench/bare.py"


def measure(kind: str, kafka: Any, namespace: str, *, rate: int, seconds: int) -> dict[str, float]:
    """Percentiles in milliseconds at a steady rate."""
    servers, count = kafka.bootstrap_servers, rate * seconds
    make_namespace(servers, namespace)
    with ExitStack() as stack:
        reader = Child("reader", [CODE, "latencies", servers, namespace, str(count)])
        stack.callback(reader.end)
        reader.line()
        if kind == "bare":
            middle = Child("coordinator", [CODE, "coordinator", servers, namespace, str(count)])
            stack.callback(middle.end)
            middle.line()
        else:
            working_coordinator(stack, servers, namespace)
        script = [CODE, "producer"] if kind == "bare" else ["bench/clients.py", "submit"]
        producer = Child("producer", [*script, servers, namespace, str(count), str(IN_FLIGHT), str(rate)])
        stack.callback(producer.end)
        producer.result(seconds * 3 + 60)
        seen = reader.result(60)
    drop_namespace(servers, namespace)
    print(
        f"{kind:<8} {rate:>6,}/s   ms: " + " · ".join(f"{name} {value:.1f}" for name, value in seen.items()), flush=True
    )
    return seen


def main() -> int:
    """Measure and show."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=int, default=20, help="per rate and side")
    parser.add_argument("--rates", type=int, nargs="+", default=[100, 1_000, 5_000], help="transactions per second")
    arguments = parser.parse_args()
    print(settings_line())
    figures = []
    with broker() as kafka:
        warm(kafka)
        for rate in arguments.rates:
            measure("bare", kafka, f"bare{rate}", rate=rate, seconds=arguments.seconds)
            ours = measure("txlayer", kafka, f"ours{rate}", rate=rate, seconds=arguments.seconds)
            if rate == 1_000:
                figures.append(Figure("send to visible at 1,000/s, p50", ours["p50"], 12, "ms", is_at_most=True))
                figures.append(Figure("send to visible at 1,000/s, p99", ours["p99"], 45, "ms", is_at_most=True))
    return show_figures(figures)


if __name__ == "__main__":
    raise SystemExit(main())
