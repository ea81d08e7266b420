"""Shortcuts on the way from records to what happened give what the long way would give."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from txlayer.core import codec
from txlayer.core.messages import Undecodable
from txlayer_spark import lines
from txlayer_spark.events import EVENT_KINDS, Names, bit, events
from txlayer_spark.ledger import fold, with_distinct
from txlayer_spark.schemas import BRONZE, TopicKind
from txlayer_spark.shelf import to_stored

ID, ORIGIN, USER = ("txl-id", b"1"), ("txl-origin", b"2"), ("a", b"3")
AGAIN = ("txl-id", b"4")


@pytest.mark.parametrize("usual_place", [-1, -2, -3])
def test_the_last_header_of_a_name_is_found_wherever_it_stands(spark: SparkSession, usual_place: int) -> None:
    cases = [
        ([USER, ID, ORIGIN], b"1"),
        ([ORIGIN, ID], b"1"),
        ([ID, AGAIN], b"4"),
        ([ID, ORIGIN, AGAIN], b"4"),
        ([ID, AGAIN, ORIGIN], b"4"),
        ([ID, USER, USER, USER], b"1"),
        ([("txl-id", None), USER], None),
        ([ID, ("txl-id", None)], None),
        ([USER, ORIGIN], None),
        ([], None),
        (None, None),
    ]
    schema = "headers array<struct<key:string,value:binary>>"
    frame = spark.createDataFrame([(headers,) for headers, _ in cases], schema)

    found = frame.select(lines.header(F.col("headers"), "txl-id", usual_place=usual_place)).collect()

    assert [expected for _, expected in cases] == [None if value is None else bytes(value) for (value,) in found]


@pytest.mark.parametrize("count", [0, 1, 16, 17, 100])
def test_a_name_has_its_number_however_many_there_are(spark: SparkSession, count: int) -> None:
    names = Names(spark, groups=[], topics=[f"t{number}" for number in range(count)])
    asked = ["t0", "t15", "t16", "t99", "unknown", None]
    frame = spark.createDataFrame([(at, name) for at, name in enumerate(asked)], "at int, _name string")

    rows = names.number(frame, names.topics, "n").orderBy("at").collect()

    expected = [names.topics.index(name) if name in names.topics else None for name in asked]
    assert [(at, number) for at, number in enumerate(expected)] == [tuple(row) for row in rows]


@pytest.mark.parametrize("count", [0, 1, 62, 63, 64, 65, 200])
def test_the_topics_of_a_row_have_their_names_however_many_there_are(spark: SparkSession, count: int) -> None:
    names = Names(spark, groups=[], topics=[f"t{number}" for number in range(count)])
    numbers = [number for number in (0, 1, 61, 62, 63, 64, 199) if number < count]
    bits = bit(F.col("n"))
    frame = spark.createDataFrame([(n,) for n in [*numbers, None]], "n bigint")

    each = frame.select("n", names.texts(bits).alias("topics")).collect()
    every = frame.agg(names.texts(F.coalesce(F.bit_or(bits), F.lit(0))).alias("topics")).collect()

    shown = {number: f"t{number}" if number < 63 else "…" for number in numbers}
    expected: dict[int | None, list[str]] = {n: [text] for n, text in shown.items()}
    assert {**expected, None: []} == {row.n: row.topics for row in each}
    assert sorted(set(shown.values())) == sorted(every[0].topics)


def test_what_is_stored_has_the_same_columns_whatever_kinds_of_records_a_run_has_read(spark: SparkSession) -> None:
    names = Names(spark, groups=["shop"], topics=["orders"])
    bronze = spark.createDataFrame([], BRONZE)

    def stored(kinds: Sequence[TopicKind]) -> str:
        core = with_distinct(fold(events(bronze, names, kinds=kinds)))
        judged = core.withColumn("verdict", F.lit("ok")).withColumn("is_settled", F.lit(0))
        return to_stored(judged, keeps_core=True).schema.simpleString()

    every = stored(EVENT_KINDS)
    assert {every} == {stored(kinds) for count in (1, 2) for kinds in combinations(EVENT_KINDS, count)}


@pytest.mark.parametrize("form", ["half", "op"])
def test_a_name_is_as_long_as_the_codec_lets_it_be(spark: SparkSession, form: str) -> None:
    def line(txn_id: str = "a", nonce: str = "00000001", topic: str = "orders", born: str = "5") -> str:
        if form == "half":
            return f"1|{txn_id}/{nonce}|shop|{topic}|0/1|{born}|"
        return f"1|C|{txn_id}/{nonce}|shop|7|{born}|producer||"

    cases = [line()]
    cases += [line(txn_id="i" * count) for count in (0, 1, 127, 128, 129, 130, 300)]
    cases += [line(nonce="f" * count) for count in (0, 7, 8, 9)]
    cases += [line(topic="t" * count) for count in (0, 1, 248, 249, 250, 251, 600)]
    cases += [line(topic=topic) for topic in (".", "..", "...", ".a", "..a")]
    cases += [line(born="1" * count) for count in (0, 1, 18, 19, 20, 40)]
    pattern = lines.HALF if form == "half" else lines.OP
    frame = spark.createDataFrame([(at, case) for at, case in enumerate(cases)], "at int, line string")

    fitting = frame.where(F.col("line").rlike(pattern)).orderBy("at").collect()

    decode = codec.decode_half_header if form == "half" else lambda raw: codec.decode_op(raw.decode())
    good = [case for case in cases if not isinstance(decode(case.encode()), Undecodable)]
    assert good == [row.line for row in fitting]
    assert 10 < len(good) < len(cases) - 5
