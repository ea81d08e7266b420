"""Bronze → one narrow row per thing that happened to a transaction. Numbers alone beside the id: what is shuffled is small,
and what is aggregated fits Spark's hash aggregation.

Columns: `txn_id`, `nonce` (null for forwarded records, which do not name it), `kind`, and numbers whose meaning depends on
it; the functions below say which. Never: what follows from them (ledger.py).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import IntEnum
from functools import reduce

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from txlayer.core.messages import OrderMode, ParkReason, Resolution, Source
from txlayer.core.transitions import TxnState
from txlayer_spark.parse import parse
from txlayer_spark.schemas import TopicKind

TOPIC_BITS = 63
"""Real topics that a row can tell apart; further ones share the last bit."""
LINE_BITS, SOURCE_BITS, PLACE_BITS, REASON_BITS, STATE_BITS = 16, 4, 44, 8, 4
SOURCES = tuple(source.value for source in Source)
STATES = ("", *(state.value for state in TxnState))
"""Of a doubt summary, by number; 0 is its end."""
REASONS = ("", *(reason.value for reason in ParkReason))


class Kind(IntEnum):
    """What happened."""

    HALF = 0
    OP = 1
    CHECK = 2
    DOUBT = 3
    FORWARDED = 4


class Said(IntEnum):
    """What an op line says."""

    COMMIT = 1
    ROLLBACK = 2
    UNKNOWN = 3
    ABANDON = 4


COLUMNS = (
    "txn_id", "nonce", "kind", "partition", "pos", "at_ms", "born_ms", "n", "idx", "hash", "a", "b", "c", "key",
)  # fmt: skip
EVENT_KINDS = (
    TopicKind.HALF,
    TopicKind.OP,
    TopicKind.CHECK,
    TopicKind.DOUBT,
    TopicKind.FORWARDED,
)


class Names:
    """Producer groups and real topics by number: what is short can be aggregated as a number, or as one bit."""

    def __init__(
        self, spark: SparkSession, *, groups: Sequence[str], topics: Sequence[str]
    ) -> None:
        """The position of a name is its number for ever."""
        self.groups, self.topics = tuple(groups), tuple(topics)
        self._spark = spark

    def number(self, frame: DataFrame, column: str, names: Sequence[str], alias: str) -> DataFrame:
        """The frame with `alias`: the number of the name in `column`, null for an unknown one."""
        rows = [
            F.struct(F.lit(name).alias("_name"), F.lit(number).cast("bigint").alias(alias))
            for number, name in enumerate(names)
        ]
        if not rows:
            return frame.withColumn(alias, F.lit(None).cast("bigint"))
        known = self._spark.range(1).select(F.inline(F.array(*rows)))
        joined = frame.join(F.broadcast(known), frame[column] == known["_name"], "left")
        return joined.drop("_name")

    def text(self, number: Column, names: Sequence[str]) -> Column:
        """The name of a number."""
        return F.get(F.array(*(F.lit(name) for name in names)), number.cast("int"))

    def texts(self, bits: Column) -> Column:
        """The topics whose bits are set; `…` stands for those that share the last bit."""
        shown = [*self.topics[:TOPIC_BITS], *(["…"] if len(self.topics) > TOPIC_BITS else [])]
        named = [
            F.when(bits.bitwiseAND(F.lit(1 << at)) != 0, F.lit(name))
            for at, name in enumerate(shown)
        ]
        return F.array_compact(F.array(*named)) if named else F.array().cast("array<string>")


def events(
    bronze: DataFrame, names: Names, *, kinds: Sequence[TopicKind] = EVENT_KINDS
) -> DataFrame:
    """Rows of bronze → what happened, `COLUMNS`; what is not of our form is left out."""
    made = []
    for kind in kinds:
        parsed = parse(bronze.where(F.col("kind") == kind.value), kind)
        made.append(_MAKERS[kind](parsed.where(F.isnull("error")), names))
    return reduce(DataFrame.union, made)


def _half(rows: DataFrame, names: Names) -> DataFrame:
    """pos: offset; n: count; a: group; b: bit of the topic; c: immunity and mode; key: hash of the ordering key."""
    rows = names.number(rows, "producer_group", names.groups, "_group")
    rows = names.number(rows, "real_topic", names.topics, "_topic")
    halves = [F.conv(F.substring("key_hash", at, 8), 16, 10).cast("bigint") for at in (1, 9)]
    prepare = (F.col("order") == OrderMode.PREPARE.value).cast("bigint")
    return _row(
        rows, Kind.HALF, pos=F.col("offset"), n=F.col("count"), idx=F.col("index"),
        hash=_content(F.col("real_topic")), a=F.col("_group"), b=_bit(F.col("_topic")),
        c=F.shiftleft(F.coalesce("immunity_ms", F.lit(0)), 1).bitwiseOR(prepare),
        key=F.shiftleft(halves[0], 32).bitwiseOR(halves[1]),
    )  # fmt: skip


def _op(rows: DataFrame, _names: Names) -> DataFrame:
    """pos: offset, line and source packed; n: last half offset; a: what it says."""
    said = F.when(F.col("is_abandon"), Said.ABANDON)
    for resolution in Resolution:
        said = said.when(F.col("resolution") == resolution.name, Said[resolution.name])
    source = F.array_position(F.array(*map(F.lit, SOURCES)), F.col("source"))
    line = F.least("line", F.lit((1 << LINE_BITS) - 1)).cast("bigint")
    pos = F.shiftleft("offset", LINE_BITS + SOURCE_BITS)
    pos = pos.bitwiseOR(F.shiftleft(line, SOURCE_BITS)).bitwiseOR(source)
    return _row(rows, Kind.OP, pos=pos, n=F.col("last_offset"), a=said)


def _check(rows: DataFrame, _names: Names) -> DataFrame:
    """a: 1 a question, 2 a refusal; n: its number."""
    rows = rows.where(F.isnotnull("txn_id") & F.col("kind").isin("Q", "X"))
    kind = F.when(F.col("kind") == "Q", 1).otherwise(2)
    rows = rows.withColumn("partition", F.col("half_partition").cast("int"))
    return _row(rows, Kind.CHECK, pos=F.col("offset"), n=F.col("number"), a=kind)


def _doubt(rows: DataFrame, names: Names) -> DataFrame:
    """pos: offset; n: count; a: number of the state, 0 its end; b: of the reason; c: group."""
    rows = rows.where(F.col("record") == "summary")
    rows = rows.withColumn("_said", F.col("summary.producer_group"))
    rows = names.number(rows, "_said", names.groups, "_group")
    found = F.array_position(F.array(*map(F.lit, STATES)), F.col("summary.state"))
    # A state of a later version is one that is not settled.
    state = F.when(found > 0, found - 1).otherwise(1)
    reason = F.array_position(F.array(*map(F.lit, REASONS)), F.col("summary.reason")) - 1
    rows = rows.withColumn("born_ms", F.col("summary.born_ms"))
    return _row(
        rows, Kind.DOUBT, pos=F.col("offset"), n=F.col("summary.count"),
        a=F.when(F.col("is_tombstone"), 0).otherwise(state),
        b=F.greatest(F.coalesce(reason, F.lit(0)), F.lit(0)), c=F.col("_group"),
    )  # fmt: skip


def _forwarded(rows: DataFrame, names: Names) -> DataFrame:
    """partition, pos: of the half record; n: count; b: bit of the topic; c: partition and offset where it is visible."""
    rows = names.number(rows.where(F.isnotnull("txn_id")), "topic", names.topics, "_topic")
    place = F.shiftleft(F.col("partition").cast("bigint"), PLACE_BITS).bitwiseOR(F.col("offset"))
    rows = rows.withColumns(
        {"_place": place, "partition": F.col("half_partition").cast("int"), "nonce": F.lit(None)}
    )
    return _row(
        rows, Kind.FORWARDED, pos=F.col("half_offset"), n=F.col("count"), idx=F.col("index"),
        hash=_content(F.col("topic")), b=_bit(F.col("_topic")), c=F.col("_place"),
    )  # fmt: skip


def _content(topic: Column) -> Column:
    """What must be the same in a half message and in what was forwarded of it."""
    return F.xxhash64(topic, F.col("index"), F.col("key"), F.col("value"), F.col("headers"))


def _bit(number: Column) -> Column:
    shift = F.least(number, F.lit(TOPIC_BITS)).cast("int")
    return F.call_function("shiftleft", F.lit(1).cast("bigint"), shift)


def _row(rows: DataFrame, kind: Kind, **numbers: Column) -> DataFrame:
    common = {
        "txn_id": F.col("txn_id"),
        "nonce": F.conv("nonce", 16, 10).cast("bigint"),
        "kind": F.lit(int(kind)),
        "partition": F.col("partition").cast("int"),
        "at_ms": F.unix_millis("timestamp"),
        "born_ms": F.col("born_ms"),
    }
    columns = {**common, **{name: column.cast("bigint") for name, column in numbers.items()}}
    nothing = F.lit(None).cast("bigint")
    return rows.select(*(columns.get(name, nothing).alias(name) for name in COLUMNS))


_MAKERS: dict[TopicKind, Callable[[DataFrame, Names], DataFrame]] = {
    TopicKind.HALF: _half,
    TopicKind.OP: _op,
    TopicKind.CHECK: _check,
    TopicKind.DOUBT: _doubt,
    TopicKind.FORWARDED: _forwarded,
}
