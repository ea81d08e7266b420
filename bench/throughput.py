"""Committed transactions per second, end to end: half + op + real topic, 1 KB, 8 partitions, read_committed reader.

A bare loop of the plain clients and txlayer, in turns, on one broker; then blocking threads and asyncio tasks.

    python bench/throughput.py [--count 600000] [--rounds 3] [--only ratio]
"""

from __future__ import annotations

import argparse
import statistics
from contextlib import ExitStack
from typing import Any

from harness import (
    Child,
    Figure,
    broker,
    coordinator,
    cpu_of,
    drop_namespace,
    has_taken_over,
    make_namespace,
    settings_line,
    show_figures,
    wait_for,
    warm,
)

IN_FLIGHT = 5_000
CODE = "bench/bare.py"


def measure(  # one phase from start to end, read top to bottom
    kind: str, kafka: Any, namespace: str, count: int, width: int = IN_FLIGHT
) -> dict[str, float]:
    """One phase: its rate and the CPU per transaction of each role, in microseconds."""
    servers = kafka.bootstrap_servers
    make_namespace(servers, namespace)
    with ExitStack() as stack:
        consumer = Child("consumer", [CODE, "consumer", servers, namespace, str(count)])
        stack.callback(consumer.end)
        consumer.line()
        if kind in ("bare", "half-bare"):
            producer_command = [CODE, "producer", servers, namespace, str(count), str(IN_FLIGHT)]
        else:
            producer_command = ["bench/clients.py", kind, servers, namespace, str(count), str(width)]
        if kind == "bare":
            middle = Child("coordinator", [CODE, "coordinator", servers, namespace, str(count)])
            stack.callback(middle.end)
            middle.line()
        else:
            middle = coordinator(stack, servers, namespace)
            wait_for(lambda: has_taken_over(servers, namespace), within_s=30, what="the coordinator does not take over")
        before = {
            "coordinator": middle.cpu_s(),
            "broker": cpu_of([pid for pid in [kafka.pid] if pid]),
            "consumer": consumer.cpu_s(),
        }
        producer = Child("producer", producer_command)
        stack.callback(producer.end)
        made = producer_with_cpu(producer)
        while True:
            used = {"coordinator": middle.cpu_s(), "consumer": consumer.cpu_s()}
            if consumer.has_ended(0.02):
                break
        seen = consumer.result(600)
        used["broker"] = cpu_of([pid for pid in [kafka.pid] if pid])
        took_s = seen["ended"] - made["started"]
        cpu = {role: (used[role] - before[role]) / count * 1e6 for role in before}
        cpu["producer"] = made["cpu_s"] / count * 1e6
    drop_namespace(servers, namespace)
    print(
        f"{kind:<10} {count / took_s:>9,.0f}/s   CPU µs per transaction: "
        + " · ".join(f"{role} {cpu[role]:.1f}" for role in ("producer", "coordinator", "consumer", "broker")),
        flush=True,
    )
    return {"rate": count / took_s, **cpu}


def producer_with_cpu(producer: Child) -> dict[str, float]:
    """What the producer said at its end, and its CPU until then."""
    cpu_s = 0.0
    while not producer.has_ended(0.02):
        cpu_s = max(cpu_s, producer.cpu_s())
    return {**producer.result(600), "cpu_s": cpu_s}


def order_by_key(kafka: Any, *, rounds: int, count: int) -> Figure:
    """What it costs that messages of one key keep their order, in pairs with and without."""
    ratios = []
    for number in range(rounds):
        without = measure("submit-unordered", kafka, f"unordered{number}", count)
        ordered = measure("submit", kafka, f"ordered{number}", count)
        ratios.append(ordered["rate"] / without["rate"])
    return Figure("order by message key, of the same without", statistics.median(ratios), 0.0)


def main() -> int:
    """Measure and show."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=600_000, help="transactions per phase")
    parser.add_argument("--rounds", type=int, default=3, help="pairs of bare and txlayer; the median ratio counts")
    parser.add_argument("--warm", type=int, default=1_000_000, help="transactions before the first phase that counts")
    parser.add_argument("--only", choices=("ratio", "order", "threads", "asyncio", "half-bare"), help="one subject")
    arguments = parser.parse_args()
    print(settings_line())
    figures: list[Figure] = []
    ratio = 0.0
    with broker() as kafka:
        warm(kafka, transaction_count=arguments.warm)
        if arguments.only in (None, "ratio", "half-bare"):
            kind = "half-bare" if arguments.only == "half-bare" else "submit"
            ratios = []
            for number in range(arguments.rounds):
                bare = measure("bare", kafka, f"bare{number}", arguments.count)
                ours = measure(kind, kafka, f"ours{number}", arguments.count)
                ratios.append(ours["rate"] / bare["rate"])
            ratio = statistics.median(ratios)
            figures.append(Figure("pipelined, of the bare loop", ratio, 0.85))
        if arguments.only in (None, "order"):
            figures.append(order_by_key(kafka, rounds=arguments.rounds, count=arguments.count))
        if arguments.only in (None, "threads"):
            threads = measure("threads", kafka, "threads", 32 * (arguments.count // 200), 32)
            figures.append(Figure("32 blocking threads", threads["rate"], 8_000, "/s"))
        if arguments.only in (None, "asyncio"):
            tasks = measure("asyncio", kafka, "tasks", 1_000 * (arguments.count // 4_000), 1_000)
            figures.append(Figure("1,000 asyncio tasks", tasks["rate"], 15_000, "/s"))
    code = show_figures(figures)
    if ratio:
        print(f"ratio {ratio:.2f}")
    return code


if __name__ == "__main__":
    raise SystemExit(main())
