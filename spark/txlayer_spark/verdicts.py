"""The verdicts: what each one means, how bad it is, and the expression that finds it. The one place for all of these.

docs/howto/reconcile.md shows the same table; a test compares them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from functools import reduce
from typing import NamedTuple

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from txlayer_spark.ledger import doubt_state, immunity_ms, is_committed, is_rolled_back


class Severity(Enum):
    """What a verdict asks for."""

    GOOD = "good"  #: nothing
    WARNING = "warning"  #: somebody should look; the exit code stays 0
    FAULT = "fault"  #: a promise is broken: exit code 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Judging:
    """What a judgement depends on beside the records."""

    cut_ms: int
    """Everything older than this was read, wherever it stands."""
    grace_ms: int = 60_000
    """What is younger than this before the cut may still be on its way."""
    overdue_ms: int = 900_000
    """An age (after the immunity) at which an undecided or held transaction is worth a look."""
    first_offsets: Mapping[int, int]
    """{half partition: first offset that was there to be read}; what is older cannot be judged."""
    unread_topics: int = 0
    """Bits of the real topics that nobody read."""


class Verdict(NamedTuple):
    """One verdict."""

    name: str
    severity: Severity
    means: str


_FAULT, _WARNING, _GOOD = Severity.FAULT, Severity.WARNING, Severity.GOOD
VERDICTS = (
    Verdict("out_of_window", _WARNING,
            "a half record of it is older than what was there to be read, or a topic of it was not read: not judged"),
    Verdict("orphan", _FAULT, "visible without a half record"),
    Verdict("leaked", _FAULT, "visible though rolled back or undecided"),
    Verdict("duplicate", _FAULT, "a message is visible twice, or two attempts under one id are; a replay by its id is none"),
    Verdict("torn", _FAULT, "only a part of the transaction is visible"),
    Verdict("corrupt", _FAULT, "what is visible is not what was stored: topic, key, value or headers differ"),
    Verdict("out_of_order", _FAULT, "visible after a later one of its ordering key"),
    Verdict("parked", _WARNING, "on the doubt topic for a person, with its content"),
    Verdict("lost", _FAULT, "committed, not visible, and not held or parked"),
    Verdict("conflicting", _WARNING, "settled, and a contrary resolution came too late and was refused"),
    Verdict("rolled_back", _GOOD, "rolled back, or given up by an operator, and nothing is visible"),
    Verdict("ok", _GOOD, "committed, and every message is visible once as it was stored"),
    Verdict("overdue", _WARNING, "undecided or held for longer than it should be"),
    Verdict("open", _GOOD, "undecided, held, or on its way"),
)  # fmt: skip
"""In the order of precedence: a transaction gets the first one whose condition holds."""

_LATE = "out_of_order"
SEVERITIES = {verdict.name: verdict.severity for verdict in VERDICTS}


def _has(name: str) -> Column:
    return F.coalesce(F.col(name), F.lit(0)) > 0


def _none(name: str) -> Column:
    return F.coalesce(F.col(name), F.lit(0)) == 0


def _count() -> Column:
    return F.coalesce("h_count", "v_count")


def _before_window(judging: Judging) -> Column:
    """Whether a half record of it stood where the log had been shortened already."""
    partition = F.coalesce("h_partition", "v_partition")
    first: Column = F.lit(None).cast("bigint")
    if judging.first_offsets:
        pairs = [F.lit(n) for pair in sorted(judging.first_offsets.items()) for n in pair]
        first = F.try_element_at(F.create_map(*pairs), partition.cast("int")).cast("bigint")
    return F.least("v_first", "h_first", "o_last_min") < F.coalesce(first, F.lit(0))


def _conditions(judging: Judging) -> dict[str, Column]:
    """What must hold for each verdict, given that no earlier one does; of the core and the columns of `with_distinct`."""
    committed, rolled_back = is_committed(), is_rolled_back()
    visible, hidden = _has("v_n"), _none("v_n")
    whole = F.col("v_distinct") == _count()
    stored_whole = F.coalesce(F.col("h_distinct") == F.col("h_count"), F.lit(False))
    missing_half = visible & ~F.coalesce(F.col("h_distinct") >= F.col("v_distinct"), F.lit(False))
    young = F.col("seen_ms") >= judging.cut_ms - judging.grace_ms
    unread = F.coalesce("h_topics", F.lit(0)).bitwiseAND(judging.unread_topics) != 0
    state = F.coalesce(doubt_state(), F.lit(""))
    late = judging.cut_ms - F.coalesce("h_first_ms", "born_ms") - immunity_ms() > judging.overdue_ms
    waits = state.isin("held", "waiting")
    abandoned = committed & F.isnotnull("o_abandon_ms")
    lost = committed & hidden & ~abandoned & ~waits & ~young
    torn = committed & visible & ~whole & ~young
    contrary = F.isnotnull("o_commit") & F.isnotnull("o_rollback")
    twice = (F.col("v_n") > F.col("v_distinct")) | (F.col("attempts_visible") > 1)
    before = _before_window(judging) & (missing_half | ~stored_whole)
    return {
        "out_of_window": before | ((lost | torn) & unread),
        "orphan": missing_half,
        "leaked": visible & ~committed,
        "duplicate": visible & twice,
        "torn": torn,
        "corrupt": visible & whole & stored_whole & (F.col("v_hash") != F.col("h_hash")),
        # Order is compared behind the judgement: `with_late`.
        _LATE: F.lit(False),
        "parked": hidden & state.isin("parked", "parked-committed"),
        "lost": lost,
        "conflicting": contrary & (rolled_back | whole),
        "rolled_back": hidden & (rolled_back | abandoned),
        "ok": committed & whole,
        "overdue": (~(committed | rolled_back) | waits) & late,
        "open": F.lit(True),
    }


SETTLED = frozenset(
    {"ok", "rolled_back", "conflicting", "leaked", "duplicate", "orphan", "corrupt", "out_of_order", "out_of_window"}
)  # fmt: skip
"""Verdicts that only a further record of the transaction could change; the others are judged again by every run."""


def verdict_column(judging: Judging) -> Column:
    """The verdict of a core."""
    conditions = _conditions(judging)
    first, *others = VERDICTS
    chosen = F.when(_sure(conditions[first.name]), first.name)
    return reduce(lambda found, v: found.when(_sure(conditions[v.name]), v.name), others, chosen)


def _sure(condition: Column) -> Column:
    return F.coalesce(condition, F.lit(False))


def with_late(rows: DataFrame, is_late: str) -> DataFrame:
    """Rows of the ledger with the verdict that those have which came too late (the column `is_late`; null: it did not).

    What comes before it in the table stays; what comes behind it and is visible as a whole is settled as it is.
    """
    names = [verdict.name for verdict in VERDICTS]
    behind = names[names.index(_LATE) + 1 :]
    whole = (F.col("visible_count") > 0) & (F.col("visible_messages") == F.col("message_count"))
    found = F.col(is_late) & whole & F.col("verdict").isin(*behind)
    return rows.withColumn("verdict", F.when(_sure(found), _LATE).otherwise(F.col("verdict")))


def is_transaction() -> Column:
    """Whether a core is of a transaction: an op line or a check alone names none."""
    return _has("h_n") | _has("v_n") | (F.coalesce(doubt_state(), F.lit("")) != "")


def exit_code(counts: Mapping[str, int]) -> int:
    """1 when a promise is broken, else 0."""
    return int(any(n and SEVERITIES[verdict] is Severity.FAULT for verdict, n in counts.items()))
