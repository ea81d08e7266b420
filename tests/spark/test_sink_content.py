"""Content that the sink publishes as it is, or refuses before anything is written."""

import pytest
from pyspark.sql import SparkSession

from tests.support.arena import Arena
from tests.support.broker import create_topic
from tests.support.spark_sink import attempts_in, numbers, settings_for, values
from tests.support.topic_records import Record, write_records
from txlayer.core import partitions
from txlayer.errors import RefusedRecordError, UsageError
from txlayer_spark import write_transactional
from txlayer_spark.jobs.sink import Outcome

pytestmark = [pytest.mark.kafka, pytest.mark.nightly]


def test_bytes_that_are_out_of_form_stop_no_epoch(spark: SparkSession, arena: Arena) -> None:
    """ "Nobody stops at bytes that are out of form": the nonce is too short."""
    home = partitions.half_partition(ordering_key=None, txn_id="odd-0", partition_count=arena.partition_count)
    header = b"1|odd-0/123|orders|" + arena.targets[0].encode() + b"|0/1|1700000000000|"
    write_records(arena.servers, [Record(arena.topics.half, b"x", b"k", [("txl", header)], home)])

    done = write_transactional(numbers(spark, 2), settings_for(arena), query="odd", epoch=0)

    assert Outcome.PUBLISHED is done.outcome
    assert ["v0", "v1"] == values(arena.wait_until_visible("odd-0", count=2))


def test_what_is_said_to_be_published_becomes_visible_also_with_many_headers(spark: SparkSession, arena: Arena) -> None:
    """A message with many headers, a little smaller than its topic allows."""
    small = create_topic(arena.servers, f"{arena.namespace}-tight", config={"max.message.bytes": "2000"})
    room = 2000 - 228 - 60
    rows = spark.range(1).selectExpr(
        f"repeat('x', {room}) AS value",
        "transform(sequence(1, 60), n -> struct('h' AS key, CAST('' AS BINARY) AS value)) AS headers",
    )
    try:
        done = write_transactional(rows, settings_for(arena, topic=small), query="tight", epoch=0)
    except RefusedRecordError:
        return

    assert Outcome.PUBLISHED is done.outcome
    arena.wait_until_applied(within=60)
    assert 1 == len(arena.visible("tight-0", topics=[small]))


def test_a_header_without_a_name_is_refused_before_anything_is_written(spark: SparkSession, arena: Arena) -> None:
    rows = spark.sql(
        "SELECT 'v' AS value, array(struct(CAST(NULL AS STRING) AS key, CAST('x' AS BINARY) AS value)) AS headers"
    )
    with pytest.raises(UsageError):
        write_transactional(rows, settings_for(arena), query="nameless", epoch=0)
    assert not attempts_in(arena, "nameless-0")


def test_headers_are_taken_by_their_names(spark: SparkSession, arena: Arena) -> None:
    rows = spark.sql("SELECT 'v' AS value, array(struct('one' AS value, 'name' AS key)) AS headers")
    try:
        write_transactional(rows, settings_for(arena), query="named", epoch=0)
    except UsageError:
        return
    (seen,) = arena.wait_until_visible("named-0")
    assert [("name", b"one")] == [h for h in seen.headers if not h[0].startswith("txl")]


def test_keys_values_and_headers_that_are_no_ascii_null_or_empty_come_through(
    spark: SparkSession, arena: Arena
) -> None:
    rows = spark.sql(
        "SELECT * FROM VALUES ('Zürich', 'naïve', array(struct('ключ' AS key, CAST('✓' AS BINARY) AS value))), "
        "(NULL, NULL, NULL), ('', '', array(struct('' AS key, CAST(NULL AS BINARY) AS value))) AS t(key, value, headers)"
    ).coalesce(1)
    write_transactional(rows, settings_for(arena), query="foreign", epoch=0)
    seen = arena.wait_until_visible("foreign-0", count=3)
    found = [(r.key, r.value, [h for h in r.headers if not h[0].startswith("txl")]) for r in seen]
    assert [
        ("Zürich".encode(), "naïve".encode(), [("ключ", "✓".encode())]),
        (None, None, []),
        (b"", b"", [("", None)]),
    ] == found
