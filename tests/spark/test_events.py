"""Shortcuts on the way from records to what happened give what the long way would give."""

from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from txlayer.core import codec
from txlayer.core.messages import Undecodable
from txlayer_spark import lines
from txlayer_spark.events import COLUMNS, EVENT_KINDS, Kind, Names, bit, events
from txlayer_spark.ledger import STRAY, fold_exactly
from txlayer_spark.parse import BRONZE

ID, ORIGIN, USER = ("txl-id", b"1"), ("txl-origin", b"2"), ("a", b"3")
AGAIN = ("txl-id", b"4")


def test_the_last_header_of_a_name_is_found_wherever_it_stands(spark: SparkSession) -> None:
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

    usual_indexs = (-1, -2, -3)
    found = frame.select(*(lines.header(F.col("headers"), "txl-id", usual_index=at) for at in usual_indexs)).collect()

    for number in range(len(usual_indexs)):
        values = [row[number] for row in found]
        assert [expected for _, expected in cases] == [None if value is None else bytes(value) for value in values]


def test_the_headers_of_a_user_are_those_that_are_not_ours_wherever_they_stand(spark: SparkSession) -> None:
    broken, other, nameless = ("a\ntxl-id", b"5"), ("txx", None), ("", b"6")
    cases: list[list[tuple[str, bytes | None]] | None] = [
        [USER, other, ID, ORIGIN],
        [ID, ORIGIN],
        [USER, USER],
        [ID, USER, ORIGIN],
        [ID, AGAIN, USER],
        [broken, ORIGIN],
        [USER, ID, broken],
        [USER, ("txl", None), ID, ORIGIN],
        [USER, ("txl", None)],
        [nameless, ID],
        [nameless],
        [],
        None,
    ]
    frame = spark.createDataFrame([(headers,) for headers in cases], "headers array<struct<key:string,value:binary>>")

    expected = [None if case is None else [each for each in case if not each[0].startswith("txl")] for case in cases]
    for usual in ((), ("txl",), ("txl-id", "txl-origin")):
        found = frame.select(lines.of_user(F.col("headers"), *usual).alias("user")).collect()
        assert expected == [row.user and [tuple(each) for each in row.user] for row in found], usual


def test_a_name_has_its_number_however_many_there_are(spark: SparkSession) -> None:
    every = {count: [f"t{number}" for number in range(count)] for count in (0, 1, 16, 17, 100)}
    asked = ["t0", "t15", "t16", "t99", "unknown", None]
    frame = spark.createDataFrame([(at, name) for at, name in enumerate(asked)], "at int, name string")
    for count, known in every.items():
        names = Names(spark, groups=[], topics=known)
        frame = names.number(frame.withColumn("_name", F.col("name")), names.topics, f"of_{count}")

    rows = frame.orderBy("at").collect()

    assert len(asked) == len(rows)
    for count, known in every.items():
        expected = [known.index(name) if name in known else None for name in asked]
        assert expected == [row[f"of_{count}"] for row in rows]


def test_the_topics_of_a_row_have_their_names_however_many_there_are(spark: SparkSession) -> None:
    numbers = (0, 1, 61, 62, 63, 64, 199)
    counts = (0, 1, 62, 63, 64, 65, 200)
    frame = spark.createDataFrame([(n,) for n in (*numbers, None)], "n bigint")
    texts, bits = {}, {}
    for count in counts:
        names = Names(spark, groups=[], topics=[f"t{number}" for number in range(count)])
        bits[count] = bit(F.when(F.col("n") < count, F.col("n")))
        texts[count] = names.texts

    each = frame.select("n", *(texts[count](bits[count]).alias(f"of_{count}") for count in counts)).collect()
    together = (texts[count](F.coalesce(F.bit_or(bits[count]), F.lit(0))).alias(f"of_{count}") for count in counts)
    (every,) = frame.agg(*together).collect()

    assert len(numbers) + 1 == len(each)
    for count in counts:
        shown = {n: f"t{n}" if n < 63 else "…" for n in numbers if n < count}
        assert {n: [shown[n]] if n in shown else [] for n in (*numbers, None)} == {
            row.n: row[f"of_{count}"] for row in each
        }
        assert sorted(set(shown.values())) == sorted(every[f"of_{count}"])


def test_what_happened_has_the_same_columns_whatever_kinds_of_records_a_run_has_read(spark: SparkSession) -> None:
    """What is stored follows from it: files of several runs are read as one."""
    names = Names(spark, groups=["shop"], topics=["orders"])
    bronze = spark.createDataFrame([], BRONZE)

    each = {kind: events(bronze, names, kinds=[kind]).schema.simpleString() for kind in EVENT_KINDS}

    assert {events(bronze, names).schema.simpleString()} == set(each.values())


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


def test_what_names_no_half_record_is_not_compared_with_each_attempt_of_its_millisecond(spark: SparkSession) -> None:
    """As many attempts on doubt as messages: each pair of them was a row."""
    count, most = 60, list[int]()
    alike = {"txn_id": "again", "partition": 0, "at_ms": 7, "born_ms": 5, "n": 1, "b": 0, "g": 1}
    attempts = [
        {**alike, "nonce": at, "pos": at, "d": at, **of_kind}
        for at in range(count)
        for of_kind in ({"kind": int(Kind.HALF), "idx": 0}, {"kind": int(Kind.DOUBT), "idx": 1, "w": at})
    ]
    messages = [{**alike, "kind": int(Kind.FORWARDED), "pos": count + at, "idx": 0, "c": at} for at in range(count)]
    kinds = ", ".join(f"{name} {'string' if name == 'txn_id' else 'bigint'}" for name in COLUMNS)
    rows = [tuple(row.get(name) for name in COLUMNS) for row in (*attempts, *messages)]
    happened = spark.createDataFrame(rows, kinds)

    def rows_of(plan: Any) -> int:
        """The most that a step of it gave."""
        found = plan.metrics().get("numOutputRows")
        below = [rows_of(plan.children().apply(at)) for at in range(plan.children().size())]
        return max([found.get().value() if found.isDefined() else 0, *below])

    def put(rows: DataFrame, step: str) -> DataFrame:
        if step == "attached":
            assert [STRAY] * count == [row.nonce for row in rows.collect()]
            most.append(rows_of(rows._jdf.queryExecution().executedPlan()))
        return rows

    nothing = spark.range(0).selectExpr("id AS b", "id AS until_ms", "false AS is_hidden")
    # What an adaptive plan did is in another one.
    spark.conf.set("spark.sql.adaptive.enabled", "false")
    try:
        fold_exactly(happened, nothing, shortened_partitions=(), clock_error_ms=0, put=put)
    finally:
        spark.conf.unset("spark.sql.adaptive.enabled")

    assert count <= most[0] < count * count
