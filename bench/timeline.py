"""Where the milliseconds of one message go, from the call of `submit` to a read_committed reader, as a picture.

    python bench/timeline.py [--rates 100 1000] [--seconds 15] [--page bench]

The broker says when it appended each half record, each op record and each forwarded message (LogAppendTime); the
message carries when it was made, and the reader notes when it came. All of them have one clock, this machine's.
"""

from __future__ import annotations

import argparse
import json
import statistics
import struct
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, TopicPartition
from harness import (
    PARTITION_COUNT,
    TARGET_PARTITION_COUNT,
    Child,
    broker,
    drop_namespace,
    make_namespace,
    settings_line,
    warm,
    working_coordinator,
)

from txlayer.core import codec

STEPS = (
    "made → half record stored",
    "→ commit stored in op",
    "→ message written to its topic",
    "→ Kafka transaction committed, and read",
)
IN_FLIGHT = 5_000


def measure(kafka: Any, namespace: str, *, rate: int, seconds: int) -> list[float]:
    """The median milliseconds of each step at a steady rate; the first tenth of the messages does not count."""
    servers, count = kafka.bootstrap_servers, rate * seconds
    make_namespace(servers, namespace, target_config={"message.timestamp.type": "LogAppendTime"})
    with ExitStack() as stack:
        working_coordinator(stack, servers, namespace)
        reader = consumer_of(servers, f"{namespace}.orders", TARGET_PARTITION_COUNT)
        stack.callback(reader.close)
        producer = Child(
            "producer", ["bench/clients.py", "submit", servers, namespace, *map(str, (count, IN_FLIGHT, rate))]
        )
        stack.callback(producer.end)
        seen: dict[str, tuple[float, float, float]] = {}  # made, written and read, by transaction id, in ms
        while len(seen) < count:
            record = reader.poll(1.0)
            if record is None or record.error() is not None:
                continue
            (made_s,) = struct.unpack("<d", record.value()[:8])
            txn_id = dict(record.headers())["txl-id"].decode()
            seen[txn_id] = made_s * 1000, record.timestamp()[1] + 0.5, time.time() * 1000
        stored = stored_times(servers, namespace, count)
    drop_namespace(servers, namespace)
    steps = [
        (half - made, op - half, written - op, read - written)
        for txn_id, (made, written, read) in list(seen.items())[count // 10 :]
        for half, op in [stored[txn_id]]
    ]
    return [statistics.median(column) for column in zip(*steps, strict=True)]


def stored_times(servers: str, namespace: str, count: int) -> dict[str, tuple[float, float]]:
    """When the half record and the op line of each transaction were appended, by its id; half a millisecond is added to whole ones."""
    half: dict[str, float] = {}
    op: dict[str, float] = {}
    for name, times in (("half", half), ("op", op)):
        reader = consumer_of(servers, f"{namespace}.{name}", PARTITION_COUNT)
        while len(times) < count:
            record = reader.poll(1.0)
            if record is None or record.error() is not None:
                continue
            at = record.timestamp()[1] + 0.5
            if name == "half":
                keys = [codec.decode_half_header(codec.half_header_of(record.headers())).key]
            else:
                keys = [line.split("|")[2] for line in record.value().decode().split("\n")]
            times.update((key.rpartition("/")[0], at) for key in keys)
        reader.close()
    return {txn_id: (at, op[txn_id]) for txn_id, at in half.items()}


def consumer_of(servers: str, topic: str, partition_count: int) -> Consumer:
    """A reader of all of it that sees committed messages alone."""
    consumer = Consumer(
        {
            "bootstrap.servers": servers,
            "group.id": f"{topic}.timeline",
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            "isolation.level": "read_committed",
            "fetch.wait.max.ms": 5,
        }
    )
    consumer.assign([TopicPartition(topic, p, 0) for p in range(partition_count)])
    return consumer


def draw(measured: dict[str, list[float]], path: Path) -> None:
    """One bar for each rate, one colour for each step."""
    import matplotlib as mpl

    mpl.use("svg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(figsize=(9, 0.8 * len(measured) + 1.4))
    left = [0.0] * len(measured)
    for step, colour, lengths in zip(
        STEPS, ("#2a6fb0", "#7fb2dd", "#e3a44c", "#9a9a9a"), zip(*measured.values(), strict=True), strict=True
    ):
        bars = axes.barh(list(measured), lengths, left=left, color=colour, label=step)
        axes.bar_label(bars, [f"{length:.1f}" for length in lengths], label_type="center")
        left = [a + b for a, b in zip(left, lengths, strict=True)]
    axes.set_xlabel("milliseconds (medians of each step)")
    axes.invert_yaxis()
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(loc="upper center", bbox_to_anchor=(0.45, 1.0 + 0.5 / len(measured)), ncols=2, frameon=False)
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None})


def main() -> int:
    """Measure and show."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rates", type=int, nargs="+", default=[100, 1_000], help="transactions per second")
    parser.add_argument("--seconds", type=int, default=15, help="of each rate")
    parser.add_argument("--warm", type=int, default=600_000, help="transactions before the first that count")
    parser.add_argument("--page", type=Path, help="folder for timeline.json and timeline.svg")
    arguments = parser.parse_args()
    print(settings_line())
    measured: dict[str, list[float]] = {}
    with broker() as kafka:
        warm(kafka, transaction_count=arguments.warm)
        for number in range(2):  # the first turn warms the broker at these very rates
            for rate in arguments.rates:
                found = measure(kafka, f"turn{number}at{rate}", rate=rate, seconds=arguments.seconds)
                measured[f"{rate:,}/s"] = found
                print(
                    f"{rate:>6,}/s  " + " · ".join(f"{s} {ms:.1f}" for s, ms in zip(STEPS, found, strict=True)),
                    flush=True,
                )
    if arguments.page is not None:
        (arguments.page / "timeline.json").write_text(json.dumps({"steps": STEPS, **measured}, indent=1) + "\n")
        draw(measured, arguments.page / "timeline.svg")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
