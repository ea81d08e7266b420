"""Rows of the ledger: as they are stored, and as people read them. DataFrame → DataFrame. Never: what they are judged as.

Each value that is written costs time, each that nobody asks for costs nothing to make: so what is stored is numbers, those
that hardly any transaction has stand aside in one column (`more`), and names, times and lengths are made when somebody reads.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum
from functools import reduce

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from txlayer.core.messages import OrderMode, Resolution
from txlayer_spark import lines
from txlayer_spark.events import (
    LINE_BITS,
    PLACE_BITS,
    REASON_BITS,
    REASONS,
    SOURCE_BITS,
    SOURCES,
    Names,
)
from txlayer_spark.ledger import (
    core_columns,
    decision,
    doubt_state,
    is_committed,
    is_prepare_order,
    is_rolled_back,
)


class State(IntEnum):
    """`is_settled` of a stored row."""

    OPEN = 0  #: the next run judges it again
    SETTLED = 1  #: only a further record of the transaction changes it
    ASKED = 2  #: no row, but a core that cannot tell what became of its transaction: every record of it was folded again
    ALONE = 3  #: no row, but a core of what came without a half record, which may come yet


_MERGED: Mapping[str, tuple[str, ...]] = {
    "producer": ("h_group", "d_group"),
    "topics": ("h_topics", "v_topics"),
    "count": ("h_count", "d_count", "v_count"),
    "half_partition": ("h_partition", "d_partition", "v_partition", "o_partition"),
}
"""What several records of a transaction say: the first of them that is there."""
_PLAIN = (
    "nonce_max", "born_ms", "h_last", "h_last_ms", "h_key", "h_options", "o_commit", "o_commit_ms", "v_n", "v_place",
    "v_last_ms",
)  # fmt: skip
_MORE: Mapping[str, str | None] = {
    "h_first": "h_last",
    "h_first_ms": "h_last_ms",
    "v_first": "h_last",
    "v_first_ms": "v_last_ms",
    "v_topics": "topics",
    "v_distinct": "v_n",
    **dict.fromkeys(
        (
            "o_rollback", "o_rollback_ms", "o_abandon", "o_abandon_ms", "o_unknown", "c_asked", "c_first_ms", "c_last_ms", "c_refused",
            "d_last", "d_parked_ms",
        )
    ),
}  # fmt: skip
"""What is in `more`, and the column that nearly every transaction repeats in it (None: it has nothing there). `more` is null
for a transaction that is so in all of them: one message, decided by one commit, visible, never asked about."""


def to_stored(judged: DataFrame, *, keeps_core: bool) -> DataFrame:
    """Cores with the columns of `with_distinct`, `verdict` and `is_settled` → rows as they are stored.

    With `keeps_core`, those that are not settled hold their core too: it is what the next run carries on. Those without one are
    exact, folded from every record.
    """
    merged = judged.withColumns({name: F.coalesce(*columns) for name, columns in _MERGED.items()})
    is_usual = reduce(Column.__and__, (_is_usual(name, usual) for name, usual in _MORE.items()))
    is_kept = F.col("is_settled") != int(State.SETTLED) if keeps_core else F.lit(False)
    return merged.select(
        "txn_id",
        "verdict",
        *_MERGED,
        *_PLAIN,
        F.when(~is_usual, F.struct(*_MORE)).alias("more"),
        F.when(is_kept, F.struct(*core_columns())).alias("core"),
        F.lit(None if keeps_core else True).cast("boolean").alias("is_exact"),
        "is_settled",
    )


def _is_usual(name: str, usual: str | None) -> Column:
    return F.isnull(name) if usual is None else F.col(name).eqNullSafe(F.col(usual))


def unfolded(stored: DataFrame) -> DataFrame:
    """Rows as they are stored, with what is in `more` as columns like the others."""
    said = {
        name: F.when(F.isnotnull("more"), F.col(f"more.{name}")).otherwise(
            F.lit(None) if usual is None else F.col(usual)
        )
        for name, usual in _MORE.items()
    }
    return stored.withColumns(said).drop("more", "core")


def cores(stored: DataFrame) -> DataFrame:
    """The cores that stored rows hold."""
    return stored.where(F.isnotnull("core")).select("txn_id", "core.*")


def to_ledger(
    stored: DataFrame, names: Names, *beside: str
) -> DataFrame:  # one select is the row's contract
    """Rows as they are stored → rows for people: names instead of numbers, times, lengths between them, and columns `beside`."""
    position = decision()
    source = F.get(
        F.array(F.lit(""), *map(F.lit, SOURCES)),
        position.bitwiseAND((1 << SOURCE_BITS) - 1).cast("int"),
    )
    reason = F.get(
        F.array(*map(F.lit, REASONS)),
        F.col("d_last").bitwiseAND((1 << REASON_BITS) - 1).cast("int"),
    )
    decided_ms = F.least("o_commit_ms", "o_rollback_ms", "o_abandon_ms")
    place = F.col("v_place")
    key = [
        F.lpad(F.lower(F.hex(part)), 8, "0")
        for part in (F.shiftrightunsigned("h_key", 32), F.col("h_key").bitwiseAND(0xFFFFFFFF))
    ]
    resolution = F.when(is_committed(), Resolution.COMMIT.name).when(
        is_rolled_back(), Resolution.ROLLBACK.name
    )
    order = F.when(is_prepare_order(), OrderMode.PREPARE.value).otherwise(OrderMode.COMMIT.value)
    return unfolded(stored).select(
        "txn_id",
        nonce_text(F.col("nonce_max")).alias("nonce"),
        "verdict",
        names.text(F.col("producer"), names.groups).alias("producer_group"),
        names.texts(F.coalesce("topics", F.lit(0))).alias("topics"),
        F.col("count").cast("int").alias("message_count"),
        F.col("half_partition").cast("int").alias("half_partition"),
        F.col("h_first").alias("first_offset"),
        F.col("h_last").alias("last_offset"),
        F.when(F.isnotnull("h_key"), F.concat(*key)).alias("key_hash"),
        F.when(F.isnotnull("h_key"), order).alias("order"),
        _time("born_ms").alias("born_at"),
        _time("h_last_ms").alias("stored_at"),
        resolution.alias("resolution"),
        _time(decided_ms).alias("decided_at"),
        source.alias("decided_by"),
        F.shiftright(position, LINE_BITS + SOURCE_BITS).alias("decided_offset"),
        F.shiftright(position, SOURCE_BITS)
        .bitwiseAND((1 << LINE_BITS) - 1)
        .cast("int")
        .alias("decided_line"),
        _time("v_first_ms").alias("forwarded_at"),
        F.coalesce("v_n", F.lit(0)).cast("int").alias("visible_count"),
        F.coalesce("v_distinct", F.lit(0)).cast("int").alias("visible_messages"),
        names.texts(F.coalesce("v_topics", F.lit(0))).alias("visible_topics"),
        F.shiftright(place, PLACE_BITS).cast("int").alias("visible_partition"),
        place.bitwiseAND((1 << PLACE_BITS) - 1).alias("visible_offset"),
        F.coalesce("c_asked", F.lit(0)).cast("int").alias("checked_count"),
        _time("c_first_ms").alias("first_checked_at"),
        _time("c_last_ms").alias("last_checked_at"),
        F.coalesce("o_unknown", F.lit(0)).cast("int").alias("unknown_count"),
        F.coalesce("c_refused", F.lit(0)).cast("int").alias("refused_count"),
        doubt_state().alias("doubt_state"),
        F.when(reason != "", reason).alias("doubt_reason"),
        _time("d_parked_ms").alias("parked_at"),
        F.coalesce((source == "operator") | F.isnotnull("o_abandon_ms"), F.lit(False)).alias(
            "is_settled_by_hand"
        ),
        (decided_ms - F.col("h_last_ms")).alias("decide_ms"),
        (F.col("v_last_ms") - decided_ms).alias("forward_ms"),
        (F.col("v_last_ms") - F.col("h_first_ms")).alias("total_ms"),
        (F.col("c_first_ms") - F.col("h_last_ms")).alias("first_check_ms"),
        "is_settled",
        "run",
        *beside,
    )


def nonce_text(number: Column) -> Column:
    """A nonce as records name it; null without one."""
    return F.when(number >= 0, F.lpad(F.lower(F.hex(number)), 8, "0"))


def _time(ms: Column | str) -> Column:
    return lines.time_of(F.col(ms) if isinstance(ms, str) else ms)
