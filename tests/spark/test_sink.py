"""A batch of Spark is published all or nothing, and once per epoch: real topics, a real coordinator, real kills."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from datetime import timedelta
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession

from tests.conftest import Broker
from tests.support.arena import Arena, make_arena
from tests.support.crafted import Crafted
from tests.support.logs import Seen, header, read_log
from tests.support.operating import quick_coordinator
from tests.support.producers import ops
from tests.support.waiting import wait_until
from txlayer.core import codec
from txlayer.core.messages import HalfHeader, Resolution
from txlayer.errors import (
    ConfigError,
    FencedError,
    ForbiddenTopicError,
    ReservedHeaderError,
    TopicMismatchError,
    UsageError,
)
from txlayer_spark import SinkSettings, transactional_batches, write_transactional
from txlayer_spark.attempts import Attempt, Attempts
from txlayer_spark.epoch_log import EpochLog
from txlayer_spark.jobs.sink import Outcome, Sink

pytestmark = pytest.mark.kafka

GROUP = "orders"


@pytest.fixture(scope="module")
def arena(broker: Broker) -> Iterator[Arena]:
    """One namespace whose coordinator runs as long as the tests of this file."""
    arena = make_arena(broker.bootstrap_servers, partition_count=2, target_partitions=(1, 1))
    with quick_coordinator(arena):
        yield arena


def settings_for(arena: Arena, **more: object) -> SinkSettings:
    """Into that namespace."""
    given = {"topic": arena.targets[0], "producer_group": GROUP, **more}
    return SinkSettings(
        bootstrap_servers=arena.servers, namespace=arena.namespace, **given  # type: ignore[arg-type]  # settings by name
    )  # fmt: skip


def numbers(spark: SparkSession, count: int, *, name: str = "v") -> DataFrame:
    """So many messages, in order, in two partitions."""
    return spark.range(0, count, 1, 2).selectExpr(
        "concat('key-', id % 7) AS key", f"concat('{name}', id) AS value"
    )


def values(seen: Sequence[Seen]) -> list[str]:
    """What is visible, in the order of the topic."""
    return [(record.value or b"").decode() for record in seen]


def attempts_in(arena: Arena, txn_id: str) -> Counter[str]:
    """{id/nonce: half records} of an id."""
    found: Counter[str] = Counter()
    for record in read_log(arena.servers, [arena.topics.half])[arena.topics.half]:
        head = codec.decode_half_header(codec.half_header_of(record.headers) or b"")
        if isinstance(head, HalfHeader) and head.key.startswith(f"{txn_id}/"):
            found[head.key] += 1
    return found


def resolved(arena: Arena, txn_id: str) -> Counter[Resolution]:
    """How often each resolution of an id was written."""
    return Counter(op.resolution for _, op in ops(arena, txn_id))


def test_a_batch_becomes_visible_as_one_transaction_in_its_own_order(
    spark: SparkSession, arena: Arena
) -> None:
    orders, stock = arena.targets
    batch = spark.sql(
        f"SELECT IF(id = 2, '{stock}', '{orders}') AS topic, IF(id = 1, NULL, concat('k', id)) AS key, "
        "concat('v', 9 - id) AS value, array(struct('h' AS key, CAST(id AS STRING) AS value)) AS headers "
        "FROM range(0, 4, 1, 2)"
    )

    done = write_transactional(batch, settings_for(arena, topic=None), query="whole", epoch=3)

    assert ("whole-3", Outcome.PUBLISHED, 1, ()) == (
        done.epoch_id, done.outcome, len(done.published), done.skipped
    )  # fmt: skip
    seen = arena.wait_until_visible("whole-3", count=4)
    assert ["v9", "v8", "v6"] == values([r for r in seen if r.topic == orders])
    assert [(b"k2", b"v7")] == [(r.key, r.value) for r in seen if r.topic == stock]
    assert [b"0", b"1", b"3"] == [header(r.headers, "h") for r in seen if r.topic == orders]
    assert [b"k0", None, b"k3"] == [r.key for r in seen if r.topic == orders]
    assert {done.published[0]: 4} == attempts_in(arena, "whole-3")


def test_an_epoch_that_was_published_is_skipped_whatever_it_holds_now(
    spark: SparkSession, arena: Arena
) -> None:
    settings = settings_for(arena)
    write_transactional(numbers(spark, 3), settings, query="again", epoch=1)

    again = write_transactional(numbers(spark, 5), settings, query="again", epoch=1)
    following = write_transactional(numbers(spark, 2), settings, query="again", epoch=11)

    assert (Outcome.SKIPPED, ("again-1",)) == (again.outcome, again.skipped)
    assert Outcome.PUBLISHED is following.outcome
    arena.wait_until_visible("again-11", count=2)
    assert 3 == len(arena.wait_until_visible("again-1", count=3))
    assert 1 == len(attempts_in(arena, "again-1"))


def test_what_cannot_be_published_is_refused_before_anything_is_written(
    spark: SparkSession, arena: Arena
) -> None:
    batch = numbers(spark, 3)
    with_header = batch.selectExpr("value", "array(struct('txl-id' AS key, value)) AS headers")
    forbidden = batch.selectExpr("value", f"'{arena.topics.op}' AS topic")
    nowhere = batch.selectExpr("value", "-1 AS partition")
    ours, named = settings_for(arena), settings_for(arena, topic=None)
    small = settings_for(arena, transaction_messages_max=2)
    few_bytes = settings_for(arena, transaction_bytes_max=10)
    faults: list[tuple[DataFrame, SinkSettings, type[UsageError], str]] = [
        (batch, small, UsageError, "3 messages .* transaction_messages_max is 2"),
        (batch, few_bytes, UsageError, "transaction_bytes_max 10"),
        (with_header, ours, ReservedHeaderError, "txl-id"),
        (forbidden, named, ForbiddenTopicError, "no real topic"),
        (nowhere, ours, UsageError, "partition that no topic has"),
        (batch, settings_for(arena, topic="never-made"), TopicMismatchError, "no such topic"),
        (batch, named, UsageError, "name the real topic"),
        (batch.withColumn("colour", batch["key"]), ours, UsageError, "colour"),
        (batch.drop("value"), ours, UsageError, "`value`"),
        (spark.range(2).selectExpr("id AS value"), ours, UsageError, "bytes or text"),
    ]

    for frame, settings, kind, text in faults:
        with pytest.raises(kind, match=text):
            write_transactional(frame, settings, query="refused", epoch=0)
    for name, number in (("a/b", 0), ("", 0), ("a", -1)):
        with pytest.raises(ConfigError):
            write_transactional(batch, ours, query=name, epoch=number)

    assert not attempts_in(arena, "refused-0")
    nothing = write_transactional(batch.limit(0), ours, query="refused", epoch=0)
    assert Outcome.EMPTY is nothing.outcome


def test_a_batch_is_split_into_parts_that_are_the_same_when_it_is_computed_again(
    spark: SparkSession, arena: Arena
) -> None:
    settings = settings_for(arena, split=True, transaction_messages_max=4)
    batch = numbers(spark, 20)

    done = write_transactional(batch, settings, query="parts", epoch=0)
    again = write_transactional(batch.repartition(3), settings, query="parts", epoch=0)

    ids = sorted(key.partition("/")[0] for key in done.published)
    assert 5 <= len(ids)
    assert (Outcome.SKIPPED, tuple(ids)) == (again.outcome, again.skipped)
    seen = wait_until(
        lambda: found if len(found := [r for i in ids for r in arena.visible(i)]) >= 20 else [],
        within=30,
        what="all parts",
    )
    assert sorted(f"v{n}" for n in range(20)) == sorted(values(seen))
    assert all(4 >= len(arena.visible(txn_id)) for txn_id in ids)
    finer = settings_for(arena, split=True, transaction_messages_max=3)
    with pytest.raises(UsageError, match="was begun as"):
        write_transactional(batch, finer, query="parts", epoch=0)


# --- other attempts ---------------------------------------------------------------------------------------------------


def crafted(arena: Arena) -> Crafted:
    """A hand that writes records of other attempts."""
    return Crafted(arena.servers, arena.topics, partition_count=arena.partition_count)


def test_an_attempt_that_nobody_decided_is_rolled_back_and_the_epoch_published_by_a_new_one(
    spark: SparkSession, arena: Arena
) -> None:
    whole = crafted(arena).half("left-0/00000001", arena.targets[0], value=b"old")
    crafted(arena).half("left-0/00000002", arena.targets[0], count=2, value=b"torn")

    done = write_transactional(numbers(spark, 2), settings_for(arena), query="left", epoch=0)

    assert Outcome.PUBLISHED is done.outcome
    assert ["v0", "v1"] == values(arena.wait_until_visible("left-0", count=2))
    assert {Resolution.ROLLBACK: 2, Resolution.COMMIT: 1} == resolved(arena, "left-0")
    # Its own process wakes up: too late.
    crafted(arena).op(whole, Resolution.COMMIT)
    arena.wait_until_applied(within=30)
    assert 2 == len(arena.visible("left-0"))


def test_a_commit_that_was_on_its_way_when_it_was_looked_for_counts(
    spark: SparkSession, arena: Arena
) -> None:
    old = crafted(arena).half("late-0/00000001", arena.targets[0], value=b"old")

    class Late(Sink):
        def take_over(self, log: EpochLog, attempts: Attempts) -> Attempts:
            assert [None] == [a.decision for a in attempts.values()]
            crafted(arena).op(old, Resolution.COMMIT)
            return super().take_over(log, attempts)

    done = Late(spark, settings_for(arena)).write(numbers(spark, 2), query="late", epoch=0)

    assert (Outcome.SKIPPED, ("late-0",)) == (done.outcome, done.skipped)
    assert ["old"] == values(arena.wait_until_visible("late-0"))
    assert {"late-0/00000001": 1} == attempts_in(arena, "late-0")


def test_of_two_runs_of_one_epoch_the_one_whose_half_records_are_complete_first_wins(
    spark: SparkSession, arena: Arena
) -> None:
    class Slow(Sink):
        def store(self, log: EpochLog, placed: DataFrame, nonce: str) -> None:
            crafted(arena).half("race-0/00000001", arena.targets[0], value=b"other")
            super().store(log, placed, nonce)

    with pytest.raises(FencedError, match="race-0/00000001 is another run's"):
        Slow(spark, settings_for(arena)).write(numbers(spark, 2), query="race", epoch=0)

    assert {Resolution.ROLLBACK: 1} == resolved(arena, "race-0")


def test_a_run_whose_epoch_was_taken_over_before_its_commit_says_so(
    spark: SparkSession, arena: Arena
) -> None:
    class Frozen(Sink):
        def commit(self, log: EpochLog, mine: list[Attempt]) -> None:
            write_transactional(
                numbers(spark, 1, name="new"), settings_for(arena), query="froze", epoch=0
            )
            super().commit(log, mine)

    with pytest.raises(FencedError, match="rolled back by a newer run"):
        Frozen(spark, settings_for(arena)).write(numbers(spark, 2), query="froze", epoch=0)

    arena.wait_until_applied(within=30)
    assert ["new0"] == values(arena.visible("froze-0"))


# --- kills ------------------------------------------------------------------------------------------------------------

STEPS = ("take_over", "store", "stored", "commit", "confirm", "ended")
"""Where the runs stand when they are killed: before each step, with half of the half records, and behind the last step."""

PROGRAM = """
import sys, threading
from txlayer.cli.spark.session import spark_session
from txlayer.core import codec
from txlayer_spark.jobs.sink import Sink, SinkSettings
servers, namespace, topic, *steps = sys.argv[1:]
settings = SinkSettings(bootstrap_servers=servers, namespace=namespace, topic=topic, producer_group="orders")

def stand(name):
    print(name, flush=True)
    threading.Event().wait()

class Stopping(Sink):
    def __init__(self, spark, step):
        super().__init__(spark, settings)
        self.step = step
        for name in ("take_over", "store", "commit", "confirm"):
            if name == step:
                setattr(self, name, lambda *_: stand(step))
    def store(self, log, placed, nonce):
        if self.step == "stored":
            write, log.write = log.write, lambda records, role: write(records.limit(2), role)
        super().store(log, placed, nonce)
        if self.step == "stored":
            stand(self.step)

def run(spark, step):
    batch = spark.range(0, 4, 1, 2).selectExpr("concat('k', id) AS key", "concat('v', id) AS value")
    Stopping(spark, step).write(batch, query=step, epoch=0)
    stand(step)

with spark_session(master="local[2]", memory="1g") as spark:
    for step in steps:
        threading.Thread(target=run, args=(spark, step), daemon=True).start()
    threading.Event().wait()
"""


@pytest.mark.slow
def test_a_run_killed_at_any_step_and_started_again_publishes_its_epoch_once(
    spark: SparkSession, arena: Arena
) -> None:
    """One process runs an epoch of a query for each step, and is killed when each stands at its own."""
    job = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, arena.servers, arena.namespace, arena.targets[0], *STEPS],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
        env={**os.environ, "PYTHONPATH": ":".join(sys.path)},
    )
    standing: list[str] = []

    def watch() -> None:
        assert job.stdout is not None
        with job.stdout as lines:
            standing.extend(line.strip() for line in lines)

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        wait_until(
            lambda: set(STEPS) == set(standing) or job.poll() is not None,
            within=90,
            what="each run at its step",
        )
    finally:
        os.killpg(job.pid, signal.SIGKILL)
        job.wait()
        watcher.join()
    assert set(STEPS) == set(standing)
    records = {step: sum(attempts_in(arena, f"{step}-0").values()) for step in STEPS}
    assert {
        "take_over": 0,
        "store": 0,
        "stored": 2,
        "commit": 4,
        "confirm": 4,
        "ended": 4,
    } == records

    for step in STEPS:
        batch = numbers(spark, 4)
        done = write_transactional(batch, settings_for(arena), query=step, epoch=0)

        was_decided = step in ("confirm", "ended")
        assert (Outcome.SKIPPED if was_decided else Outcome.PUBLISHED) is done.outcome, step
        assert 4 == len(arena.wait_until_visible(f"{step}-0", count=4)), step
        assert 1 == resolved(arena, f"{step}-0")[Resolution.COMMIT], step
    assert {Resolution.ROLLBACK: 1, Resolution.COMMIT: 1} == resolved(arena, "stored-0")
    arena.wait_until_applied(within=30)
    assert [4] * len(STEPS) == [len(arena.visible(f"{step}-0")) for step in STEPS]


def test_a_stream_that_lost_its_note_of_a_batch_publishes_it_once(
    spark: SparkSession, arena: Arena, tmp_path: Path
) -> None:
    source, checkpoint = tmp_path / "source", tmp_path / "checkpoint"

    def run() -> str:
        stream = spark.readStream.schema("value STRING").text(str(source))
        query = (
            stream.writeStream.foreachBatch(transactional_batches(settings_for(arena)))
            .option("checkpointLocation", str(checkpoint))
            .trigger(availableNow=True)
            .start()
        )
        assert query.awaitTermination(60)
        return str(query.id)

    spark.range(3).selectExpr("concat('s', id) AS value").write.text(str(source))
    query = run()
    arena.wait_until_visible(f"{query}-0", count=3)
    shutil.rmtree(checkpoint / "commits")
    spark.range(2).selectExpr("concat('t', id) AS value").write.mode("append").text(str(source))

    assert query == run()

    assert 2 == len(arena.wait_until_visible(f"{query}-1", count=2))
    assert ["s0", "s1", "s2"] == sorted(values(arena.visible(f"{query}-0")))
    assert {Resolution.COMMIT: 1} == resolved(arena, f"{query}-0")


def test_settings_that_mean_nothing_are_refused() -> None:
    for wrong in (
        {"producer_group": "a b"}, {"window": timedelta(0)}, {"transaction_messages_max": 0},
        {"transaction_bytes_max": 0},
    ):  # fmt: skip
        with pytest.raises(ConfigError):
            SinkSettings(**{"bootstrap_servers": "x:1", "producer_group": "a", **wrong})  # type: ignore[arg-type]  # settings by name
