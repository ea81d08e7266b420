"""How far back earlier attempts of an epoch are found: op and half within the window, doubt as a whole. No coordinator runs."""

import shutil
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pyspark import SparkContext
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

from tests.conftest import Broker
from tests.support.arena import make_arena
from tests.support.logs import read_log
from tests.support.planted import GROUP, PARTITIONS, Field, Message
from tests.support.spark_sink import numbers, settings_for
from tests.support.waiting import wait_until
from txlayer.core import codec
from txlayer.core.messages import OpMessage, Resolution
from txlayer.core.partitions import half_partition
from txlayer.errors import OutcomeUnknownError, UsageError
from txlayer_spark import Publication, SinkSettings, transactional_batches, write_transactional
from txlayer_spark.jobs import sink as jobs_sink
from txlayer_spark.jobs.sink import CLOCK_MARGIN_MS, Outcome

pytestmark = pytest.mark.kafka


def settings_in(field: Field, **more: Any) -> SinkSettings:
    """Into that namespace."""
    return SinkSettings(
        bootstrap_servers=field.servers, namespace=field.namespace, topic=field.orders, producer_group=GROUP, **more
    )


def home(txn_id: str, partition_count: int) -> int:
    """The partition of a transaction without an ordering key."""
    return half_partition(ordering_key=None, txn_id=txn_id, partition_count=partition_count)


def behind_what_is_written_ms() -> int:
    """A time that is later than all that was written, and not later than what will be."""
    written_ms = int(time.time() * 1000)
    return wait_until(lambda: max(int(time.time() * 1000) - written_ms - 1, 0), within=10, what="two ms") + written_ms


def after_the_window(spark: SparkSession, field: Field, query: str) -> Publication:
    """Publish epoch 0 when whatever op and half hold is too old to be looked at."""
    later_ms = int(time.time() * 1000) + 2 * CLOCK_MARGIN_MS
    return write_transactional(numbers(spark, 2), settings_in(field), query=query, epoch=0, since_ms=later_ms)


def ops(field: Field) -> list[OpMessage]:
    """Every line of op."""
    lines = [
        codec.decode_op(line)
        for record in read_log(field.servers, [field.topic("op")])[field.topic("op")]
        for line in (record.value or b"").decode().split("\n")
    ]
    return [op for op in lines if isinstance(op, OpMessage)]


def said(field: Field, key: str) -> Counter[Resolution]:
    """How often each resolution of an attempt was written."""
    return Counter(op.resolution for op in ops(field) if op.key == key)


def committed(field: Field) -> Counter[str]:
    """How often each id was committed."""
    return Counter(op.key.partition("/")[0] for op in ops(field) if op.resolution is Resolution.COMMIT)


def test_an_attempt_that_stands_on_doubt_is_found_however_old_it_is(spark: SparkSession, field: Field) -> None:
    held = field.prepare(key="held-0/0000000a")
    field.commit(held)
    field.doubt(held, "held", "topic-missing", decided_at=(0, 0))
    asked = field.prepare(key="asked-0/0000000a")
    field.doubt(asked, "open")

    # Coordinators are down: doubt does not show the commit.
    unread = field.prepare(key="unread-0/0000000a")
    field.doubt(unread, "open")
    field.commit(unread)

    outcomes = [after_the_window(spark, field, query).outcome for query in ("held", "unread")]
    published = after_the_window(spark, field, "asked")

    assert [Outcome.SKIPPED, Outcome.SKIPPED, Outcome.PUBLISHED] == [*outcomes, published.outcome]
    assert {Resolution.COMMIT: 1} == said(field, unread.key)
    assert {Resolution.ROLLBACK: 1} == said(field, asked.key)
    assert {Resolution.COMMIT: 1} == said(field, published.published[0])


def test_an_attempt_that_left_doubt_before_the_window_stops_the_epoch_before_anything_is_written(
    spark: SparkSession, field: Field
) -> None:
    ended = field.prepare(key="ended-0/0000000a")
    field.commit(ended)
    field.doubt(ended, "open")
    field.doubt(ended, "ended")

    with pytest.raises(OutcomeUnknownError, match="name a longer one"):
        after_the_window(spark, field, "ended")

    half = read_log(field.servers, [field.topic("half")])[field.topic("half")]
    assert len(ended.offsets) == len(half)


def test_an_attempt_that_began_before_the_window_is_found_as_a_whole(
    spark: SparkSession, field: Field, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jobs_sink, "CLOCK_MARGIN_MS", 0)
    messages = [Message(field.orders)] * 2
    first = field.prepare(*messages, key="long-0/0000000a", indices=[0])
    since_ms = behind_what_is_written_ms()
    field.commit(field.prepare(*messages, key=first.key, indices=[1], born_ms=first.born_ms))

    again = write_transactional(numbers(spark, 2), settings_in(field), query="long", epoch=0, since_ms=since_ms)

    assert Outcome.SKIPPED is again.outcome
    assert {Resolution.COMMIT: 1} == said(field, first.key)


@pytest.mark.nightly
def test_a_commit_that_names_another_ones_half_record_before_the_window_is_none(
    spark: SparkSession, field: Field, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jobs_sink, "CLOCK_MARGIN_MS", 0)
    other = field.prepare()
    query = next(name for name in (f"q{n}" for n in range(99)) if home(f"{name}-0", PARTITIONS) == other.partition)
    since_ms = behind_what_is_written_ms()
    field.commit(replace(other, key=f"{query}-0/0000000a"))

    done = write_transactional(numbers(spark, 2), settings_in(field), query=query, epoch=0, since_ms=since_ms)

    assert Outcome.PUBLISHED is done.outcome


def test_a_commit_older_than_the_window_is_not_found_and_the_epoch_is_published_again(
    spark: SparkSession, field: Field
) -> None:
    old = field.whole(key="old-0/0000000a")

    again = after_the_window(spark, field, "old")

    assert Outcome.PUBLISHED is again.outcome
    assert [{Resolution.COMMIT: 1}] * 2 == [said(field, key) for key in (old.key, *again.published)]


# --- an epoch that was divided otherwise ------------------------------------------------------------------------------


def names_with_parts_elsewhere(*parts: str, partition_count: int) -> Iterator[str]:
    """Queries whose epoch 0 lives in another partition than each of these parts of it."""
    for name in (f"parts{n}" for n in range(10_000)):
        if home(f"{name}-0", partition_count) not in {home(f"{name}-0.{part}", partition_count) for part in parts}:
            yield name


@pytest.mark.fault("Spark: an epoch is begun again with other limits, so in other parts")
def test_an_epoch_that_was_published_in_other_parts_is_refused_wherever_they_live(
    spark: SparkSession, broker: Broker
) -> None:
    arena = make_arena(broker.bootstrap_servers, partition_count=8, target_partitions=(1,))
    parts = [f"3-{part}-{number}" for part in range(3) for number in range(2)]
    queries, batch = names_with_parts_elsewhere(*parts, partition_count=8), numbers(spark, 10)
    whole, split = settings_for(arena), settings_for(arena, split=True, transaction_messages_max=5)

    for count, (first, second) in enumerate(((whole, split), (split, whole)), start=1):
        query = next(queries)
        done = write_transactional(batch, first, query=query, epoch=0)
        with pytest.raises(UsageError, match="was begun as"):
            write_transactional(batch, second, query=query, epoch=0)

        half = read_log(arena.servers, [arena.topics.half])[arena.topics.half]
        assert (Outcome.PUBLISHED, 10 * count) == (done.outcome, len(half))


@pytest.mark.fault("Spark: an epoch is begun again with other limits, so in other parts")
def test_an_epoch_with_an_undecided_part_on_doubt_is_refused_wherever_it_lives(
    spark: SparkSession, field: Field
) -> None:
    query = next(names_with_parts_elsewhere("3-0-0", partition_count=PARTITIONS))
    part = field.prepare(key=f"{query}-0.3-0-0/0000000a")
    field.doubt(part, "open")

    with pytest.raises(UsageError, match="was begun as"):
        write_transactional(numbers(spark, 2), settings_in(field), query=query, epoch=0)


# --- a checkpoint that is put back from a copy ------------------------------------------------------------------------


@pytest.mark.fault("Spark: the checkpoint of a stream is restored from a copy")
def test_a_checkpoint_that_is_put_back_from_a_copy_publishes_no_epoch_twice(
    spark: SparkSession, field: Field, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process goes on, or another one does."""
    monkeypatch.setattr(jobs_sink, "CLOCK_MARGIN_MS", 0)  # so that seconds are long
    monkeypatch.setattr(SparkContext, "getLocalProperty", lambda *_: "put-back")
    batches = [numbers(spark, count) for count in (2, 0, 2, 2)]

    write = transactional_batches(settings_in(field))
    for epoch in (0, 1, 2, 1, 2):
        write(batches[epoch], epoch)
    write = transactional_batches(settings_in(field))
    for epoch in (1, 2, 3):
        write(batches[epoch], epoch)

    assert {"put-back-0": 1, "put-back-2": 1, "put-back-3": 1} == committed(field)


@pytest.mark.fault("Spark: the checkpoint of a stream is restored from a copy")
@pytest.mark.slow
def test_new_rows_under_the_number_of_an_epoch_that_was_published_are_refused_and_not_skipped(
    spark: SparkSession, field: Field, tmp_path: Path
) -> None:
    """Spark plans the epochs behind a copy of the checkpoint anew, from where the copy ends to where the source ends now."""
    source, checkpoint, copy = tmp_path / "source", tmp_path / "checkpoint", tmp_path / "copy"
    source.mkdir()

    def run(row: str) -> None:
        (tmp_path / row).write_text(f"{row}\n", "utf-8")
        (tmp_path / row).rename(source / row)
        stream = spark.readStream.schema("value STRING").text(str(source)).writeStream
        stream = stream.foreachBatch(transactional_batches(settings_in(field))).trigger(availableNow=True)
        stream.option("checkpointLocation", str(checkpoint)).start().awaitTermination(300)

    run("first")
    shutil.copytree(checkpoint, copy)
    run("second")
    shutil.rmtree(checkpoint)
    shutil.copytree(copy, checkpoint)
    with pytest.raises(StreamingQueryException, match="restored from a copy"):
        run("third")

    stored = read_log(field.servers, [field.topic("half")])[field.topic("half")]
    assert [b"first", b"second"] == sorted(record.value or b"" for record in stored)


@pytest.mark.fault("Spark: the clock of the driver is ahead, or two runs begin in the same millisecond")
def test_an_epoch_that_is_tried_again_is_found_although_the_clock_of_the_driver_is_ahead(
    spark: SparkSession, field: Field, monkeypatch: pytest.MonkeyPatch
) -> None:
    ahead_ms = 2 * CLOCK_MARGIN_MS
    monkeypatch.setattr(jobs_sink, "_now_ms", lambda: int(time.time() * 1000) + ahead_ms)
    monkeypatch.setattr(SparkContext, "getLocalProperty", lambda *_: "ahead")
    write = transactional_batches(settings_in(field))
    write(numbers(spark, 2), 0)
    with monkeypatch.context() as broken:

        def nobody_answers(*_: Any) -> int:
            raise OutcomeUnknownError("no answer", txn_id="ahead-1", step="op")

        broken.setattr(jobs_sink.Sink, "confirm", nobody_answers)
        with pytest.raises(OutcomeUnknownError):
            write(numbers(spark, 2), 1)

    write(numbers(spark, 2), 1)

    assert {"ahead-0": 1, "ahead-1": 1} == committed(field)


def test_an_epoch_that_follows_a_published_one_is_looked_for_since_that_one_was_committed(
    spark: SparkSession, field: Field, monkeypatch: pytest.MonkeyPatch
) -> None:
    began: list[int | None] = []

    def published(*_: Any, since_ms: int | None, epoch: int, **__: Any) -> Publication:
        began.append(since_ms)
        if epoch == 4:
            return Publication("q-4", Outcome.SKIPPED)
        return Publication(f"q-{epoch}", Outcome.PUBLISHED, committed_ms=epoch)

    monkeypatch.setattr(jobs_sink.Sink, "write", published)
    monkeypatch.setattr(SparkContext, "getLocalProperty", lambda *_: "q")
    write = transactional_batches(settings_in(field))
    for epoch in (1, 2, 3, 2, 3, 4, 5, 6):
        write(spark.range(1), epoch)

    is_short = [since_ms is not None for since_ms in began]
    assert [False, True, True, False, True, True, False, True] == is_short
