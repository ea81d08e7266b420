"""Committed transactions per second, end to end: half + op + real topic, 1 KB, read_committed reader.

A bare loop of the plain clients and txlayer, in turns, on one broker; then blocking threads and asyncio tasks.

    python bench/throughput.py [--count 600000] [--rounds 3] [--only ratio]
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any

from harness import (
    PARTITION_COUNT,
    Child,
    Figure,
    broker,
    cpu_of,
    drop_namespace,
    make_namespace,
    settings_line,
    show_figures,
    warm,
    working_coordinator,
)

IN_FLIGHT = 5_000
CODE = "bench/bare.py"


def measure(kind: str, kafka: Any, namespace: str, count: int, width: int = IN_FLIGHT) -> dict[str, float]:
    """One phase: its rate and the CPU per transaction of each role, in microseconds."""
    servers = kafka.bootstrap_servers
    if kind in ("bare", "half-bare"):
        client = [CODE, "producer", servers, namespace, str(count), str(IN_FLIGHT)]
    else:
        client = ["bench/clients.py", kind, servers, namespace, str(count), str(width)]

    def start_middle(stack: ExitStack) -> Child:
        if kind != "bare":
            return working_coordinator(stack, servers, namespace)
        middle = Child("coordinator", [CODE, "coordinator", servers, namespace, str(count)])
        stack.callback(middle.end)
        middle.line()
        return middle

    measured = run_phase(kafka, namespace, count, start_middle=start_middle, client=client)
    print(
        f"{kind:<10} {measured['rate']:>9,.0f}/s   CPU µs per transaction: "
        + " · ".join(f"{role} {measured[role]:.1f}" for role in ("producer", "coordinator", "consumer", "broker")),
        flush=True,
    )
    return measured


def run_phase(
    kafka: Any,
    namespace: str,
    count: int,
    *,
    start_middle: Callable[[ExitStack], Child | None],
    client: Sequence[str],
    partition_count: int = PARTITION_COUNT,
    on_one_core: bool = False,
) -> dict[str, float]:
    """From the first transaction of `client` until a reader has seen `count` messages: the rate, and each role's CPU µs.

    `start_middle` starts what moves the messages, if anything does; its CPU is that of the role `coordinator`.
    `on_one_core` is for the client alone.
    """
    servers, broker_pids = kafka.bootstrap_servers, [pid for pid in [kafka.pid] if pid]
    make_namespace(servers, namespace, partition_count=partition_count)
    with ExitStack() as stack:
        consumer = Child("consumer", [CODE, "consumer", servers, namespace, str(count)])
        stack.callback(consumer.end)
        consumer.line()
        middle = start_middle(stack)
        children = {"consumer": consumer} | ({} if middle is None else {"coordinator": middle})
        before = {role: child.cpu_s() for role, child in children.items()} | {"broker": cpu_of(broker_pids)}
        producer = Child("producer", client, on_one_core=on_one_core)
        stack.callback(producer.end)
        made = producer_with_cpu(producer)
        while True:
            used = {role: child.cpu_s() for role, child in children.items()}
            if consumer.has_ended(0.02):
                break
        took_s = consumer.result(600)["ended"] - made["started"]
        used["broker"] = cpu_of(broker_pids)
        cpu = {role: (used[role] - before[role]) / count * 1e6 for role in before}
        cpu["producer"] = made["cpu_s"] / count * 1e6
    drop_namespace(servers, namespace)
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
            kind = "half-bare" if arguments.only == "half-bare" else "submit-unordered"
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
