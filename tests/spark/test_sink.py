"""A batch of Spark is published all or nothing, and once per epoch: real topics and a real coordinator."""

import time
from collections import Counter
from datetime import timedelta
from typing import Any

import pytest
from pyspark import SparkContext
from pyspark.sql import DataFrame, SparkSession

from tests.conftest import Broker
from tests.support import crafted as crafted_records
from tests.support.arena import Arena, make_arena
from tests.support.broker import create_topic
from tests.support.crafted import Crafted
from tests.support.logs import header
from tests.support.spark_sink import attempts_in, numbers, resolved, settings_for, values, wait_until_all_are_visible
from tests.support.waiting import wait_until
from txlayer.adapters.kafka.admin import KafkaAdmin
from txlayer.config import ClientConfig
from txlayer.core import codec
from txlayer.core.messages import Resolution, Source
from txlayer.errors import (
    ConfigError,
    FencedError,
    ForbiddenTopicError,
    NotAcceptingError,
    OutcomeUnknownError,
    RefusedRecordError,
    ReservedHeaderError,
    TopicMismatchError,
    TxLayerError,
    UsageError,
)
from txlayer.operate.topics import accept
from txlayer_spark import SinkSettings, write_transactional
from txlayer_spark.epoch_log import Attempt, Attempts, EpochLog
from txlayer_spark.jobs.sink import Outcome, Sink
from txlayer_spark.sink import measure, messages

pytestmark = pytest.mark.kafka


def test_a_batch_becomes_visible_as_one_transaction_in_its_own_order(spark: SparkSession, arena: Arena) -> None:
    orders, stock = arena.targets
    batch = spark.sql(
        f"SELECT IF(id = 2, '{stock}', '{orders}') AS topic, IF(id = 1, NULL, concat('k', id)) AS key, "
        "concat('v', 9 - id) AS value, array(struct('h' AS key, CAST(id AS STRING) AS value)) AS headers "
        "FROM range(0, 4, 1, 2)"
    )

    done = write_transactional(batch, settings_for(arena, topic=None), query="whole", epoch=3)

    assert ("whole-3", Outcome.PUBLISHED, 1, ()) == (done.epoch_id, done.outcome, len(done.published), done.skipped)
    seen = arena.wait_until_visible("whole-3", count=4)
    assert ["v9", "v8", "v6"] == values([r for r in seen if r.topic == orders])
    assert [(b"k2", b"v7")] == [(r.key, r.value) for r in seen if r.topic == stock]
    assert [b"0", b"1", b"3"] == [header(r.headers, "h") for r in seen if r.topic == orders]
    assert [b"k0", None, b"k3"] == [r.key for r in seen if r.topic == orders]
    assert {done.published[0]: 4} == attempts_in(arena, "whole-3")


@pytest.mark.fault("Spark: a second copy of a task still writes, or a retried task has its rows in another order")
@pytest.mark.parametrize("said", ["true", "True", " TRUE"])  # as Spark reads it; PySpark writes a bool as "True"
def test_where_tasks_are_started_twice_nothing_is_published(
    said: str, spark: SparkSession, arena: Arena, monkeypatch: pytest.MonkeyPatch
) -> None:
    speculative = spark.sparkContext.getConf().set("spark.speculation", said)
    monkeypatch.setattr(SparkContext, "getConf", lambda _: speculative)

    with pytest.raises(ConfigError, match=r"spark\.speculation"):
        write_transactional(numbers(spark, 3), settings_for(arena), query="speculative", epoch=1)
    assert {} == attempts_in(arena, "speculative-1")


def test_an_epoch_that_was_published_is_skipped_whatever_it_holds_now(spark: SparkSession, arena: Arena) -> None:
    settings = settings_for(arena)
    # A commit that names a half record of another transaction decides nothing, and is no epoch that was published.
    hand = crafted(arena)
    nowhere = hand.home("again-1/0000000f")
    beside = next(key for n in range(99) if hand.home(key := f"elsewhere-{n}/00000001").partition == nowhere.partition)
    hand.op(nowhere, Resolution.COMMIT, last_offset=hand.half(beside, arena.targets[0]).offsets[0])
    first = write_transactional(numbers(spark, 3), settings, query="again", epoch=1)
    assert Outcome.PUBLISHED is first.outcome

    again = write_transactional(numbers(spark, 5), settings, query="again", epoch=1)
    following = write_transactional(numbers(spark, 2), settings, query="again", epoch=11)

    assert (Outcome.SKIPPED, ("again-1",)) == (again.outcome, again.skipped)
    assert Outcome.PUBLISHED is following.outcome
    arena.wait_until_visible("again-11", count=2)
    assert 3 == len(arena.wait_until_visible("again-1", count=3))
    assert 1 == len(attempts_in(arena, "again-1"))


@pytest.mark.fault(
    "Spark: a batch names a topic that coordinators refuse, a partition that does not exist, or has a message that its topic refuses"
)
def test_what_cannot_be_published_is_refused_before_anything_is_written(spark: SparkSession, arena: Arena) -> None:
    batch = numbers(spark, 3)
    with_header = batch.selectExpr("value", "array(struct('txl-id' AS key, value)) AS headers")
    forbidden = batch.selectExpr("value", f"'{arena.topics.op}' AS topic")
    nowhere = batch.selectExpr("value", "-1 AS partition")
    behind = batch.selectExpr("value", "1 AS partition", f"'{arena.targets[0]}' AS topic")
    many = spark.range(9_100).selectExpr("concat('t', id) AS topic", "'v' AS value")
    ours, named = settings_for(arena), settings_for(arena, topic=None)
    small = settings_for(arena, transaction_messages_max=2)
    few_bytes = settings_for(arena, transaction_bytes_max=10)
    faults: list[tuple[DataFrame, SinkSettings, type[TxLayerError], str]] = [
        (batch, small, UsageError, "3 messages .* transaction_messages_max is 2"),
        (batch, few_bytes, UsageError, "transaction_bytes_max 10"),
        (with_header, ours, ReservedHeaderError, "txl-id"),
        (forbidden, named, ForbiddenTopicError, "no real topic"),
        (nowhere, ours, UsageError, "partition that no topic has"),
        (behind, named, RefusedRecordError, "partition 1 does not exist, the topic has 1"),
        (behind.drop("topic"), ours, RefusedRecordError, "partition 1 does not exist, the topic has 1"),
        (batch, settings_for(arena, topic="never-made"), TopicMismatchError, "no such topic"),
        (batch, named, UsageError, "name the real topic"),
        (batch.withColumn("colour", batch["key"]), ours, UsageError, "colour"),
        (batch.drop("value"), ours, UsageError, "`value`"),
        (spark.range(2).selectExpr("id AS value"), ours, UsageError, "bytes or text"),
        (many, named, UsageError, "more than 1000 real topics"),
        (many.drop("topic"), settings_for(arena, split=True, transaction_bytes_max=1), UsageError, "10000 at most"),
    ]

    for frame, settings, kind, text in faults:
        with pytest.raises(kind, match=text):
            write_transactional(frame, settings, query="refused", epoch=0)
    for name, number in (("a/b", 0), ("a-1.b", 0), ("", 0), ("a", -1)):
        with pytest.raises(ConfigError):
            write_transactional(batch, ours, query=name, epoch=number)

    assert not attempts_in(arena, "refused-0")
    nothing = write_transactional(batch.limit(0), ours, query="refused", epoch=0)
    assert Outcome.EMPTY is nothing.outcome


@pytest.mark.fault(
    "Spark: a batch names a topic that coordinators refuse, a partition that does not exist, or has a message that its topic refuses"
)
@pytest.mark.nightly
def test_a_real_topic_that_coordinators_refuse_is_refused_as_producers_refuse_it(
    spark: SparkSession, arena: Arena
) -> None:
    topics = [*arena.topics.all, "__own", "orders.dlq", "g.orders.replay", "_own", "a.dlq.b", "dlq"]
    batch = spark.createDataFrame([(topic, "v") for topic in topics], "topic string, value string")

    def is_refused(topic: str, *, is_column: bool) -> bool:
        frame = batch.where(batch["topic"] == topic)
        named = None if is_column else topic
        rows = messages(frame if is_column else frame.drop("topic"), topic=named)
        try:
            measure(rows, namespace=arena.namespace, topic=named)
        except ForbiddenTopicError:
            return True
        return False

    for topic in topics:
        expected = arena.topics.is_system(topic)
        found = {is_refused(topic, is_column=is_column) for is_column in (True, False)}
        assert {expected} == found, topic


def test_a_message_that_the_half_topic_refuses_is_named_and_the_epoch_is_published_without_it(
    spark: SparkSession, arena: Arena
) -> None:
    huge = numbers(spark, 1).selectExpr("repeat(value, 1000000) AS value")

    with pytest.raises(RefusedRecordError, match=r"max\.message\.bytes"):
        write_transactional(huge, settings_for(arena), query="huge", epoch=0)

    assert not resolved(arena, "huge-0")
    done = write_transactional(numbers(spark, 1), settings_for(arena), query="huge", epoch=0)
    assert Outcome.PUBLISHED is done.outcome


@pytest.mark.nightly
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
    seen = wait_until_all_are_visible(arena, ids, count=20)
    assert sorted(f"v{n}" for n in range(20)) == sorted(values(seen))
    sizes = Counter(header(record.headers, codec.ID_HEADER) for record in seen)
    assert 4 >= max(sizes.values())
    finer = settings_for(arena, split=True, transaction_messages_max=3)
    with pytest.raises(UsageError, match="was begun as"):
        write_transactional(batch, finer, query="parts", epoch=0)


# --- other attempts ---------------------------------------------------------------------------------------------------


def crafted(arena: Arena) -> Crafted:
    """A hand that writes records of other attempts."""
    return Crafted(arena.servers, arena.topics, partition_count=arena.partition_count)


@pytest.mark.nightly
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


@pytest.mark.fault("Spark: two runs of one query publish an epoch at the same time")
def test_a_commit_that_was_on_its_way_when_it_was_looked_for_counts(spark: SparkSession, arena: Arena) -> None:
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


@pytest.mark.fault("Spark: two runs of one query publish an epoch at the same time")
def test_a_run_that_stores_the_rest_and_commits_while_it_is_taken_over_counts(
    spark: SparkSession, arena: Arena
) -> None:
    """It lives, and the other run found it while its half records were written."""
    hand, orders = crafted(arena), arena.targets[0]
    begun = hand.half("going-0/00000001", orders, count=2, value=b"old")

    class Late(Sink):
        def take_over(self, log: EpochLog, attempts: Attempts) -> Attempts:
            assert [(None, None)] == [(a.completed_at, a.decision) for a in attempts.values()]
            rest = hand.half(begun.key, orders, first=1, count=2, value=b"old")
            hand.op(rest, Resolution.COMMIT)
            return super().take_over(log, attempts)

    done = Late(spark, settings_for(arena)).write(numbers(spark, 2), query="going", epoch=0)

    assert (Outcome.SKIPPED, ("going-0",)) == (done.outcome, done.skipped)
    assert {begun.key: 2} == attempts_in(arena, "going-0")
    assert ["old", "old"] == values(arena.wait_until_visible("going-0", count=2))


@pytest.mark.fault("Spark: two runs of one query publish an epoch at the same time")
def test_of_two_runs_of_one_epoch_the_one_whose_half_records_are_complete_first_wins(
    spark: SparkSession, arena: Arena
) -> None:
    class Slow(Sink):
        def store(self, log: EpochLog, placed: DataFrame, born_ms: int) -> None:
            crafted(arena).half("race-0/00000001", arena.targets[0], value=b"other")
            super().store(log, placed, born_ms)

    # Runs are told apart by the millisecond in which they began.
    before = int(time.time() * 1000) - 1
    with pytest.raises(FencedError, match="race-0/00000001 is another run's"):
        Slow(spark, settings_for(arena), now_ms=lambda: before).write(numbers(spark, 2), query="race", epoch=0)

    assert {Resolution.ROLLBACK: 1} == resolved(arena, "race-0")


@pytest.mark.fault("Spark: the clock of the driver is ahead, or two runs begin in the same millisecond")
@pytest.mark.nightly
def test_two_runs_that_begin_in_the_same_millisecond_publish_their_epoch_once(
    spark: SparkSession, arena: Arena, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Slow(Sink):
        def store(self, log: EpochLog, placed: DataFrame, born_ms: int) -> None:
            with monkeypatch.context() as clock:
                clock.setattr(crafted_records, "_now_ms", lambda: born_ms)
                crafted(arena).half("twins-0/00000001", arena.targets[0], value=b"v0")
            super().store(log, placed, born_ms)

    done = Slow(spark, settings_for(arena)).write(numbers(spark, 1), query="twins", epoch=0)

    assert ("twins-0/00000001",) == done.published
    assert ["v0"] == values(arena.wait_until_visible("twins-0", count=1))
    assert {Resolution.COMMIT: 1, Resolution.ROLLBACK: 1} == resolved(arena, "twins-0")


@pytest.mark.fault(
    "Spark: a batch names a topic that coordinators refuse, a partition that does not exist, or has a message that its topic refuses"
)
def test_a_message_that_its_topic_does_not_take_is_refused_before_anything_is_written(
    spark: SparkSession, arena: Arena
) -> None:
    small = create_topic(arena.servers, f"{arena.namespace}-small", config={"max.message.bytes": "2000"})
    rows = spark.range(2).selectExpr(
        f"if(id = 1, '{small}', '{arena.targets[0]}') AS topic", "repeat('x', 2000) AS value"
    )

    with pytest.raises(RefusedRecordError, match="larger than the topic allows") as caught:
        write_transactional(rows, settings_for(arena, topic=None), query="large", epoch=0)

    assert (small, "too-large") == (caught.value.topic, caught.value.reason)
    assert not attempts_in(arena, "large-0")


def test_nothing_new_is_published_into_a_namespace_that_is_closed_and_what_was_begun_is_ended(
    spark: SparkSession, arena: Arena
) -> None:
    """Else it never drains, and what comes while half gets more partitions is quarantined."""
    settings = settings_for(arena)

    def publish(epoch: int) -> Outcome:
        return write_transactional(numbers(spark, 2), settings, query="closed", epoch=epoch).outcome

    assert Outcome.PUBLISHED is publish(0)
    crafted(arena).half("closed-1/00000001", arena.targets[0])
    with KafkaAdmin(ClientConfig(bootstrap_servers=arena.servers, namespace=arena.namespace)) as admin:
        accept(admin, arena.topics, wanted=False, now_ms=int(time.time() * 1000))
        try:
            assert Outcome.SKIPPED is publish(0)
            for epoch in (1, 2):
                with pytest.raises(NotAcceptingError, match="accept --on"):
                    publish(epoch)
        finally:
            accept(admin, arena.topics, wanted=True, now_ms=0)
    assert (1, 0) == (len(attempts_in(arena, "closed-1")), len(attempts_in(arena, "closed-2")))
    assert {Resolution.ROLLBACK: 1} == resolved(arena, "closed-1")
    assert [Outcome.PUBLISHED] * 2 == [publish(1), publish(2)]


@pytest.mark.fault("Spark: a second copy of a task still writes, or a retried task has its rows in another order")
@pytest.mark.nightly
def test_a_second_copy_of_a_task_that_still_writes_hides_nothing(spark: SparkSession, arena: Arena) -> None:
    class Twice(Sink):
        def store(self, log: EpochLog, placed: DataFrame, *named: Any) -> None:
            super().store(log, placed, *named)
            self.again = (placed, *named)

        def read_back(self, log: EpochLog, *named: Any) -> Any:
            write = log.write
            log.write = lambda records, role: write(records.limit(3), role)  # type: ignore[method-assign]  # a copy that began
            super().store(log, *self.again)
            log.write = write  # type: ignore[method-assign]  # it was put aside
            return super().read_back(log, *named)

        def commit(self, log: EpochLog, mine: list[Attempt]) -> None:
            super().store(log, *self.again)
            super().commit(log, mine)

    done = Twice(spark, settings_for(arena)).write(numbers(spark, 100), query="copies", epoch=0)

    assert Outcome.PUBLISHED is done.outcome
    seen = arena.wait_until_visible("copies-0", count=100)
    assert [f"v{n}" for n in range(100)] == values(seen)
    # What it left before it was looked for is rolled back; what it writes later nobody commits.
    assert [3, 100, 100] == sorted(attempts_in(arena, "copies-0").values())
    assert {Resolution.COMMIT: 1, Resolution.ROLLBACK: 1} == resolved(arena, "copies-0")


@pytest.mark.fault("Spark: a second copy of a task still writes, or a retried task has its rows in another order")
@pytest.mark.promise("P2")
def test_what_a_copy_of_a_task_leaves_is_rolled_back_whatever_coordinators_make_of_what_nobody_resolves(
    spark: SparkSession, broker: Broker
) -> None:
    class Twice(Sink):
        def store(self, log: EpochLog, placed: DataFrame, *named: Any) -> None:
            super().store(log, placed, *named)
            self.again = (placed, *named)

        def commit(self, log: EpochLog, mine: list[Attempt]) -> None:
            super().store(log, *self.again)
            super().commit(log, mine)

    arena = make_arena(broker.bootstrap_servers, partition_count=1, target_partitions=(1,))
    Twice(spark, settings_for(arena)).write(numbers(spark, 3), query="left-over", epoch=0)

    with arena.coordinator(unresolved="commit", transaction_age_max=timedelta(seconds=1)):
        wait_until(lambda: 2 == resolved(arena, "left-over-0").total(), within=30, what="both are decided")

    assert {Resolution.COMMIT: 1, Resolution.ROLLBACK: 1} == resolved(arena, "left-over-0")


@pytest.mark.fault("Spark: a second copy of a task still writes, or a retried task has its rows in another order")
def test_a_task_that_is_retried_with_its_rows_in_another_order_mixes_nothing(spark: SparkSession, arena: Arena) -> None:
    class Retried(Sink):
        def store(self, log: EpochLog, placed: DataFrame, *named: Any) -> None:
            write = log.write
            log.write = lambda records, role: write(records.limit(2), role)  # type: ignore[method-assign]  # it fails halfway
            super().store(log, placed.withColumn("_row", -placed["_row"]), *named)
            log.write = write  # type: ignore[method-assign]  # it was put aside
            super().store(log, placed, *named)

    Retried(spark, settings_for(arena)).write(numbers(spark, 4), query="mixed", epoch=0)

    assert ["v0", "v1", "v2", "v3"] == values(arena.wait_until_visible("mixed-0", count=4))


def test_an_attempt_that_no_rollback_ends_any_more_stops_its_epoch_until_it_is_abandoned(
    spark: SparkSession, arena: Arena
) -> None:
    orders, hand = arena.targets[0], crafted(arena)
    old = hand.half("stuck-0/00000001", orders, orders, value=b"old")
    hand.op(old, Resolution.COMMIT, last_offset=old.offsets[0])

    for _ in range(2):
        with pytest.raises(OutcomeUnknownError, match="txlayer tx abandon"):
            write_transactional(numbers(spark, 2), settings_for(arena), query="stuck", epoch=0)
    hand.op(old, Resolution.ROLLBACK, is_abandon=True, source=Source.OPERATOR, reason="zoe: stuck")
    done = write_transactional(numbers(spark, 2), settings_for(arena), query="stuck", epoch=0)

    assert Outcome.PUBLISHED is done.outcome
    assert ["v0", "v1"] == values(arena.wait_until_visible("stuck-0", count=2))
    # The coordinator sees it as Spark does: this commit comes too late.
    hand.op(old, Resolution.COMMIT)
    arena.wait_until_applied(within=30)
    assert 2 == len(arena.visible("stuck-0"))


@pytest.mark.fault("Spark: two runs of one query publish an epoch at the same time")
@pytest.mark.nightly
def test_a_run_whose_epoch_was_taken_over_before_its_commit_says_so(spark: SparkSession, arena: Arena) -> None:
    class Frozen(Sink):
        def commit(self, log: EpochLog, mine: list[Attempt]) -> None:
            write_transactional(numbers(spark, 1, name="new"), settings_for(arena), query="froze", epoch=0)
            super().commit(log, mine)

    with pytest.raises(FencedError, match="rolled back by a newer run"):
        Frozen(spark, settings_for(arena)).write(numbers(spark, 2), query="froze", epoch=0)

    arena.wait_until_applied(within=30)
    assert ["new0"] == values(arena.visible("froze-0"))


# --- transactions of other producer groups ----------------------------------------------------------------------------


@pytest.mark.fault("Spark: a service of another producer group uses the id of an epoch")
def test_an_epoch_decides_no_transaction_of_another_producer_group_that_has_its_id(
    spark: SparkSession, arena: Arena
) -> None:
    open_one = crafted(arena).half("order-1/00000001", arena.targets[0], value=b"1", group="shop")

    with pytest.raises(UsageError, match="producer group shop"):
        write_transactional(numbers(spark, 2), settings_for(arena), query="order", epoch=1)

    assert {} == resolved(arena, "order-1")
    crafted(arena).op(open_one, Resolution.COMMIT)
    assert ["1"] == values(arena.wait_until_visible("order-1"))


@pytest.mark.fault("Spark: a service of another producer group uses the id of an epoch")
def test_an_epoch_is_not_skipped_for_what_another_producer_group_committed_under_its_id(
    spark: SparkSession, arena: Arena
) -> None:
    whole = crafted(arena).half("invoice-7/00000001", arena.targets[0], group="shop")
    crafted(arena).op(whole, Resolution.COMMIT)

    with pytest.raises(UsageError, match="producer group shop"):
        write_transactional(numbers(spark, 2), settings_for(arena), query="invoice", epoch=7)

    assert 1 == len(arena.wait_until_visible("invoice-7"))
    assert {whole.key: 1} == attempts_in(arena, "invoice-7")


@pytest.mark.fault("Spark: a service of another producer group uses the id of an epoch")
def test_what_another_producer_group_writes_while_an_epoch_is_published_is_left_to_it(
    spark: SparkSession, arena: Arena, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Meanwhile(Sink):
        def store(self, log: EpochLog, placed: DataFrame, born_ms: int) -> None:
            monkeypatch.setattr(crafted_records, "_now_ms", lambda: born_ms)
            self.other = crafted(arena).half("beside-0/00000001", arena.targets[0], group="shop")
            super().store(log, placed, born_ms)

    run = Meanwhile(spark, settings_for(arena))
    with pytest.raises(FencedError, match="beside-0/00000001 is another run's"):
        run.write(numbers(spark, 2), query="beside", epoch=0)

    assert {Resolution.ROLLBACK: 1} == resolved(arena, "beside-0")
    crafted(arena).op(run.other, Resolution.COMMIT)
    assert ["value"] == values(arena.wait_until_visible("beside-0"))


@pytest.mark.fault("Spark: a service of another producer group uses the id of an epoch")
def test_an_epoch_is_not_skipped_for_what_another_producer_group_commits_during_a_take_over(
    spark: SparkSession, arena: Arena
) -> None:
    class Meanwhile(Sink):
        def take_over(self, log: EpochLog, attempts: Attempts) -> Attempts:
            other = crafted(arena).half("joined-0/00000002", arena.targets[0], group="shop")
            crafted(arena).op(other, Resolution.COMMIT)
            return super().take_over(log, attempts)

    crafted(arena).half("joined-0/00000001", arena.targets[0])
    with pytest.raises(UsageError, match="producer group shop"):
        Meanwhile(spark, settings_for(arena)).write(numbers(spark, 2), query="joined", epoch=0)


def test_settings_that_mean_nothing_are_refused() -> None:
    for wrong in (
        {"producer_group": "a b"},
        {"window": timedelta(0)},
        {"transaction_messages_max": 0},
        {"transaction_bytes_max": 0},
    ):
        with pytest.raises(ConfigError):
            SinkSettings(**{"bootstrap_servers": "x:1", "producer_group": "a", **wrong})  # type: ignore[arg-type]  # settings by name
