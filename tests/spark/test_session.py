"""A session: the one that is there, or one of a server elsewhere; what cannot do without a Java of its own says so at once."""

import sys

import pyspark
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from txlayer.errors import UsageError
from txlayer_spark import ledger, session, sink
from txlayer_spark.events import Said
from txlayer_spark.parse import HEADERS
from txlayer_spark.sessions import java_of


def test_a_process_that_has_a_session_gets_that_one(spark: SparkSession) -> None:
    # Python's object may be another one: behind a stream PySpark makes it anew.
    spark.conf.set("spark.txlayer.named", "this one")
    try:
        found = session(master="local[1]")
        assert "this one" == found.conf.get("spark.txlayer.named")
        assert spark.sparkContext is found.sparkContext
    finally:
        spark.conf.unset("spark.txlayer.named")


def test_a_session_in_which_an_empty_list_is_one_of_texts_judges_and_publishes(spark: SparkSession) -> None:
    name = "spark.sql.legacy.createEmptyCollectionUsingStringType"
    commit = f"named_struct('a', {Said.COMMIT:d}, 'pos', 1L, 'at_ms', 1L, 'due', 0L, '_is_complete', true)"
    rows = spark.sql(f"SELECT array({commit}) AS lines, array(5L) AS times, X'6B' AS key, X'76' AS value")
    rows = rows.withColumn("headers", F.lit(None).cast(HEADERS))
    spark.conf.set(name, "true")
    try:
        row = rows.select(ledger._released("lines", "times").alias("said"), sink._size().alias("size")).collect()[0]
    finally:
        spark.conf.unset(name)

    assert ([], [5]) == (row.said.parts, row.said.left)
    assert 2 == row.size


def test_what_needs_java_says_so_where_there_is_none() -> None:
    with pytest.raises(UsageError, match=r"publishing needs a driver with its own Java.*spark-submit"):
        java_of(object(), "publishing")  # type: ignore[arg-type]  # as a session of Spark Connect, which has no Java


def test_spark_connect_without_its_packages_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "grpc", None)  # as it is when it is not installed

    with pytest.raises(UsageError) as refused:
        session(remote="sc://127.0.0.1:9")

    assert f'pip install "pyspark[connect]=={pyspark.__version__}"' in str(refused.value)
