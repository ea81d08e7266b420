"""kill -9 of one of two coordinators: how long until its partitions forward again.

python bench/failover.py [--rounds 5]
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import time
from contextlib import ExitStack
from itertools import pairwise
from typing import Any
from zlib import crc32

from bare import PARTITION_COUNT, TARGET_PARTITION_COUNT, half_producer, uuid7
from confluent_kafka import Consumer, TopicPartition
from harness import Figure, broker, coordinator, make_namespace, settings_line, show_figures, wait_for

from txlayer.adapters.kafka.admin import KafkaAdmin
from txlayer.config import ClientConfig

SESSION_TIMEOUT_S = 6.0
RATE = 400
AFTER_S = 20.0


def one_kill(kafka: Any, namespace: str) -> float:
    """The longest time for which any half partition forwarded nothing, around a kill -9, under a steady load."""
    servers = kafka.bootstrap_servers
    make_namespace(servers, namespace)
    with ExitStack() as stack:
        coordinators = [coordinator(stack, servers, namespace) for _ in range(2)]
        wait_for(
            lambda: members(servers, namespace) == [4, 4], within_s=40, what="two coordinators, four partitions each"
        )
        time.sleep(2.0)
        load = Load(servers, namespace)
        load.run_for(4.0)
        print(f"members before: {members(servers, namespace)}", flush=True)
        os.kill(coordinators[random.randrange(2)].pid, signal.SIGKILL)
        killed_at = time.time()
        load.run_for(AFTER_S)
        gaps = load.gaps_after(killed_at)
        print(f"members after: {members(servers, namespace)}, silences: {[round(g, 2) for g in gaps]}", flush=True)
        load.close()
    print(f"kill -9: longest silence of a partition {max(gaps):.2f} s", flush=True)
    return max(gaps)


def members(servers: str, namespace: str) -> list[int]:
    """Half partitions of each member of the coordinator group."""
    config = ClientConfig(bootstrap_servers=servers, namespace=namespace)
    with KafkaAdmin(config) as admin:
        group = admin.group(config.topics.coordinator_group)
    return [sum(topic == config.topics.half for topic, _ in m.partitions) for m in group.members]


class Load:
    """A steady rate of committed transactions over all partitions, and when each partition's were seen."""

    def __init__(self, servers: str, namespace: str) -> None:
        self._namespace = namespace
        self._producer = half_producer(servers)
        self._reader = Consumer(
            {
                "bootstrap.servers": servers,
                "group.id": "reader",
                "enable.auto.commit": False,
                "auto.offset.reset": "earliest",
                "isolation.level": "read_committed",
                "fetch.wait.max.ms": 5,
            }
        )
        self._reader.assign([TopicPartition(f"{namespace}.orders", p, 0) for p in range(TARGET_PARTITION_COUNT)])
        self._seen: list[list[float]] = [[] for _ in range(PARTITION_COUNT)]

    def run_for(self, seconds: float) -> None:
        """Write and read for so long."""
        began, sent = time.monotonic(), 0
        while (elapsed := time.monotonic() - began) < seconds:
            while sent < elapsed * RATE:
                self._send()
                sent += 1
            self._producer.poll(0)
            for record in self._reader.consume(500, 0.002):
                if record.error() is None:
                    partition = int(dict(record.headers())["txl-origin"].split(b":")[0])
                    self._seen[partition].append(time.time())

    def gaps_after(self, at: float) -> list[float]:
        """Per half partition, the longest silence that began at or after shortly before `at`."""
        gaps = []
        for seen in self._seen:
            times = [*(t for t in seen if t >= at - 0.5), time.time()]  # silence to the very end counts too
            gaps.append(max((b - a for a, b in pairwise(times)), default=AFTER_S))
        return gaps

    def close(self) -> None:
        """End both clients."""
        self._producer.flush(10)
        self._reader.close()

    def _send(self) -> None:
        born = int(time.time() * 1000)
        txn_id = uuid7(at_ms=born, random_bits=random.getrandbits(74))
        key = f"{txn_id}/{random.getrandbits(32):08x}"
        partition = crc32(txn_id.encode()) % PARTITION_COUNT
        header = f"1|{key}|bench|{self._namespace}.orders|0/1|{born}|".encode()

        def report(error: Any, record: Any) -> None:
            if error is None:
                line = f"1|C|{key}|bench|{record.offset()}|{born}|producer||"
                self._producer.produce(f"{self._namespace}.op", line.encode(), None, partition)

        self._producer.produce(
            f"{self._namespace}.half", b"v" * 100, None, partition, report, None, 0, [("txl", header)]
        )


def main() -> int:
    """Measure and show."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5, help="kills; the longest counts")
    arguments = parser.parse_args()
    print(settings_line())
    with broker() as kafka:
        longest = max(one_kill(kafka, f"kill{number}") for number in range(arguments.rounds))
    bound = SESSION_TIMEOUT_S + 2
    return show_figures([Figure("kill -9 of one of two, forwards again", longest, bound, "s", is_at_most=True)])


if __name__ == "__main__":
    raise SystemExit(main())
