"""txlayer beside RocketMQ, an outbox with a poller and plain Kafka transactions: 1 KB messages, all on this machine.

    python bench/compare.py [--rounds 5] [--seconds 20] [--only threads32 threads128] [--page bench]

All servers are started once; the subjects run in turns, so that what disturbs the machine disturbs all. Each subject first
runs for `--warm-seconds` without counting, because the servers' compilers need minutes of just that load.
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
import sys
from collections import defaultdict
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from harness import (
    PARTITION_COUNT,
    Child,
    Figure,
    broker,
    scratch_folder,
    settings_line,
    show_figures,
    warm,
    working_coordinator,
)
from peers.rocketmq import rocketmq
from rich.console import Console
from rich.table import Table
from throughput import run_phase

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tests.support.databases import postgresql_server

Measured = dict[str, float]

ONE_CORE = ", client on one core"


class Stage:
    """The servers, and how each subject is measured on them."""

    def __init__(self, kafka: Any, peer: Any, database_url: str, *, seconds: float) -> None:
        self._kafka, self._peer, self._database_url = kafka, peer, database_url
        self.seconds = seconds
        self._rates: dict[str, float] = {}  # of the last run, to choose how many transactions fill the time
        self._number = 0

    def rocketmq(self, thread_count: int, *, on_one_core: bool = False) -> Measured:
        """RocketMQ's own benchmark; its processes are stopped when this ends."""
        measured: Measured = self._peer.measure(thread_count, seconds=self.seconds, on_one_core=on_one_core)
        return measured

    def txlayer(
        self, kind: str, width: int, *, partition_count: int = PARTITION_COUNT, on_one_core: bool = False
    ) -> Measured:
        """A client of bench/clients.py with one coordinator."""
        return self._through_kafka(
            f"txlayer-{kind}-{partition_count}-{'one-core-' if on_one_core else ''}{width}",
            lambda stack, servers, namespace, _count: working_coordinator(stack, servers, namespace),
            lambda servers, namespace, count: ["bench/clients.py", kind, servers, namespace, str(count), str(width)],
            partition_count,
            on_one_core=on_one_core,
        )

    def plain(self, width: int) -> Measured:
        """A Kafka transaction for each message."""
        return self._through_kafka(
            f"plain-{width}",
            lambda *_: None,
            lambda servers, namespace, count: [
                *("bench/peers/plain.py", servers, f"{namespace}.orders", str(count), str(width))
            ],
        )

    def outbox(self, width: int) -> Measured:
        """Rows in PostgreSQL, moved by a poller; the database's CPU counts as well."""

        def poller(stack: ExitStack, servers: str, namespace: str, count: int) -> Child:
            script = ["bench/peers/outbox.py", "poller", self._database_url, servers, f"{namespace}.orders", str(count)]
            child = Child("poller", script)
            stack.callback(child.end)
            child.line()
            return child

        return self._through_kafka(
            f"outbox-{width}",
            poller,
            lambda _servers, _namespace, count: [
                *("bench/peers/outbox.py", "service", self._database_url, str(count), str(width))
            ],
        )

    def _through_kafka(
        self,
        name: str,
        start_middle: Callable[[ExitStack, str, str, int], Child | None],
        client_command: Callable[[str, str, int], list[str]],
        partition_count: int = PARTITION_COUNT,
        *,
        on_one_core: bool = False,
    ) -> Measured:
        servers = self._kafka.bootstrap_servers
        self._number += 1
        namespace = f"{name}-{self._number}".replace("-", "")
        width = int(name.rsplit("-", 1)[1])
        count = max(1, int(self._rates.get(name, 1_500) * self.seconds) // width) * width
        found = run_phase(
            self._kafka,
            namespace,
            count,
            start_middle=lambda stack: start_middle(stack, servers, namespace, count),
            client=client_command(servers, namespace, count),
            partition_count=partition_count,
            on_one_core=on_one_core,
        )
        self._rates[name] = rate = found.pop("rate")
        return {"rate": rate, "cpu_us": sum(found.values())}


def subjects_of(stage: Stage) -> dict[str, dict[str, Callable[[], Measured]]]:
    """What is measured, in groups whose members are compared with one another."""
    return {
        f"threads{width}": {
            f"RocketMQ, {width} blocking threads": lambda width=width: stage.rocketmq(width),
            f"RocketMQ, {width} blocking threads{ONE_CORE}": lambda width=width: stage.rocketmq(
                width, on_one_core=True
            ),
            f"txlayer, {width} blocking threads": lambda width=width: stage.txlayer("threads", width),
            f"txlayer, {width} blocking threads{ONE_CORE}": lambda width=width: stage.txlayer(
                "threads", width, on_one_core=True
            ),
            f"txlayer, {width} blocking threads, half and op with two partitions": lambda width=width: stage.txlayer(
                "threads", width, partition_count=2
            ),
            f"txlayer without order by key, {width} blocking threads": lambda width=width: stage.txlayer(
                "threads-unordered", width
            ),
        }
        for width in (32, 128)
    } | {
        "many": {
            "txlayer, 1,000 asyncio tasks": lambda: stage.txlayer("asyncio", 1_000),
            "txlayer, pipelined": lambda: stage.txlayer("submit", 5_000),
            "txlayer without order by key, pipelined": lambda: stage.txlayer("submit-unordered", 5_000),
        },
        "others": {
            "outbox with a poller on PostgreSQL, 32 blocking threads": lambda: stage.outbox(32),
            "plain Kafka transactions without a database, 32 blocking threads": lambda: stage.plain(32),
        },
    }


def main() -> int:
    """Measure and show."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5, help="turns of all subjects; medians count")
    parser.add_argument("--seconds", type=float, default=20, help="of each subject in a round, about")
    parser.add_argument(
        "--warm-seconds", type=float, default=90, help="of each subject before the first round that counts"
    )
    parser.add_argument("--only", nargs="+", choices=("threads32", "threads128", "many", "others"), help="groups")
    parser.add_argument("--subjects", default="", help="only those whose name matches this regular expression")
    parser.add_argument("--rocksdb", action="store_true", help="RocketMQ keeps half messages in RocksDB")
    parser.add_argument("--page", type=Path, help="folder for compare.json and compare.svg")
    arguments = parser.parse_args()
    print(settings_line())
    with ExitStack() as stack:
        folder = Path(stack.enter_context(scratch_folder()))
        peer = stack.enter_context(rocketmq(folder, stores_half_in_rocksdb=arguments.rocksdb))
        peer.pause()
        kafka = stack.enter_context(broker())
        database_url = ""
        if "others" in (arguments.only or ["others"]):
            database_url = stack.enter_context(postgresql_server(is_durable=True)).replace("+psycopg", "")
        warm(kafka, transaction_count=300_000)
        stage = Stage(kafka, peer, database_url, seconds=arguments.seconds)
        groups = subjects_of(stage)
        subjects = {name: run for group in arguments.only or groups for name, run in groups[group].items()}
        subjects = {name: run for name, run in subjects.items() if re.search(arguments.subjects, name)}
        rounds: dict[str, list[Measured]] = defaultdict(list)
        for number in range(arguments.rounds + 1):
            stage.seconds = arguments.seconds if number else arguments.warm_seconds
            for name, run in subjects.items():
                measured = run()
                figures = " · ".join(f"{what} {value:,.1f}" for what, value in measured.items())
                print(f"{number or 'warm':<4} {name:<66} {figures}", flush=True)
                if number:
                    rounds[name].append(measured)
    return show(rounds, arguments.page)


def show(rounds: dict[str, list[Measured]], page: Path | None) -> int:
    """The table of medians, and the ratios to RocketMQ."""
    medians = {
        name: {what: statistics.median(one[what] for one in measured) for what in measured[0]}
        for name, measured in rounds.items()
    }
    table = Table(title="medians")
    for column in ("subject", "transactions/s", "µs of CPU each, all processes"):
        table.add_column(column)
    for name, median in medians.items():
        table.add_row(name, f"{median['rate']:,.0f}", f"{median['cpu_us']:.0f}")
    Console(width=120).print(table)
    figures = []
    for width, goal in ((32, 1.0), (128, 1.2)):
        for where in ("", ONE_CORE):
            peer = rounds.get(f"RocketMQ, {width} blocking threads{where}")
            ours = rounds.get(f"txlayer, {width} blocking threads{where}")
            if peer and ours:
                ratio = statistics.median(one["rate"] / other["rate"] for one, other in zip(ours, peer, strict=True))
                figures.append(Figure(f"{width} blocking threads{where}, of RocketMQ", ratio, goal))
    peer, ours = rounds.get("RocketMQ, 32 blocking threads"), rounds.get("txlayer, pipelined")
    if peer and ours:
        ratio = statistics.median(one["rate"] / other["rate"] for one, other in zip(ours, peer, strict=True))
        figures.append(Figure("pipelined, of RocketMQ's 32 threads", ratio, 4.5))
    if page is not None:
        (page / "compare.json").write_text(json.dumps(medians, indent=1) + "\n")
        draw(medians, page / "compare.svg")
    return show_figures(figures)


def draw(medians: dict[str, Measured], path: Path) -> None:
    """A bar a subject."""
    import matplotlib as mpl

    mpl.use("svg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(figsize=(9, 0.5 * len(medians) + 1))
    names = list(medians)[::-1]
    colours = ["#2a6fb0" if name.startswith("txlayer") else "#9a9a9a" for name in names]
    bars = axes.barh(names, [medians[name]["rate"] for name in names], color=colours)
    axes.bar_label(bars, [f"{medians[name]['rate']:,.0f}" for name in names], padding=3)
    axes.set_xlabel("committed transactions a second, end to end")
    axes.spines[["top", "right"]].set_visible(False)
    axes.margins(x=0.12)
    figure.tight_layout()
    figure.savefig(path)


if __name__ == "__main__":
    raise SystemExit(main())
