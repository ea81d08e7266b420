"""What each compression of the coordinator's batches costs: CPU of the client and of the broker per MB of messages, and bytes stored.

The messages are the demo's orders (JSON), one by one and twelve in a document. The writer is the coordinator's own, in Kafka
transactions of 1,000 messages; below, the broker compresses what comes without compression.

    python bench/compression.py [--rounds 5]
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

import psutil
from harness import ROOT, broker, settings_line

from txlayer.adapters.kafka.admin import KafkaAdmin
from txlayer.adapters.kafka.local import LocalBroker
from txlayer.adapters.kafka.writers import KafkaTransactionalWriter
from txlayer.config import ClientConfig
from txlayer.core.topics import CreateTopic

sys.path.insert(0, str(ROOT / "examples"))
from shop.shop import read_purchases

CODECS = ("none", "lz4", "snappy", "zstd", "gzip")
PER_TRANSACTION = 1_000
PASSES = 5
"""All orders so many times in one round: the system counts CPU in steps of 10 ms."""
PER_DOCUMENT = 12
MB = 1_000_000


class Cost(NamedTuple):
    """One round of one choice."""

    client_ms: float  # CPU per MB of messages
    broker_ms: float
    share: float  # of the bytes, stored


def write(kafka: LocalBroker, records: list[tuple[bytes, bytes]], *, codec: str, topic: str, setting: str) -> Cost:
    """All records once, in one partition."""
    config = ClientConfig(bootstrap_servers=kafka.bootstrap_servers)
    settings = {"compression.type": setting} if setting != "producer" else {}
    with KafkaAdmin(config) as admin:
        admin.create([CreateTopic(topic, 1, 1, settings, why="measured")])
    writer = KafkaTransactionalWriter(
        config, transactional_id=topic, timeout_ms=30_000, batch_bytes_max=999_488, compression=codec
    )
    writer.initialise(timeout_s=30)
    process, server = psutil.Process(), psutil.Process(kafka.pid)
    before, before_server = cpu_s(process), cpu_s(server)
    for start in range(0, len(records), PER_TRANSACTION):
        writer.begin()
        for key, value in records[start : start + PER_TRANSACTION]:
            writer.produce(topic, value, key, 0)
        writer.flush(timeout_s=30)
        writer.commit(timeout_s=30)
    client, served = cpu_s(process) - before, cpu_s(server) - before_server
    size = sum(len(key) + len(value) for key, value in records)
    stored = sum(file.stat().st_size for file in folder_of(server).rglob(f"{topic}-0/*.log"))
    return Cost(client * 1000 / (size / MB), served * 1000 / (size / MB), stored / size)


def cpu_s(process: psutil.Process) -> float:
    """User and system."""
    times = process.cpu_times()
    return times.user + times.system


def folder_of(server: psutil.Process) -> Path:
    """Where the broker keeps its logs."""
    properties = next(Path(word) for word in server.cmdline() if word.endswith(".properties"))
    for line in properties.read_text(encoding="utf-8").splitlines():
        if line.startswith("log.dirs="):
            return Path(line.partition("=")[2])
    raise ValueError(properties)


def main() -> int:
    """Every choice in turn, round by round."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    given: Any = parser.parse_args()
    orders = [(str(p.customer).encode(), p.order()) for p in read_purchases()]
    documents = [
        (orders[start][0], b"[" + b", ".join(value for _, value in orders[start : start + PER_DOCUMENT]) + b"]")
        for start in range(0, len(orders), PER_DOCUMENT)
    ]
    print(settings_line())
    with broker() as kafka:
        for records in (orders * PASSES, documents * PASSES):
            compare(kafka, records, rounds=given.rounds)
    return 0


def compare(kafka: LocalBroker, records: list[tuple[bytes, bytes]], *, rounds: int) -> None:
    """One table."""
    size = sum(len(key) + len(value) for key, value in records)
    print(f"{len(records):,} messages, {size / MB:.1f} MB, {size / len(records):.0f} B each")
    choices = [(codec, "producer") for codec in CODECS] + [("none", codec) for codec in CODECS[1:]]
    found: dict[tuple[str, str], list[Cost]] = {choice: [] for choice in choices}
    for number in range(rounds + 1):  # the first warms up
        for codec, setting in choices:
            topic = f"c{number}-{codec}-{setting}-{time.time_ns()}"
            cost = write(kafka, records, codec=codec, topic=topic, setting=setting)
            if number:
                found[codec, setting].append(cost)
    print("| writer | topic | writer's CPU ms/MB | broker's CPU ms/MB | stored |")
    for (codec, setting), costs in found.items():
        client, served, share = (statistics.median(c[n] for c in costs) for n in range(3))
        print(f"| {codec} | {setting} | {client:.1f} | {served:.1f} | {share:.0%} |", flush=True)


if __name__ == "__main__":
    sys.exit(main())
