"""Shortcuts on the way from records to what happened give what the long way would give."""

from __future__ import annotations

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from txlayer_spark import lines
from txlayer_spark.events import Names

ID, ORIGIN, USER = ("txl-id", b"1"), ("txl-origin", b"2"), ("a", b"3")
AGAIN = ("txl-id", b"4")


@pytest.mark.parametrize("usual_place", [-1, -2, -3])
def test_the_last_header_of_a_name_is_found_wherever_it_stands(
    spark: SparkSession, usual_place: int
) -> None:
    cases = [
        ([USER, ID, ORIGIN], b"1"), ([ORIGIN, ID], b"1"), ([ID, AGAIN], b"4"), ([ID, ORIGIN, AGAIN], b"4"),
        ([ID, AGAIN, ORIGIN], b"4"), ([ID, USER, USER, USER], b"1"), ([("txl-id", None), USER], None),
        ([ID, ("txl-id", None)], None), ([USER, ORIGIN], None), ([], None), (None, None),
    ]  # fmt: skip
    schema = "headers array<struct<key:string,value:binary>>"
    frame = spark.createDataFrame([(headers,) for headers, _ in cases], schema)

    found = frame.select(
        lines.header(F.col("headers"), "txl-id", usual_place=usual_place)
    ).collect()

    assert [expected for _, expected in cases] == [
        None if value is None else bytes(value) for (value,) in found
    ]


@pytest.mark.parametrize("count", [0, 1, 16, 17, 100])
def test_a_name_has_its_number_however_many_there_are(spark: SparkSession, count: int) -> None:
    names = Names(spark, groups=[], topics=[f"t{number}" for number in range(count)])
    asked = ["t0", "t15", "t16", "t99", "unknown", None]
    frame = spark.createDataFrame(
        [(at, name) for at, name in enumerate(asked)], "at int, _name string"
    )

    rows = names.number(frame, names.topics, "n").orderBy("at").collect()

    expected = [names.topics.index(name) if name in names.topics else None for name in asked]
    assert [(at, number) for at, number in enumerate(expected)] == [tuple(row) for row in rows]
