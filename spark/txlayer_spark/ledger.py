"""What happened → one row per transaction. DataFrame → DataFrame; native functions only.

The *core* of a transaction is numbers that can be merged with what comes later: it is what a run carries on of
transactions that are not settled. What is stored of it, and what people read, is in rows.py.

Nearly every transaction is folded from numbers alone, by one hash aggregation. A few need every record at once: ids with
several attempts, with more messages than a bit set holds, with second copies, with op lines that name another offset.
`needs_every_record` says which, and `fold_exactly` folds them, rule by rule.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from txlayer_spark.events import REASON_BITS, STATE_BITS, STATES, Kind, Said

INDEX_BITS = 63
"""Messages of a transaction that one number tells apart."""

ALONE_MS = 86_400_000
"""How long an op line or a check waits for half records that were not read yet; a day's margin for clocks."""


class _Part(NamedTuple):
    """One column of the core: how it is folded, and of what."""

    fold: Callable[[Column], Column]
    of: Column


def _core() -> Mapping[str, _Part]:  # the table of what is folded, in one piece
    def when(kind: Kind, column: Column | str, *more: Column) -> Column:
        chosen = F.col("kind") == int(kind)
        for condition in more:
            chosen = chosen & condition
        return F.when(chosen, F.col(column) if isinstance(column, str) else column)

    def said(*words: Said) -> Column:
        return F.col("a").isin(*map(int, words))

    one, bit = F.lit(1).cast("bigint"), _index_bit()
    decided = said(Said.COMMIT, Said.ROLLBACK)
    last_doubt = F.shiftleft("pos", REASON_BITS + STATE_BITS)
    last_doubt = last_doubt.bitwiseOR(F.shiftleft("a", REASON_BITS)).bitwiseOR(
        F.coalesce("b", F.lit(0))
    )
    parked = F.col("a").isin(STATES.index("parked"), STATES.index("parked-committed"))
    return {
        "nonce_min": _Part(F.min, F.col("nonce")),
        "nonce_max": _Part(F.max, F.col("nonce")),
        "born_ms": _Part(F.min, F.col("born_ms")),
        "seen_ms": _Part(F.max, F.col("at_ms")),
        "h_n": _Part(F.sum, when(Kind.HALF, one)),
        "h_bits": _Part(F.bit_or, when(Kind.HALF, bit)),
        "h_count": _Part(F.max, when(Kind.HALF, "n")),
        "h_partition": _Part(F.max, when(Kind.HALF, "partition")),
        "h_first": _Part(F.min, when(Kind.HALF, "pos")),
        "h_last": _Part(F.max, when(Kind.HALF, "pos")),
        "h_first_ms": _Part(F.min, when(Kind.HALF, "at_ms")),
        "h_last_ms": _Part(F.max, when(Kind.HALF, "at_ms")),
        "h_hash": _Part(F.bit_xor, when(Kind.HALF, "hash")),
        "h_group": _Part(F.max, when(Kind.HALF, "a")),
        "h_topics": _Part(F.bit_or, when(Kind.HALF, "b")),
        "h_options": _Part(F.max, when(Kind.HALF, "c")),
        "h_key": _Part(F.max, when(Kind.HALF, "key")),
        "o_commit": _Part(F.min, when(Kind.OP, "pos", said(Said.COMMIT))),
        "o_commit_ms": _Part(F.min, when(Kind.OP, "at_ms", said(Said.COMMIT))),
        "o_rollback": _Part(F.min, when(Kind.OP, "pos", said(Said.ROLLBACK))),
        "o_rollback_ms": _Part(F.min, when(Kind.OP, "at_ms", said(Said.ROLLBACK))),
        "o_abandon_ms": _Part(F.max, when(Kind.OP, "at_ms", said(Said.ABANDON))),
        "o_unknown": _Part(F.sum, when(Kind.OP, one, said(Said.UNKNOWN))),
        "o_last_min": _Part(F.min, when(Kind.OP, "n", decided)),
        "o_last_max": _Part(F.max, when(Kind.OP, "n", decided)),
        "c_asked": _Part(F.sum, when(Kind.CHECK, one, F.col("a") == 1)),
        "c_first_ms": _Part(F.min, when(Kind.CHECK, "at_ms", F.col("a") == 1)),
        "c_last_ms": _Part(F.max, when(Kind.CHECK, "at_ms", F.col("a") == 1)),
        "c_refused": _Part(F.sum, when(Kind.CHECK, one, F.col("a") == 2)),
        "d_last": _Part(F.max, when(Kind.DOUBT, last_doubt)),
        "d_parked_ms": _Part(F.min, when(Kind.DOUBT, "at_ms", parked)),
        "d_partition": _Part(F.max, when(Kind.DOUBT, "partition")),
        "d_group": _Part(F.max, when(Kind.DOUBT, "c")),
        "d_count": _Part(F.max, when(Kind.DOUBT, "n")),
        "v_n": _Part(F.sum, when(Kind.FORWARDED, one)),
        "v_bits": _Part(F.bit_or, when(Kind.FORWARDED, bit)),
        "v_count": _Part(F.max, when(Kind.FORWARDED, "n")),
        "v_partition": _Part(F.max, when(Kind.FORWARDED, "partition")),
        "v_first": _Part(F.min, when(Kind.FORWARDED, "pos")),
        "v_first_ms": _Part(F.min, when(Kind.FORWARDED, "at_ms")),
        "v_last_ms": _Part(F.max, when(Kind.FORWARDED, "at_ms")),
        "v_hash": _Part(F.bit_xor, when(Kind.FORWARDED, "hash")),
        "v_topics": _Part(F.bit_or, when(Kind.FORWARDED, "b")),
        "v_place": _Part(F.min, when(Kind.FORWARDED, "c")),
    }


def _index_bit() -> Column:
    shift = F.least("idx", F.lit(INDEX_BITS)).cast("int")
    return F.call_function("shiftleft", F.lit(1).cast("bigint"), shift)


def core_columns() -> tuple[str, ...]:
    """What a core consists of, beside `txn_id`."""
    return tuple(_core())


def fold(happened: DataFrame, *, by: tuple[str, ...] = ("txn_id",)) -> DataFrame:
    """What happened (`events.COLUMNS`) → the core, one row per id."""
    # Shuffled as it is and folded behind it: before it there is next to nothing to fold, and a core is four times as wide.
    spread = happened.repartition(*by)
    parts = _core()
    return spread.groupBy(*by).agg(
        *(part.fold(part.of).alias(name) for name, part in parts.items())
    )


def merge(cores: DataFrame) -> DataFrame:
    """Cores of different runs → one per id."""
    parts = _core()
    return cores.groupBy("txn_id").agg(
        *(part.fold(F.col(name)).alias(name) for name, part in parts.items())
    )


def needs_every_record() -> Column:
    """Whether a core cannot tell what became of its transaction."""
    several = F.col("nonce_min") != F.col("nonce_max")
    large = (
        F.greatest(F.coalesce("h_count", "v_count"), F.coalesce("v_count", "h_count")) > INDEX_BITS
    )
    copies = F.col("h_n") > F.col("h_count")
    misnamed = (F.col("o_last_min") != F.col("h_last")) | (F.col("o_last_max") != F.col("h_last"))
    return (
        F.coalesce(several, F.lit(False))
        | F.coalesce(large, F.lit(False))
        | F.coalesce(copies, F.lit(False))
        | F.coalesce(misnamed, F.lit(False))
    )


def is_stranger() -> Column:
    """Whether a core is of something that came after its transaction was settled, or of nothing that was stored."""
    return F.isnull("h_n")


def may_come(cut_ms: int) -> Column:
    """Whether what a core is of is so young that the half records of its transaction may be read yet.

    The ends of one cut are not of one moment: brokers tell those of their own partitions, one after the other.
    """
    return F.col("seen_ms") >= cut_ms - ALONE_MS


def with_distinct(core: DataFrame) -> DataFrame:
    """The core with what `fold_exactly` counts record by record: messages stored and visible, attempts visible."""
    return core.withColumns(
        {
            "h_distinct": F.bit_count("h_bits").cast("bigint"),
            "v_distinct": F.bit_count("v_bits").cast("bigint"),
            "attempts_visible": F.lit(1).cast("bigint"),
        }
    )


def fold_exactly(happened: DataFrame) -> DataFrame:
    """What happened to some ids → a core per id and attempt, with the columns of `with_distinct`.

    A forwarded record belongs to the attempt whose half record it names; an op line counts when it names the last half
    record of its attempt, or a second copy of that.
    """
    half = happened.where(F.col("kind") == int(Kind.HALF))
    attempt = Window.partitionBy("txn_id", "nonce")
    ends = half.withColumn("_last", F.max("idx").over(attempt)).where(
        F.col("idx") == F.col("_last")
    )
    ends = ends.select("txn_id", "nonce", F.col("pos").alias("n")).distinct()
    places = half.select("txn_id", "partition", "pos", F.col("nonce").alias("_nonce")).distinct()
    ops = happened.where(F.col("kind") == int(Kind.OP))
    counting = ops.join(ends, ["txn_id", "nonce", "n"], "left_semi")
    alone = ops.join(half.select("txn_id", "nonce").distinct(), ["txn_id", "nonce"], "left_anti")
    forwarded = happened.where(F.col("kind") == int(Kind.FORWARDED))
    forwarded = forwarded.join(places, ["txn_id", "partition", "pos"], "left")
    forwarded = forwarded.withColumn("nonce", F.coalesce("_nonce", F.lit(-1))).drop("_nonce")
    once = half.dropDuplicates(["txn_id", "nonce", "idx"])
    others = happened.where(F.col("kind").isin(int(Kind.CHECK), int(Kind.DOUBT)))
    parts = [once, counting, alone, forwarded, others]
    every = parts[0]
    for part in parts[1:]:
        every = every.unionByName(part)
    by = ("txn_id", "nonce")
    counted = every.groupBy(*by).agg(
        F.count_distinct(F.when(F.col("kind") == int(Kind.HALF), F.col("idx"))).alias("h_distinct"),
        F.count_distinct(F.when(F.col("kind") == int(Kind.FORWARDED), F.col("idx"))).alias(
            "v_distinct"
        ),
    )
    folded = fold(every, by=by).join(counted, list(by))
    visible = F.sum((F.col("v_n") > 0).cast("bigint")).over(Window.partitionBy("txn_id"))
    return folded.withColumn(
        "attempts_visible", F.greatest(F.coalesce(visible, F.lit(0)), F.lit(1))
    ).drop("nonce")


# --- what a core says ---------------------------------------------------------------------------------------------------


def is_committed() -> Column:
    """Whether the decision is a commit."""
    return F.isnotnull("o_commit") & (
        F.isnull("o_rollback") | (F.col("o_commit") < F.col("o_rollback"))
    )


def is_rolled_back() -> Column:
    """Whether the decision is a rollback."""
    return F.isnotnull("o_rollback") & (
        F.isnull("o_commit") | (F.col("o_rollback") < F.col("o_commit"))
    )


def decision() -> Column:
    """The packed position of the decision; null without one."""
    return F.least("o_commit", "o_rollback")


def doubt_state() -> Column:
    """What doubt says of the transaction now; empty when it is settled there, null when it never stood there."""
    code = F.shiftright("d_last", REASON_BITS).bitwiseAND((1 << STATE_BITS) - 1)
    return F.get(F.array(*map(F.lit, STATES)), code.cast("int"))


def immunity_ms() -> Column:
    """The immunity that the producer asked for."""
    return F.shiftright(F.coalesce("h_options", F.lit(0)), 1)


def is_prepare_order() -> Column:
    """Whether a later one of its key waits for it before it is decided."""
    return F.coalesce(F.col("h_options"), F.lit(0)).bitwiseAND(1) == 1
