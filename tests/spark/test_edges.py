"""What bronze cannot read of a real topic is known, and excuses what is missing there and nothing else."""

import time
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import NewPartitions  # type: ignore[attr-defined]  # its stub forgets NewPartitions
from pyspark.sql import SparkSession

from tests.support.broker import create_topic
from tests.support.planted import PARTITIONS, Field, Message
from tests.support.spark_audit import HOUR_MS, Audit
from tests.support.waiting import wait_until
from txlayer.errors import UsageError
from txlayer_spark.catalog import Reader
from txlayer_spark.jobs.bronze import _Reading
from txlayer_spark.report import Summary, write_report
from txlayer_spark.shelf import LEDGER_VERSION

pytestmark = pytest.mark.kafka
APPEND = {"message.timestamp.type": "LogAppendTime"}


@pytest.fixture
def audit(spark: SparkSession, field: Field, tmp_path: Path) -> Audit:
    """The clocks of brokers are right."""
    return Audit(spark, field, tmp_path, clock_error_ms=0)


@pytest.mark.fault(
    "Spark: a topic is shortened by retention, compacted, deleted, or ends at the open Kafka transaction of a stranger",
    "Spark: two ledger runs overlap, or the cluster has other settings for writing",
)
def test_what_an_open_kafka_transaction_hides_is_open_and_what_compaction_may_have_taken_is_not_judged(
    spark: SparkSession, field: Field, audit: Audit, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also when that transaction ends while bronze reads, and the cluster leaves out the file by which a folder counts."""
    compacted = create_topic(
        field.servers,
        f"{field.namespace}-compacted",
        config={"message.timestamp.type": "LogAppendTime", "cleanup.policy": "compact"},
    )
    # Open for as long as the test takes, wherever it runs.
    stranger = Producer(
        {"bootstrap.servers": field.servers, "transactional.id": field.namespace, "transaction.timeout.ms": 900_000}
    )
    stranger.init_transactions(30)
    stranger.begin_transaction()
    stranger.produce(field.stock, b"of a stranger", partition=0)
    assert 0 == stranger.flush(30)
    good, behind = field.whole(), field.whole(Message(field.stock))
    not_judged = field.prepare(Message(compacted))
    lost, torn = field.prepare(), field.prepare(Message(field.orders), Message(field.stock))
    field.commit(not_judged, lost, torn)

    expected = {
        good.txn_id: "ok",
        behind.txn_id: "open",
        not_judged.txn_id: "out_of_window",
        lost.txn_id: "lost",
        torn.txn_id: "lost",
    }
    note_edges = _Reading._note_edges

    def when_it_has_ended(reading: _Reading) -> None:
        stranger.commit_transaction(30)
        note_edges(reading)

    with monkeypatch.context() as patched:
        patched.setattr(_Reading, "_note_edges", when_it_has_ended)
        settings = spark.sparkContext._jsc.hadoopConfiguration()
        settings.set("mapreduce.fileoutputcommitter.marksuccessfuljobs", "false")
        try:
            assert expected == audit.verdicts()
        finally:
            settings.unset("mapreduce.fileoutputcommitter.marksuccessfuljobs")
    assert [field.stock] == report_of(spark, field, tmp_path).hidden_topics
    assert {**expected, behind.txn_id: "ok"} == audit.verdicts()


def report_of(spark: SparkSession, field: Field, root: Path) -> Summary:
    """What the page shows; the page names each topic of which something could not be read."""
    page = root / "report.html"
    summary = write_report(
        spark,
        bronze=str(root / "bronze"),
        ledger=str(root / "ledger"),
        namespace=field.namespace,
        page=page,
        made_at=datetime.now(UTC),
    )
    said = page.read_text("utf-8").partition("What could not be read")[2]
    named = {*summary.unread_topics, *summary.hidden_topics, *(g["topic"] for g in summary.gaps)}
    assert set() == {topic for topic in named if topic not in said}
    return summary


def make_anew(field: Field, topic: str) -> None:
    """Delete a topic and create one of that name."""
    field.delete(topic)
    create_topic(field.servers, topic, partitions=PARTITIONS, config=APPEND)


@pytest.mark.nightly
def test_what_was_visible_on_a_topic_that_was_deleted_before_it_was_read_is_not_judged(
    spark: SparkSession, field: Field, audit: Audit, tmp_path: Path
) -> None:
    gone = field.whole(Message(field.stock))
    partly = field.whole(Message(field.orders), Message(field.stock))
    good, lost = field.whole(), field.prepare()
    field.commit(lost)
    field.delete(field.stock)

    expected = {gone.txn_id: "out_of_window", partly.txn_id: "out_of_window", good.txn_id: "ok", lost.txn_id: "lost"}
    assert expected == audit.verdicts()
    assert [field.stock] == report_of(spark, field, tmp_path).unread_topics

    # Another one of that name tells nothing of what was decided before it was there, and everything of what was later.
    create_topic(field.servers, field.stock, partitions=PARTITIONS, config=APPEND)
    for partition in range(PARTITIONS):
        whole = field.prepare(Message(field.stock))
        field.commit(whole)
        field.forward(whole, partition=partition)
        expected[whole.txn_id] = "ok"
    first_ms = int(time.time() * 1000)
    wait_until(lambda: int(time.time() * 1000) > first_ms, within=30, what="a later millisecond")
    later = field.prepare(Message(field.stock))
    field.commit(later)
    expected[later.txn_id] = "lost"

    assert expected == audit.verdicts()
    summary = report_of(spark, field, tmp_path)
    assert [] == summary.unread_topics
    assert {field.stock} == {gap["topic"] for gap in summary.gaps}


@pytest.mark.fault("Spark: a real topic is deleted and made again, and is longer than before")
@pytest.mark.nightly
def test_a_topic_that_bronze_found_deleted_and_that_is_made_anew_later_is_read_once(
    spark: SparkSession, field: Field, audit: Audit, tmp_path: Path
) -> None:
    """Where bronze had come to in the former one says nothing of the new one, in whichever run."""
    expected = {field.whole(Message(field.stock)).txn_id: "ok" for _ in range(3)}
    # Read beside the other topic: bronze sees at once that one of them is gone.
    expected[field.whole().txn_id] = "ok"
    assert expected == audit.verdicts()
    field.delete(field.stock)
    assert expected == audit.verdicts()
    create_topic(field.servers, field.stock, partitions=PARTITIONS, config=APPEND)

    for _ in range(2):
        expected |= {field.whole(Message(field.stock)).txn_id: "ok" for _ in range(5)}
        assert expected == audit.verdicts()
    assert [field.stock] == report_of(spark, field, tmp_path).unread_topics


@pytest.mark.fault("Spark: a real topic is deleted and made again, and is longer than before")
@pytest.mark.nightly
@pytest.mark.parametrize("count", [1, 5])
def test_a_topic_that_is_made_anew_while_bronze_reads_it_is_read_once(
    count: int, field: Field, audit: Audit, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is shorter than before, or longer."""
    expected = {field.whole(Message(field.stock)).txn_id: "ok" for _ in range(3)}
    assert expected == audit.verdicts()
    later: list[str] = []
    stream = _Reading._stream

    def meanwhile(reading: _Reading, reader: Reader) -> None:
        if field.stock in reader.topics and not later:
            make_anew(field, field.stock)
            later.extend(field.whole(Message(field.stock)).txn_id for _ in range(count))
        stream(reading, reader)

    monkeypatch.setattr(_Reading, "_stream", meanwhile)
    said = audit.verdicts()
    assert {**expected, **dict.fromkeys(later, "ok")} == said
    assert said == audit.verdicts()


@pytest.mark.fault("Spark: a real topic is deleted and made again, and is longer than before")
@pytest.mark.nightly
def test_a_topic_that_is_made_anew_after_a_kill_in_its_first_read_is_read_from_its_beginning(
    field: Field, audit: Audit, monkeypatch: pytest.MonkeyPatch
) -> None:
    field.whole(Message(field.stock))
    stream = _Reading._stream

    def killed(reading: _Reading, reader: Reader) -> None:
        stream(reading, reader)
        if field.stock in reader.topics:
            raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(_Reading, "_stream", killed)
        with pytest.raises(KeyboardInterrupt):
            audit.verdicts()
    make_anew(field, field.stock)
    expected = {field.whole(Message(field.stock)).txn_id: "ok" for _ in range(5)}

    assert expected.items() <= audit.verdicts().items()


@pytest.mark.nightly
def test_a_real_topic_whose_name_ends_with_half_hides_no_phantom(field: Field, audit: Audit) -> None:
    topic = create_topic(field.servers, f"{field.namespace}-first.half", partitions=PARTITIONS, config=APPEND)
    wholes = [field.whole(Message(topic)) for _ in range(6)]
    # Retention took the beginning of the real topic, not of the namespace's half.
    field.take((topic, 0, 6))
    field.forward(replace(wholes[0], key="phantom/0000000f", offsets=(0,), partition=0))

    assert "orphan" == audit.verdicts().get("phantom")


@pytest.mark.fault(
    "Spark: a topic is shortened by retention, compacted, deleted, or ends at the open Kafka transaction of a stranger"
)
@pytest.mark.nightly
@pytest.mark.parametrize("times", ["CreateTime", "LogAppendTime"])
def test_what_is_lost_after_a_gap_was_seen_is_lost_also_where_nothing_tells_how_old_the_gap_is(
    times: str, field: Field, audit: Audit
) -> None:
    """Producers' times say nothing of it, and behind the gap of a quiet partition there is no record."""
    topic = create_topic(field.servers, f"{field.namespace}-t", partitions=2, config={"message.timestamp.type": times})
    taken = field.whole(Message(topic))
    field.take((topic, 0, 1))
    audit.verdicts(later_ms=0)
    lost = field.prepare(Message(topic))
    field.commit(lost)
    if times == "CreateTime":
        field.whole(Message(topic))

    said = audit.verdicts()

    assert "lost" == said[lost.txn_id]
    assert "out_of_window" == said[taken.txn_id]


@pytest.mark.fault(
    "Spark: a topic is shortened by retention, compacted, deleted, or ends at the open Kafka transaction of a stranger"
)
@pytest.mark.nightly
def test_what_was_gone_of_an_added_partition_before_it_was_read_is_not_lost(field: Field, audit: Audit) -> None:
    field.whole(Message(field.stock))
    audit.verdicts(later_ms=0)
    for made in field.admin.create_partitions([NewPartitions(field.stock, PARTITIONS + 1)]).values():
        made.result(30)
    txn = field.prepare(Message(field.stock))
    field.commit(txn)
    # Its message, whatever it was.
    producer = Producer({"bootstrap.servers": field.servers})
    producer.produce(field.stock, b"gone", partition=PARTITIONS)
    assert 0 == producer.flush(30)
    field.take((field.stock, PARTITIONS, 1))

    assert "out_of_window" == audit.verdicts()[txn.txn_id]


@pytest.mark.fault("Spark: wrong clocks, times and counts of any size, values and keys that are swapped")
def test_a_wrong_clock_of_this_machine_is_held_against_what_the_brokers_append(field: Field, audit: Audit) -> None:
    """An hour behind when a gap is noted; then an hour ahead, while a coordinator runs and without one."""
    taken = field.whole(Message(field.stock))
    field.take((field.stock, 0, 1))
    audit.read(later_ms=-HOUR_MS)
    committed = field.prepare()
    field.commit(committed)
    group = field.topic("coordinator")
    coordinator = Consumer({"bootstrap.servers": field.servers, "group.id": group, "log_level": 0})
    coordinator.subscribe([field.topic("half")])
    wait_until(lambda: coordinator.poll(0.1) or coordinator.assignment(), within=30, what=f"a member of {group}")

    assert "open" == audit.verdicts(later_ms=HOUR_MS)[committed.txn_id]
    coordinator.close()
    assert {taken.txn_id: "out_of_window", committed.txn_id: "lost"} == audit.verdicts(later_ms=HOUR_MS)


@pytest.mark.fault("Spark: the records of one transaction are read in several runs, young or old, in any parts")
@pytest.mark.nightly
def test_a_transaction_of_a_topic_that_was_not_read_is_judged_when_it_is(field: Field, audit: Audit) -> None:
    lost = field.prepare(Message(field.stock))
    field.commit(lost)
    torn = field.prepare(Message(field.orders), Message(field.stock))
    field.commit(torn)
    field.forward(torn, 0)
    good = field.whole(Message(field.stock))

    first = audit.verdicts(topics=(field.orders,))
    assert {"out_of_window"} == set(first.values())

    said = audit.verdicts()
    assert {lost.txn_id: "lost", torn.txn_id: "torn", good.txn_id: "ok"} == said
    field.forward(lost)
    assert {**said, lost.txn_id: "ok"} == audit.verdicts()


@pytest.mark.nightly
def test_transactions_before_and_after_half_got_more_partitions_are_ok(field: Field, audit: Audit) -> None:
    """`txlayer topics widen`: in another partition the offsets of an ordering key begin anew."""
    keys = [b"key-%d" % number for number in range(8)]
    txns = [field.whole(ordering_key=key) for key in keys * 2]
    audit.verdicts()
    txns += [field.whole(ordering_key=key) for key in (*keys, None)]
    field.widen(5)
    txns += [field.whole(ordering_key=key) for key in (*keys, None)]

    said = audit.verdicts()

    assert {txn.txn_id: "ok" for txn in txns} == said
    assert said == audit.verdicts("built-anew")


@pytest.mark.nightly
def test_what_comes_late_behind_a_run_of_a_release_that_noted_no_half_partition_is_out_of_order(
    spark: SparkSession, field: Field, audit: Audit, tmp_path: Path
) -> None:
    first, second = field.prepare(ordering_key=b"k"), field.prepare(ordering_key=b"k")
    field.commit(first, second)
    field.forward(second)
    audit.verdicts()
    order = tmp_path / "ledger" / f"v{LEDGER_VERSION}" / "order" / "run=1"
    now = order.rename(tmp_path / "now")
    spark.read.parquet(str(now)).drop("half_partition").write.parquet(str(order))
    field.forward(first)

    assert {first.txn_id: "out_of_order", second.txn_id: "ok"} == audit.verdicts()


@pytest.mark.fault("Spark: a real topic is deleted and made again, and is longer than before")
@pytest.mark.nightly
def test_a_topic_that_was_made_anew_and_is_longer_now_is_read_from_its_beginning(field: Field, audit: Audit) -> None:
    before = [field.whole(ordering_key=b"k") for _ in range(2)]
    audit.verdicts()
    make_anew(field, field.orders)
    after = [field.whole(ordering_key=b"k") for _ in range(4)]

    said = audit.verdicts()

    assert {txn.txn_id: "ok" for txn in (*before, *after)} == said
    assert said == audit.verdicts()
    assert said == audit.verdicts("built-anew")

    # What the op log of before said is not known any more.
    make_anew(field, field.topic("op"))
    for _ in range(12):
        field.whole()
    with pytest.raises(UsageError, match="made anew"):
        audit.verdicts()
