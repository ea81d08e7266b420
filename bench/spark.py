"""Spark beside its own bare work on the same data: bronze, ledger with verdicts, a day's increment, cost against size, tables, streams.

    python bench/spark.py [--only bronze ledger increment size stream] [--count 2000000] [--page FOLDER] [--events FOLDER]
    python bench/spark.py --only tables --format delta

`local[2]`, one session with the settings of `txlayer-spark`. The bare loops are Spark's own: over the same Kafka read a `count`, and a flat `write.parquet` of the
same columns; over the same Parquet a `groupBy(id).count()`. What reads from Kafka is measured in turns, as CPU seconds of Java. Bronze for the ledger is made by Spark itself: half, op and forwarded record of each transaction, a fifth
of them with an ordering key. Memory is the peak of the JVM (VmHWM), Python's beside it. Tables of Delta or Iceberg are written in turns with tables of Parquet. A stream of
committed messages is read in turns with a plain one of the same topic; its latency is from a record's time to that of the record that Spark writes for it into another topic.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import time
from collections.abc import Callable
from functools import partial
from inspect import signature
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple
from zlib import crc32

import psutil
import pyspark
from bare import uuid7
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient, NewTopic
from harness import Figure, broker, make_namespace, scratch_folder, settings_line, show_figures
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.readwriter import DataStreamWriter

from txlayer.cli.spark import spark_session
from txlayer_spark import committed_stream
from txlayer_spark.catalog import BatchFolder, Catalog, Reader, ReadState
from txlayer_spark.jobs.bronze import BronzeSettings, read_new, to_bronze
from txlayer_spark.jobs.ledger import LedgerSettings, compact_ledger, update_ledger
from txlayer_spark.jobs.tables import Format, TableSettings, update_tables
from txlayer_spark.parse import BRONZE, Values, system_topics
from txlayer_spark.sessions import source_options

NAMESPACE, TOPIC = "bench", "bench.orders"
PARTITIONS = 8
BORN_MS = 1_760_000_000_000
VALUE = '{"order": 123456, "customer": "customer-123456", "cents": 199900, "when": "2026-11-21T20:00:00Z"}'
TRACE = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
SIZES = (500_000, 1_000_000, 2_000_000, 4_000_000)
WARM_UP = 250_000
MEMORY = "1800m"


class Point(NamedTuple):
    """Cost at a size."""

    count: int
    ledger_s: float
    scan_s: float


def timed(work: Callable[[], Any]) -> float:
    """Seconds."""
    began = time.monotonic()
    work()
    return time.monotonic() - began


# --- bronze from a broker ---------------------------------------------------------------------------------------------


def loaded_producer(servers: str) -> Producer:
    """A plain client with large batches."""
    return Producer(
        {
            "bootstrap.servers": servers,
            "linger.ms": 50,
            "queue.buffering.max.messages": 1_000_000,
            "batch.num.messages": 10_000,
            "log_level": 0,
        }
    )


def sent(producer: Producer, *arguments: Any, **more: Any) -> None:
    """Send a record, when there is room for it."""
    while True:
        try:
            return producer.produce(*arguments, **more)
        except BufferError:
            producer.poll(0.1)


def write_topics(servers: str, count: int) -> None:
    """Half, op and forwarded record of each transaction, by a plain client."""
    producer, offsets = loaded_producer(servers), [0] * PARTITIONS
    send = partial(sent, producer)
    for number in range(count):
        txn_id = uuid7(at_ms=BORN_MS + number // 100, random_bits=int.from_bytes(os.urandom(10), "little"))
        home = crc32(txn_id.encode()) % PARTITIONS
        key, at, user = f"{txn_id}/{number:08x}", offsets[home], ("traceparent", TRACE)
        header = f"1|{key}|shop|{TOPIC}|0/1|{BORN_MS}|"
        send(f"{NAMESPACE}.half", VALUE, f"customer-{number % 50_000}", home, headers=[user, ("txl", header)])
        send(f"{NAMESPACE}.op", f"1|C|{key}|shop|{at}|{BORN_MS}|producer||", None, home)
        origin = f"{home}:{at}|0/1|{BORN_MS}"
        send(
            TOPIC, VALUE, f"customer-{number % 50_000}", -1, headers=[user, ("txl-id", txn_id), ("txl-origin", origin)]
        )
        offsets[home] += 1
        producer.poll(0)
    producer.flush(60)


class Spent(NamedTuple):
    """What a piece of work took."""

    wall_s: float
    cpu_s: float
    """Of Java: steadier than the wall where other work goes on."""


def spent(work: Callable[[], Any]) -> Spent:
    """Seconds of both kinds."""
    before, began = cpu_s(), time.monotonic()
    work()
    return Spent(time.monotonic() - began, cpu_s() - before)


def bronze_figures(spark: SparkSession, folder: Path, *, count: int, rounds: int) -> list[Figure]:
    """Bronze from the real broker, in turns with a bare count and with Spark's own Parquet over the same read; medians of CPU.

    Spark's own Parquet has the columns of bronze, in one folder, with the options that Spark gives it in the same session.
    """
    with broker() as running:
        servers = running.bootstrap_servers
        make_namespace(servers, NAMESPACE, partition_count=PARTITIONS)
        admin = AdminClient({"bootstrap.servers": servers})
        admin.create_topics([NewTopic(f"{NAMESPACE}.locks", 4, 1)])[f"{NAMESPACE}.locks"].result()
        write_topics(servers, count)
        options = source_options(bootstrap_servers=servers, topics=[*system_topics(NAMESPACE), TOPIC])
        target = folder / "written"

        def read() -> DataFrame:
            return spark.read.format("kafka").options(**options).load()

        def bronze(values: Values) -> None:
            settings = BronzeSettings(
                root=str(target), namespace=NAMESPACE, bootstrap_servers=servers, topics=(TOPIC,), values=values
            )
            read_new(spark, settings, now_ms=lambda: BORN_MS)

        works: dict[str, Callable[[], Any]] = {
            "bare count": lambda: read().count(),
            "Spark's own Parquet": lambda: (
                to_bronze(read(), namespace=NAMESPACE, batch=0).drop("kind", "day").write.parquet(str(target))
            ),
            "bronze": lambda: bronze(Values.FULL),
            "bronze of hashes": lambda: bronze(Values.HASH),
        }
        found: dict[str, list[Spent]] = {name: [] for name in works}
        for number in range(rounds + 2):
            for name, work in list(works.items())[:: -1 if number % 2 else 1]:
                found[name].append(spent(work))
                shutil.rmtree(target, ignore_errors=True)
                took = found[name][-1]
                load = f"{os.getloadavg()[0]:.1f}"
                print(f"{name}: {3 * count / took.wall_s:,.0f}/s, CPU {took.cpu_s:.1f} s, load {load}", flush=True)

    def ratio(name: str, beside: str) -> float:
        # The first two rounds are for Java's compiler.
        pairs = zip(found[beside][2:], found[name][2:], strict=True)
        return statistics.median(bare.cpu_s / ours.cpu_s for bare, ours in pairs)

    return [
        Figure("bronze, of Spark's own Parquet of the same read", ratio("bronze", "Spark's own Parquet"), 1.0),
        Figure("bronze of hashes, of a bare count over the same read", ratio("bronze of hashes", "bare count"), 0.8),
    ]


# --- ledger over made bronze ------------------------------------------------------------------------------------------


def _record(kind: str, topic: str, **columns: Column) -> list[Column]:
    common = {
        "topic": F.lit(topic),
        "offset": F.col("id"),
        "partition": F.col("home"),
        "key": F.lit(b"k"),
        "value": F.lit(VALUE.encode()),
        "timestamp": F.timestamp_millis(F.lit(BORN_MS) + F.col("id") / 10),
        "batch": F.lit(0),
        "kind": F.lit(kind),
        "is_append_time": F.expr("true"),
        **{name: F.lit(None) for name in ("key_hash", "content_hash")},
    }
    every = {**common, **columns}
    every["timestamp"] = F.timestamp_millis((F.lit(BORN_MS) + F.col("id") / 10).cast("bigint"))
    every["day"] = F.to_date(every["timestamp"])
    return [every[field.name].cast(field.dataType).alias(field.name) for field in BRONZE if field.name != "folder"]


def _headers(*pairs: tuple[str, Column]) -> Column:
    return F.array(
        *(
            F.struct(F.lit(name).alias("key"), value.cast("binary").alias("value"))
            for name, value in (("traceparent", F.lit(TRACE)), *pairs)
        )
    )


def make_bronze(  # one frame per topic, side by side
    spark: SparkSession, root: Path, *, first: int, count: int, batch: int
) -> None:
    """One batch of each reader with `count` committed and forwarded transactions."""
    digest = F.md5(F.col("id").cast("string"))
    parts = [F.substring(digest, at, size) for at, size in ((1, 8), (9, 4), (13, 4), (17, 4), (21, 12))]
    ids = spark.range(first, first + count, 1, 8).withColumn("txn", F.concat_ws("-", *parts))
    ids = ids.withColumn("home", F.pmod(F.crc32(F.col("txn").cast("binary")), F.lit(PARTITIONS)))
    ids = ids.withColumn("key", F.concat("txn", F.lit("/0000000a")))
    ordering = F.when(
        F.col("id") % 5 == 0, F.concat(F.lit("k"), F.substring(F.md5((F.col("id") % 50_000).cast("string")), 1, 16))
    )
    line = F.concat_ws(
        "|",
        F.lit("1"),
        "key",
        F.lit("shop"),
        F.lit(TOPIC),
        F.lit("0/1"),
        F.lit(BORN_MS),
        F.coalesce(ordering, F.lit("")),
    )
    half = ids.select(*_record("half", f"{NAMESPACE}.half", headers=_headers(("txl", line))))
    said = F.concat_ws(
        "|", F.lit("1"), F.lit("C"), "key", F.lit("shop"), "id", F.lit(BORN_MS), F.lit("producer"), F.lit(""), F.lit("")
    )
    op = ids.select(*_record("op", f"{NAMESPACE}.op", value=said.cast("binary"), key=F.lit(None), headers=F.lit(None)))
    origin = F.concat("home", F.lit(":"), "id", F.lit(f"|0/1|{BORN_MS}"))
    forwarded = ids.select(
        *_record("forwarded", TOPIC, headers=_headers(("txl-id", F.col("txn")), ("txl-origin", origin)))
    )
    catalog = Catalog(spark, str(root))
    for reader, rows in ((0, half.unionByName(op)), (1, forwarded)):
        path = catalog.path_of(BatchFolder(reader, batch, batch))
        rows.withColumn("batch", F.lit(batch).cast("bigint")).write.partitionBy("kind", "day").parquet(path)
    catalog.claim(NAMESPACE)
    ends = {f"{NAMESPACE}.half": {str(home): first + count for home in range(PARTITIONS)}}
    readers = (
        Reader(0, tuple(system_topics(NAMESPACE)), BORN_MS * 2, ends, batch, is_system=True),
        Reader(1, (TOPIC,), BORN_MS * 2, {TOPIC: {"0": first + count}}, batch),
    )
    catalog.store(ReadState(catalog.state().number, readers, (TOPIC,), ("shop",)))


def bare_scan(spark: SparkSession, root: Path) -> DataFrame:
    """`groupBy(id).count()` over the same files: the id out of each record, as cheaply as Spark can."""
    catalog = Catalog(spark, str(root))
    records = catalog.records(catalog.cut(catalog.state()))
    last = F.try_element_at("headers", F.lit(-1))["value"].cast("string")
    said = F.substring_index(F.col("value").cast("string"), "/", 1)
    stored = F.substring_index(last, "/", 1)
    own = F.try_element_at("headers", F.lit(-2))["value"].cast("string")
    packed = F.when(F.col("kind") == "op", said).otherwise(stored)
    txn_id = F.when(F.col("kind") == "forwarded", own).otherwise(F.substring_index(packed, "|", -1))
    return records.groupBy(txn_id.alias("txn_id")).count()


def ledger_s(spark: SparkSession, bronze: Path, ledger: Path) -> float:
    """Seconds of one run."""
    settings = LedgerSettings(bronze=str(bronze), root=str(ledger))
    return timed(lambda: update_ledger(spark, settings))


def bare_s(spark: SparkSession, bronze: Path) -> float:
    """Seconds of the bare scan."""
    return timed(lambda: bare_scan(spark, bronze).write.format("noop").mode("overwrite").save())


def jvm() -> psutil.Process:
    """Spark's JVM: the broker has one of its own."""
    children = psutil.Process().children(recursive=True)
    (java,) = [p for p in children if "java" in p.name() and "org.apache.spark.deploy.SparkSubmit" in p.cmdline()]
    return java


def cpu_s() -> float:
    """CPU seconds of Spark's JVM so far."""
    times = jvm().cpu_times()
    return float(times.user + times.system)


def jvm_peak_bytes() -> int:
    """Peak resident memory of Spark's JVM."""
    status = Path(f"/proc/{jvm().pid}/status").read_text("ascii")
    return 1024 * next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM"))


def ledger_figures(spark: SparkSession, folder: Path, *, count: int, increment: int, parts: set[str]) -> list[Figure]:
    """Ledger and verdicts over `count` transactions, and an increment on top of them."""
    root, figures = folder / "made", []
    warm_up(spark, folder)
    make_bronze(spark, root, first=0, count=count, batch=0)
    scans = [bare_s(spark, root) for _ in range(3)]
    print(f"bare scan {', '.join(f'{s:.1f}' for s in scans)} s", flush=True)
    fulls = [ledger_s(spark, root, folder / f"ledger-{number}") for number in range(3)]
    print(f"ledger {', '.join(f'{s:.1f}' for s in fulls)} s", flush=True)
    full, ledger = statistics.median(fulls), folder / "ledger-0"
    peak = jvm_peak_bytes() + psutil.Process().memory_info().rss
    if "ledger" in parts:
        figures += [
            Figure("ledger and verdicts, of a bare scan", full / statistics.median(scans), 4.0, is_at_most=True),
            Figure("memory", peak / 2**30, 3.0, "GiB", is_at_most=True),
        ]
    if "increment" in parts:
        days = []
        # The first two days warm Java up for runs that merge, as two small runs did for the full ones.
        for day in range(1, 6):
            make_bronze(spark, root, first=count + (day - 1) * increment, count=increment, batch=day)
            days.append(ledger_s(spark, root, ledger))
            print(f"increment of {increment:,}, day {day}: {days[-1]:.1f} s", flush=True)
        for day, of in enumerate(("all runs but the last", "one more day"), start=6):
            fold_s = timed(lambda: compact_ledger(spark, str(ledger), runs_min=1))
            print(f"settled rows of {of} folded: {fold_s:.1f} s", flush=True)
            make_bronze(spark, root, first=count + (day - 1) * increment, count=increment, batch=day)
            ledger_s(spark, root, ledger)
        ratio = statistics.median(days[2:]) / full
        figures.append(Figure(f"{increment:,} new, of the full run", ratio, 0.15, is_at_most=True))
    return figures


def warm_up(spark: SparkSession, folder: Path) -> None:
    """What Java's compiler takes, once: everything on few transactions, twice."""
    root = folder / "warm"
    make_bronze(spark, root, first=0, count=WARM_UP, batch=0)
    for number in (1, 2):
        scan_s, run_s = bare_s(spark, root), ledger_s(spark, root, folder / f"warm-{number}")
        print(f"warming up on {WARM_UP:,}: scan {scan_s:.1f} s, ledger {run_s:.1f} s", flush=True)


def size_figures(spark: SparkSession, folder: Path, page: Path | None) -> list[Figure]:
    """Seconds of a full run against size, over bronze that grows; the worst growth from size to size, of linear."""
    # The smallest size must not pay for Java's compiler: the others would look cheap.
    if not (folder / "warm").exists():
        warm_up(spark, folder)
    root, points, made = folder / "growing", [], 0
    for batch, count in enumerate(SIZES):
        make_bronze(spark, root, first=made, count=count - made, batch=batch)
        made = count
        points.append(Point(count, ledger_s(spark, root, folder / "whole"), bare_s(spark, root)))
        shutil.rmtree(folder / "whole")
        now = points[-1]
        print(f"{count:>10,} transactions: {now.ledger_s:.1f} s, scan {now.scan_s:.1f} s", flush=True)
        if page is not None:
            draw(points, page)
    worst = max((b.ledger_s / a.ledger_s) / (b.count / a.count) for a, b in pairwise(points))
    return [Figure("growth from size to size, of linear", worst, 1.1, is_at_most=True)]


# --- tables -----------------------------------------------------------------------------------------------------------


def table_figures(spark: SparkSession, folder: Path, kind: Format, *, count: int, rounds: int) -> list[Figure]:
    """Bronze, events and ledger of `count` transactions as tables of a format, in turns with Parquet; medians of pairs."""
    data = folder / "tables"
    make_bronze(spark, data / "bronze", first=0, count=count, batch=0)
    ledger_s(spark, data / "bronze", data / "ledger")
    found: dict[Format, list[Spent]] = {Format.PARQUET: [], kind: []}
    for number in range(rounds + 1):
        for each in list(found)[:: -1 if number % 2 else 1]:
            into = data / f"{each.value}-{number}"
            settings = TableSettings(data=str(data), format=each, into=str(into))
            found[each].append(spent(lambda settings=settings: update_tables(spark, settings)))  # type: ignore[misc]  # bound at once
            shutil.rmtree(into)
            took, load = found[each][-1], os.getloadavg()[0]
            print(f"{each.value}: {took.wall_s:.1f} s, CPU {took.cpu_s:.1f} s, load {load:.1f}", flush=True)
    # The first round is for Java's compiler.
    pairs = list(zip(found[Format.PARQUET], found[kind], strict=True))[1:]
    ratios = {
        "time": statistics.median(other.wall_s / parquet.wall_s for parquet, other in pairs),
        "CPU of Java": statistics.median(other.cpu_s / parquet.cpu_s for parquet, other in pairs),
    }
    return [
        Figure(f"tables as {kind.value}, of Parquet, {what}", ratio, 1.3, is_at_most=True)
        for what, ratio in ratios.items()
    ]


# --- streams ----------------------------------------------------------------------------------------------------------


def write_forwarded(producer: Producer, topic: str, *, partitions: int) -> None:
    """One message as a coordinator forwards it."""
    txn_id = uuid7(at_ms=BORN_MS, random_bits=int.from_bytes(os.urandom(10), "little"))
    headers = [("traceparent", TRACE), ("txl-id", txn_id), ("txl-origin", f"0:7|0/1|{BORN_MS}")]
    sent(producer, topic, VALUE, txn_id, crc32(txn_id.encode()) % partitions, headers=headers)


def plain_stream(spark: SparkSession, topic: str, servers: str) -> DataFrame:
    """Spark's own Kafka source, as it comes."""
    options = {"subscribe": topic, "startingOffsets": "earliest", "includeHeaders": "true"}
    kafka = {"kafka.bootstrap.servers": servers, "kafka.isolation.level": "read_committed"}
    return spark.readStream.format("kafka").options(**options, **kafka).load()


def our_stream(spark: SparkSession, topic: str, servers: str) -> DataFrame:
    """The same topic by `committed_stream`."""
    return committed_stream(spark, topic, bootstrap_servers=servers)


def stream_figures(spark: SparkSession, folder: Path, *, count: int, rounds: int) -> list[Figure]:
    """The rate of `committed_stream` beside that of a plain Kafka stream, and the latency of both."""
    streams = {"plain": plain_stream, "committed": our_stream}
    found: dict[str, list[Spent]] = {name: [] for name in streams}
    with broker() as running:
        servers = running.bootstrap_servers
        admin, producer = AdminClient({"bootstrap.servers": servers}), loaded_producer(servers)
        admin.create_topics([NewTopic(TOPIC, PARTITIONS)])[TOPIC].result()
        for _ in range(count):
            write_forwarded(producer, TOPIC, partitions=PARTITIONS)
            producer.poll(0)
        producer.flush(60)

        def read(name: str, number: int) -> None:
            writer = streams[name](spark, TOPIC, servers).writeStream.format("noop").trigger(availableNow=True)
            writer.option("checkpointLocation", str(folder / f"{name}-{number}")).start().awaitTermination()

        for number in range(rounds + 2):
            for name in list(streams)[:: -1 if number % 2 else 1]:
                found[name].append(spent(partial(read, name, number)))
                took, load = found[name][-1], os.getloadavg()[0]
                print(f"{name}: {count / took.wall_s:,.0f}/s, CPU {took.cpu_s:.1f} s, load {load:.1f}", flush=True)
        for name, stream in streams.items():
            show_latency(spark, folder / f"latency-{name}", servers, name, stream)
        if "realTime" in signature(DataStreamWriter.trigger).parameters:
            show_latency(spark, folder / "latency-real", servers, "real-time", our_stream, is_real_time=True)
    pairs = list(zip(found["plain"], found["committed"], strict=True))[2:]
    return [
        Figure(
            "committed_stream, rate of a plain Kafka stream",
            statistics.median(p.wall_s / c.wall_s for p, c in pairs),
            0.8,
        ),
        Figure("the same, CPU of Java", statistics.median(p.cpu_s / c.cpu_s for p, c in pairs), 0.8),
    ]


def show_latency(
    spark: SparkSession,
    folder: Path,
    servers: str,
    name: str,
    stream: Callable[[SparkSession, str, str], DataFrame],
    *,
    is_real_time: bool = False,
    seconds: int = 30,
    rate: int = 200,
) -> None:
    """From the time of a record to that of the one that a stream writes for it, while `rate` a second come."""
    source, to = f"bench.{name}.in", f"bench.{name}.out"
    admin = AdminClient({"bootstrap.servers": servers})
    for future in admin.create_topics([NewTopic(source, 2), NewTopic(to, 1)]).values():
        future.result()
    at = F.unix_millis("timestamp").cast("string").alias("value")
    writer = stream(spark, source, servers).select(at).writeStream.format("kafka").option("topic", to)
    writer = writer.option("kafka.bootstrap.servers", servers).option("checkpointLocation", str(folder))
    if is_real_time:
        writer = writer.outputMode("update").trigger(realTime="10 minutes")
    query = writer.start()
    producer = Producer({"bootstrap.servers": servers, "linger.ms": 0, "log_level": 0})
    began = time.monotonic()
    for number in range(seconds * rate):
        time.sleep(max(0, began + number / rate - time.monotonic()))
        write_forwarded(producer, source, partitions=2)
        producer.poll(0)
    producer.flush(10)
    time.sleep(5)
    query.stop()
    consumer = Consumer({"bootstrap.servers": servers, "group.id": name, "auto.offset.reset": "earliest"})
    consumer.subscribe([to])
    times: list[tuple[int, int]] = []
    while found := consumer.consume(100_000, 5):
        times += [(int(message.value() or 0), message.timestamp()[1]) for message in found]
    consumer.close()
    # The first third is for Java's compiler.
    late = sorted(then - at_ms for at_ms, then in sorted(times)[len(times) // 3 :])
    p50, p99 = (late[int(len(late) * part)] for part in (0.5, 0.99))
    print(f"{name}: latency p50 {p50} ms, p99 {p99} ms of {len(times)} at {rate}/s", flush=True)


def draw(points: list[Point], page: Path) -> None:
    """The plot and its numbers."""
    from matplotlib.figure import Figure as Plot

    plot = Plot(figsize=(7, 4), layout="constrained")
    axes = plot.subplots()
    millions, first = [p.count / 1e6 for p in points], points[0]
    axes.plot(millions, [p.ledger_s for p in points], marker="o", label="ledger and verdicts")
    axes.plot(millions, [p.scan_s for p in points], marker="s", label="bare scan")
    linear = [0, first.ledger_s / millions[0] * millions[-1]]
    axes.plot([0, millions[-1]], linear, linestyle=":", label="linear from the first")
    label = "million transactions in bronze"
    axes.set(xlabel=label, ylabel="seconds", xlim=(0, None), ylim=(0, None))
    axes.legend(frameon=False)
    plot.savefig(page / "spark-size.svg")
    (page / "spark-size.json").write_text(json.dumps([p._asdict() for p in points]) + "\n", "utf-8")


def _event_log(folder: Path) -> dict[str, str]:
    folder.mkdir(parents=True, exist_ok=True)
    return {
        "spark.eventLog.enabled": "true",
        "spark.eventLog.compress": "false",
        "spark.eventLog.dir": folder.absolute().as_uri(),
    }


def main() -> int:
    """Measure, and show."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="+", default=["bronze", "ledger", "increment", "size"])
    parser.add_argument("--count", type=int, default=2_000_000)
    parser.add_argument("--format", choices=["delta", "iceberg"], default="delta", help="of tables, beside Parquet")
    parser.add_argument("--increment", type=int, default=100_000)
    parser.add_argument("--records", type=int, default=1_000_000, help="transactions in the broker")
    parser.add_argument(
        "--rounds", type=int, default=3, help="of bronze, tables and streams, after some for Java's compiler"
    )
    parser.add_argument("--page", type=Path, help="a folder for the plot of cost against size")
    parser.add_argument("--events", type=Path, help="an empty folder for Spark's event log: every stage with its time")
    given = parser.parse_args()
    parts, figures = set(given.only), []
    print(settings_line(), f"local[2], {MEMORY}, pyspark {pyspark.__version__}", flush=True)
    settings = {} if given.events is None else _event_log(given.events)
    with (
        scratch_folder() as name,
        spark_session(
            master="local[2]", memory=MEMORY, tables=given.format if "tables" in parts else "", settings=settings
        ) as spark,
    ):
        folder = Path(name)
        if parts & {"ledger", "increment"}:
            figures += ledger_figures(spark, folder, count=given.count, increment=given.increment, parts=parts)
        if "bronze" in parts:
            figures += bronze_figures(spark, folder, count=given.records, rounds=given.rounds)
        if "stream" in parts:
            figures += stream_figures(spark, folder, count=given.records, rounds=given.rounds)
        if "tables" in parts:
            figures += table_figures(spark, folder, Format(given.format), count=given.count, rounds=given.rounds)
        if "size" in parts:
            figures += size_figures(spark, folder, given.page)
    return show_figures(figures)


if __name__ == "__main__":
    raise SystemExit(main())
