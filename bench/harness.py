"""What every benchmark shares: a broker of its own, topics, child processes with their CPU, and the closing table."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import psutil
from confluent_kafka.admin import AdminClient, NewTopic
from rich.console import Console
from rich.table import Table

from txlayer.adapters.kafka.admin import KafkaAdmin
from txlayer.adapters.kafka.local import LocalBroker, LocalConfig
from txlayer.adapters.ports import StoredOffset
from txlayer.config import ClientConfig, SystemTopics
from txlayer.core.topics import PARTITION_COUNT

ROOT = Path(__file__).resolve().parent.parent
TARGET_PARTITION_COUNT = 8
"""Of each real topic. Half, op and doubt have as many as `txlayer topics apply` gives them."""
MESSAGE_BYTES_MAX = 1_048_588
"""Kafka's default."""


@dataclass(frozen=True)
class Figure:
    """One row of the closing table."""

    name: str
    measured: float
    must_reach: float
    unit: str = ""
    is_at_most: bool = False  # the bound is an upper one

    @property
    def is_reached(self) -> bool:
        """True when the bound holds."""
        return self.measured <= self.must_reach if self.is_at_most else self.measured >= self.must_reach


@contextmanager
def broker(**arguments: Any) -> Iterator[LocalBroker]:
    """A broker with a heap for load, on this machine, gone at the end."""
    with LocalBroker(performance=True, config=LocalConfig.from_environ(os.environ), **arguments) as running:
        yield running


def make_namespace(
    servers: str,
    namespace: str,
    *,
    targets: Sequence[str] = ("orders",),
    target_config: Mapping[str, str] = MappingProxyType({}),
    partition_count: int = PARTITION_COUNT,
    target_partition_count: int = TARGET_PARTITION_COUNT,
    replicas: int = 1,
    message_bytes_max: int = MESSAGE_BYTES_MAX,
) -> SystemTopics:
    """The topics of a namespace with their settings, real topics, and stored offsets 0."""
    topics = SystemTopics(namespace)
    admin = AdminClient({"bootstrap.servers": servers})
    common = {"max.message.bytes": str(message_bytes_max), **({"min.insync.replicas": "2"} if replicas > 2 else {})}
    append_time = {**common, "message.timestamp.type": "LogAppendTime"}
    kept = {**append_time, "cleanup.policy": "compact", "max.message.bytes": str(2 * message_bytes_max)}
    real = {**common, **target_config}
    new = [
        NewTopic(topics.half, partition_count, replicas, config=append_time),
        NewTopic(topics.op, partition_count, replicas, config=append_time),
        NewTopic(topics.doubt, partition_count, replicas, config=kept),
        NewTopic(topics.check, 4, replicas),
        *(NewTopic(f"{namespace}.{name}", target_partition_count, replicas, config=real) for name in targets),
    ]
    for future in admin.create_topics(new).values():
        future.result(20)
    begin = {(t, p): StoredOffset(0, "") for t in (topics.half, topics.op) for p in range(partition_count)}
    with KafkaAdmin(ClientConfig(bootstrap_servers=servers, namespace=namespace)) as kafka:
        kafka.store_offsets(topics.coordinator_group, begin)
    return topics


def drop_namespace(servers: str, namespace: str) -> None:
    """Delete what a phase left, so that the next one meets the same disk and page cache."""
    admin = AdminClient({"bootstrap.servers": servers})
    names = [t for t in admin.list_topics(timeout=20).topics if t.startswith(f"{namespace}.")]
    for future in admin.delete_topics(names).values():
        future.result(30)


ON_ONE_CORE = ("taskset", "--cpu-list", "0")  # in front of a command: all threads of its process share one core


class Child:
    """A child process whose last line of output is JSON, and the CPU that it used. `on_one_core` keeps all its threads on one core."""

    def __init__(
        self,
        name: str,
        arguments: Sequence[str],
        *,
        program: str = sys.executable,
        on_one_core: bool = False,
        **environment: str,
    ) -> None:
        self.name = name
        self._process = subprocess.Popen(
            [*(ON_ONE_CORE if on_one_core else ()), program, *arguments],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stdin=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": str(ROOT), **environment},
        )
        self._watched = psutil.Process(self._process.pid)

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    def line(self) -> str:
        """Its next line of output."""
        if self._process.stdout is None:
            raise RuntimeError("no output")
        return self._process.stdout.readline().strip()

    def said(self) -> dict[str, Any]:
        """Its next line, as JSON."""
        parsed: dict[str, Any] = json.loads(self.line())
        return parsed

    def say(self, line: str) -> None:
        """A line to its input."""
        if self._process.stdin is not None:
            self._process.stdin.write(line + "\n")
            self._process.stdin.flush()

    def has_ended(self, wait_s: float) -> bool:
        """True when it ended within `wait_s` (it still counts as there until `result` is asked)."""
        time.sleep(wait_s)
        return self._watched.status() == psutil.STATUS_ZOMBIE or not self._watched.is_running()

    def result(self, timeout_s: float) -> dict[str, Any]:
        """What it says last, once it has ended."""
        output, _ = self._process.communicate(timeout=timeout_s)
        if self._process.returncode:
            raise RuntimeError(f"{self.name} ended with {self._process.returncode}")
        parsed: dict[str, Any] = json.loads(output.strip().splitlines()[-1])
        return parsed

    def cpu_s(self) -> float:
        """CPU seconds so far."""
        times = self._watched.cpu_times()
        return float(times.user + times.system)

    def memory_bytes(self) -> int:
        """Resident memory."""
        return int(self._watched.memory_info().rss)

    def end(self, patience_s: float = 20) -> int:
        """SIGTERM, then wait."""
        if self._process.poll() is None:
            self._process.terminate()
            try:
                self._process.wait(patience_s)
            except subprocess.TimeoutExpired:
                self._process.kill()
        return self._process.wait()


def coordinator(stack: ExitStack, servers: str, namespace: str, *arguments: str, **environment: str) -> Child:
    """`txlayer coordinator run` as a child with the environment of the images and units, ended with the stack."""
    child = Child(
        "coordinator",
        [
            "-m",
            "txlayer",
            "coordinator",
            "run",
            "-b",
            servers,
            "-n",
            namespace,
            "--log-level",
            os.environ.get("BENCH_LOG", "WARNING"),
            "--target-topic",
            f"{namespace}.*",
            *arguments,
        ],
        **{"MALLOC_ARENA_MAX": "2", **environment},
    )
    stack.callback(child.end)
    return child


def working_coordinator(stack: ExitStack, servers: str, namespace: str, *arguments: str) -> Child:
    """The same, once it has taken its partitions over."""
    child = coordinator(stack, servers, namespace, *arguments)
    wait_for(lambda: has_taken_over(servers, namespace), within_s=60, what="the coordinator does not take over")
    return child


def warm(kafka: LocalBroker, *, transaction_count: int = 600_000) -> None:
    """Load the broker with bare loops until its compiler has done its work: CPU per record falls for about a minute."""
    servers, namespace, count = kafka.bootstrap_servers, "warm", str(transaction_count)
    print(f"warming the broker with {transaction_count:,} transactions of the bare loop", flush=True)
    make_namespace(servers, namespace)
    with ExitStack() as stack:
        for role in ("consumer", "coordinator", "producer"):
            arguments = [servers, namespace, count, *(["5000"] if role == "producer" else [])]
            child = Child(role, ["bench/bare.py", role, *arguments])
            stack.callback(child.end)
            if role == "consumer":
                reader = child
            if role != "producer":
                child.line()
        reader.result(600)
    drop_namespace(servers, namespace)


def publish_and_read(servers: str, namespace: str, count: int, *, in_flight: int = 5_000) -> None:
    """Publish so many transactions of 1 KB to a running coordinator, until a reader has seen all of them."""
    with ExitStack() as stack:
        consumer = Child("consumer", ["bench/bare.py", "consumer", servers, namespace, str(count)])
        stack.callback(consumer.end)
        consumer.line()
        arguments = [servers, namespace, str(count), str(in_flight)]
        producer = Child("producer", ["bench/clients.py", "submit", *arguments])
        stack.callback(producer.end)
        producer.result(600)
        consumer.result(600)


def has_taken_over(servers: str, namespace: str) -> bool:
    """True when the coordinator's name stands in the stored offsets."""
    return bool(stored_metadata(servers, namespace)[0])


def stored_metadata(servers: str, namespace: str) -> list[str]:
    """The metadata of op's stored offsets, per partition."""
    config = ClientConfig(bootstrap_servers=servers, namespace=namespace)
    ops = [(config.topics.op, p) for p in range(PARTITION_COUNT)]
    with KafkaAdmin(config) as admin:
        found = admin.stored_offsets(config.topics.coordinator_group, ops)
    return ["" if stored is None else stored.metadata for stored in found.values()]


def cpu_of(pids: Sequence[int]) -> float:
    """CPU seconds of processes so far."""
    return sum(sum(psutil.Process(pid).cpu_times()[:2]) for pid in pids)


def settings_line() -> str:
    """What was measured on."""
    return (
        f"{os.cpu_count()} cores, {psutil.virtual_memory().total / 2**30:.0f} GiB, Python {platform.python_version()}, "
        f"load average {os.getloadavg()[0]:.1f}"
    )


def show_figures(figures: Sequence[Figure]) -> int:
    """The closing table; 1 when a figure is not reached."""
    table = Table(title="figures")
    for column in ("figure", "measured", "must reach", "yes or no"):
        table.add_column(column)
    for f in figures:
        sign = "≤" if f.is_at_most else "≥"
        table.add_row(
            f.name,
            f"{f.measured:,.2f} {f.unit}".strip(),
            f"{sign} {f.must_reach:,.2f} {f.unit}".strip(),
            "yes" if f.is_reached else "no",
        )
    Console(width=120).print(table)
    return 0 if all(f.is_reached for f in figures) else 1


def scratch_folder() -> tempfile.TemporaryDirectory[str]:
    """A folder that goes with the benchmark."""
    return tempfile.TemporaryDirectory(prefix="txlayer-bench-")


def wait_for(condition: Any, *, within_s: float, what: str, every_s: float = 0.02) -> None:
    """Ask until true.

    Raises:
        TimeoutError: it did not come true in time.
    """
    give_up_at = time.monotonic() + within_s
    while not condition():
        if time.monotonic() > give_up_at:
            raise TimeoutError(what)
        time.sleep(every_s)
