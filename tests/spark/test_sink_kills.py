"""An epoch is published once, wherever its process is killed: real kills, real topics, a real coordinator."""

import os
import shutil
from collections import Counter
from datetime import timedelta
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.support.arena import Arena
from tests.support.logs import header
from tests.support.spark_processes import killed_when
from tests.support.spark_sink import (
    attempts_in,
    numbers,
    resolved,
    settings_for,
    values,
    visible_of,
    wait_until_all_are_visible,
)
from txlayer.core import codec
from txlayer.core.messages import Resolution
from txlayer_spark import transactional_batches, write_transactional
from txlayer_spark.jobs import sink as jobs_sink
from txlayer_spark.jobs.sink import Outcome

pytestmark = pytest.mark.kafka

STORED = {"take_over": 0, "store": 4, "stored": 2, "commit": 4, "committing": 0, "confirm": 4, "ended": 4}
"""Where the runs stand when they are killed, and how many half records of theirs are there then: before each step, `store`
where an earlier attempt was just rolled back; with half of the half records; with the commit of one part of a split batch
(whose parts have ids of their own); behind the last step."""
IS_EVERY_STEP = bool(os.environ.get("EVERY_KILL"))
"""Set by `make kills`; else where the log differs most: half of the half records, no commit, half of the commits, a commit
that nobody saw."""
STEPS = tuple(STORED) if IS_EVERY_STEP else ("stored", "commit", "committing", "confirm")
PARTS = {"split": True, "transaction_messages_max": 2}

PROGRAM = """
import sys, threading
from dataclasses import replace
from txlayer.cli.spark import spark_session
from txlayer.core import codec
from txlayer_spark.jobs.sink import Sink, SinkSettings
servers, namespace, topic, *steps = sys.argv[1:]
settings = SinkSettings(bootstrap_servers=servers, namespace=namespace, topic=topic, producer_group="orders")

parted = replace(settings, split=True, transaction_messages_max=2)

def stand(name):
    print(f"at {name}", flush=True)
    threading.Event().wait(600)
    raise SystemExit(f"nobody killed this at {name}")

class Failing(Sink):
    def commit(self, log, mine):
        raise ConnectionError

class Stopping(Sink):
    def __init__(self, spark, step):
        super().__init__(spark, parted if step == "committing" else settings)
        self.step = step
        for name in ("take_over", "store", "commit", "confirm"):
            if name == step:
                setattr(self, name, lambda *_: stand(step))
    def store(self, log, placed, born_ms):
        if self.step == "stored":
            write, log.write = log.write, lambda records, role: write(records.limit(2), role)
        super().store(log, placed, born_ms)
        if self.step == "stored":
            stand(self.step)

    def commit(self, log, mine):
        super().commit(log, mine[:1] if self.step == "committing" else mine)
        if self.step == "committing":
            stand(self.step)

def run(spark, step):
    batch = spark.range(0, 4, 1, 2).selectExpr("concat('key-', id) AS key", "concat('v', id) AS value")
    if step == "store":
        try:
            Failing(spark, settings).write(batch, query=step, epoch=0)
        except ConnectionError:
            pass
    Stopping(spark, step).write(batch, query=step, epoch=0)
    stand(step)

quick = {
    "spark.sql.shuffle.partitions": "2",
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
}
with spark_session(master="local[2]", memory="1g", settings=quick) as spark:
    for step in steps:
        threading.Thread(target=run, args=(spark, step), daemon=True).start()
    # Until it is killed, or whoever would kill it is gone.
    sys.stdin.read()
"""


def run_until_each_step_and_kill(arena: Arena, folder: Path) -> None:
    """The program, until each of its runs stands at its step; then SIGKILL for all that belongs to it."""
    where = (arena.servers, arena.namespace, arena.targets[0])

    def standing() -> set[str]:
        lines = (folder / "said").read_text("utf-8").splitlines()
        return {line.partition(" ")[2] for line in lines if line.startswith("at ")}

    with killed_when(
        lambda: set(STEPS) == standing(), PROGRAM, *where, *STEPS, folder=folder, growing=lambda: len(standing())
    ):
        pass


@pytest.mark.fault("Spark: a job that publishes is killed at any step")
@pytest.mark.slow
@pytest.mark.nightly
def test_a_run_killed_at_a_step_and_started_again_publishes_its_epoch_once(
    spark: SparkSession, arena: Arena, tmp_path: Path
) -> None:
    """One process runs an epoch of a query for each step, and is killed when each stands at its own."""
    run_until_each_step_and_kill(arena, tmp_path)
    stored = {step: sum(attempts_in(arena, f"{step}-0").values()) for step in STEPS}
    assert {step: STORED[step] for step in STEPS} == stored

    ids = []
    for step in STEPS:
        settings = settings_for(arena, **(PARTS if step == "committing" else {}))
        done = write_transactional(numbers(spark, 4), settings, query=step, epoch=0)
        was_decided = step in ("confirm", "ended")
        assert (Outcome.SKIPPED if was_decided else Outcome.PUBLISHED) is done.outcome, step
        assert (step in ("confirm", "ended", "committing")) == (1 == len(done.skipped)), step
        ids += [*done.skipped, *(key.partition("/")[0] for key in done.published)]

    assert {1} == {resolved(arena, txn_id)[Resolution.COMMIT] for txn_id in ids}
    wait_until_all_are_visible(arena, ids, count=4 * len(STEPS))
    arena.wait_until_applied(within=30)
    found = Counter(
        (header(r.headers, codec.ID_HEADER) or b"").partition(b"-0")[0].decode() for r in visible_of(arena, ids)
    )
    assert dict.fromkeys(STEPS, 4) == found
    for step in {"store", "stored"} & set(STEPS):
        decided = resolved(arena, f"{step}-0")
        assert {Resolution.ROLLBACK: 1, Resolution.COMMIT: 1} == decided, step


@pytest.mark.fault("Spark: a job that publishes is killed at any step")
@pytest.mark.nightly
def test_a_stream_that_lost_its_note_of_a_batch_publishes_it_once_however_long_it_was_down(
    spark: SparkSession, arena: Arena, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Whatever is over is longer ago than the window.
    monkeypatch.setattr(jobs_sink, "CLOCK_MARGIN_MS", 0)
    settings = settings_for(arena, window=timedelta(milliseconds=1))
    source, checkpoint = tmp_path / "source", tmp_path / "checkpoint"

    def run() -> str:
        stream = spark.readStream.schema("value STRING").text(str(source))
        query = (
            stream.writeStream.foreachBatch(transactional_batches(settings))
            .option("checkpointLocation", str(checkpoint))
            .trigger(availableNow=True)
            .start()
        )
        assert query.awaitTermination(300)
        return str(query.id)

    spark.range(3).selectExpr("concat('s', id) AS value").write.text(str(source))
    query = run()
    arena.wait_until_visible(f"{query}-0", count=3)
    shutil.rmtree(checkpoint / "commits")
    (checkpoint / "commits").mkdir()
    spark.range(2).selectExpr("concat('t', id) AS value").write.mode("append").text(str(source))

    assert query == run()

    assert 2 == len(arena.wait_until_visible(f"{query}-1", count=2))
    assert ["s0", "s1", "s2"] == sorted(values(arena.visible(f"{query}-0")))
    assert {Resolution.COMMIT: 1} == resolved(arena, f"{query}-0")
