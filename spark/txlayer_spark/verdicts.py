"""The verdicts: what each one means, how bad it is, and the expression that finds it. Only this module has them.

docs/howto/reconcile.md shows the same table; a test compares them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from typing import NamedTuple

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from txlayer.core.checks import CLOCK_ERROR_MS
from txlayer.core.verification import Severity
from txlayer_spark import ledger
from txlayer_spark.events import LATER, SCHEDULED, by_number
from txlayer_spark.lines import sure


@dataclass(frozen=True, slots=True, kw_only=True)
class Judging:
    """What a judgement depends on beside the records."""

    cut_ms: int  # everything older than this was read, wherever it is
    grace_ms: int = 60_000  # what is younger than this before the cut may still be on its way
    overdue_ms: int = 900_000  # an age (after the immunity) at which an undecided or held transaction is worth a look
    clock_error_ms: int = CLOCK_ERROR_MS  # by how much the clocks of two brokers may differ
    op_gaps: Mapping[int, Sequence[tuple[int, int | None]]] = field(default_factory=dict)
    """{partition of op: (offset from which lines are missing, append time of the first record behind them; None: none is there)}."""


class Verdict(NamedTuple):
    """One verdict."""

    name: str
    severity: Severity
    means: str


_FAULT, _WARNING, _GOOD = Severity.FAULT, Severity.WARNING, Severity.GOOD
VERDICTS = (
    Verdict(
        "out_of_window",
        _WARNING,
        "not judged: one of its half records was gone before it could be read, or one of its topics was not read",
    ),
    Verdict("orphan", _FAULT, "visible, but there is no half record of it, or txlayer's headers on it are broken"),
    Verdict(
        "leaked",
        _FAULT,
        "visible, although it was rolled back, undecided or incomplete; or visible before its decision or its time",
    ),
    Verdict("duplicate", _FAULT, "a message is visible twice, or two attempts with one id are visible"),
    Verdict("torn", _FAULT, "only some messages of the transaction are visible"),
    Verdict(
        "corrupt",
        _FAULT,
        "the visible message is not the stored one: topic, key, value, headers, or a partition or timestamp that the user set",
    ),
    Verdict(
        "out_of_order",
        _FAULT,
        "visible after a later transaction of its ordering key, or before an earlier undecided one, or its messages are in reverse",
    ),
    Verdict("parked", _WARNING, "waits on the doubt topic for a person, with its content"),
    Verdict(
        "lost", _FAULT, "committed, but not visible, held or parked; or doubt contradicts op, or lacks its content"
    ),
    Verdict("conflicting", _WARNING, "settled; the opposite resolution came too late and was refused"),
    Verdict("rolled_back", _GOOD, "rolled back, or abandoned by an operator, and nothing is visible"),
    Verdict("ok", _GOOD, "committed, and every message is visible once, as it was stored"),
    Verdict("overdue", _WARNING, "undecided or held for longer than it should be"),
    Verdict("open", _GOOD, "undecided, held, or on its way"),
)
"""In the order of precedence: a transaction gets the first one whose condition holds. What may be gone makes one `out_of_window`
only where no other fault is certain.
"""

_LATE = "out_of_order"
SEVERITIES = {verdict.name: verdict.severity for verdict in VERDICTS}


def _has(name: str) -> Column:
    return F.coalesce(F.col(name), F.lit(0)) > 0


def _none(name: str) -> Column:
    return F.coalesce(F.col(name), F.lit(0)) == 0


def _count() -> Column:
    return F.coalesce("h_count", "v_count")


def _may_lack_lines(judging: Judging) -> Column:
    """Whether an op line that came before all others of it may be gone."""
    stored_ms = F.least("h_first_ms", "d_first_ms")  # of half there may be a late copy alone
    partition = F.coalesce("h_partition", "d_partition")
    until = {
        number: _NEVER if until_ms is None else until_ms + judging.clock_error_ms
        for number, gaps in judging.op_gaps.items()
        for start, until_ms in gaps
        if not start
    }
    # What was decided before a later gap is certain; of what was committed and is not on doubt, what was released as a whole, unless it
    # may have been given up there, or what was given up.
    is_timed = ledger.has_times()
    may_be_abandoned = _none("v_n") & F.isnull("o_abandon") & sure(ledger.doubt_state() == "")
    is_released = ~(is_timed & F.isnotnull("next_ms")) & ~may_be_abandoned
    ended = F.coalesce(F.when(is_released, F.col("released")), F.when(~is_timed, F.col("o_abandon")))
    is_on_doubt = ~is_timed & sure(ledger.doubt_state() != "")
    ended = F.when(ledger.is_committed() & ~is_on_doubt, ended).otherwise(ledger.decision())
    found = F.coalesce(stored_ms, F.lit(0)) <= by_number(until, partition)
    for number, gaps in judging.op_gaps.items():
        for start, until_ms in gaps:
            if start:
                end_ms = _NEVER if until_ms is None else until_ms + judging.clock_error_ms
                is_older = F.coalesce(stored_ms, F.lit(0)) <= end_ms
                is_certain = sure(ledger.offset_of(ended) < start)
                found = sure(found) | ((partition == number) & is_older & ~is_certain)
    return found


def is_unknown(judging: Judging) -> Column:
    """Whether the records do not say what was decided."""
    return sure(_may_lack_lines(judging)) | (_none("h_n") & _none("k_n"))


_NEVER = 1 << 60  # later than any time


def _is_young(judging: Judging) -> Column:
    """Whether what is missing may still be on its way: also of one that was committed long ago, and left doubt or became visible
    in part a moment ago.
    """
    edge_ms = judging.cut_ms - judging.grace_ms
    # The time of what is visible may be the user's, of any year: of later than now it says nothing.
    shown = (
        F.col(name).between(edge_ms, judging.cut_ms + judging.clock_error_ms) for name in ("v_first_ms", "v_last_ms")
    )
    return reduce(Column.__or__, map(sure, shown), F.col("seen_ms") >= edge_ms)


def _conditions(judging: Judging) -> dict[str, Column]:  # the table of verdicts, in one piece
    """What must hold for each verdict, given that no earlier one does; of what `ledger.with_distinct` gives."""
    committed, rolled_back = ledger.is_committed(), ledger.is_rolled_back() | ledger.was_ended_without_half()
    visible, hidden = _has("v_n"), _none("v_n")
    is_known = _has("h_n") | F.isnotnull("d_last")
    unknown = is_unknown(judging)
    whole = (F.col("v_distinct") == _count()) & _none("lost_n") & _none("gone_n") & _none("hidden_n")
    released = F.isnotnull("released")
    state = F.coalesce(ledger.doubt_state(), F.lit(""))
    young = _is_young(judging)
    age_ms = judging.cut_ms - F.coalesce("h_first_ms", "born_ms") - ledger.immunity_ms()
    waits = state.isin("held", "waiting")
    is_timed = ledger.has_times() & released
    early = F.col("v_early_ms") < F.col("released_ms") - judging.clock_error_ms
    early = F.when(is_timed, F.col("is_early")).otherwise(early)
    abandoned = ledger.is_abandoned() & (hidden | ~released | is_timed)
    # Of what was released together before, all is visible, or nothing.
    given_up = abandoned & ~(is_timed & F.col("is_in_part"))
    # What doubt may say of what was committed and is not visible; of one with times, also while a part of it is.
    kept = (state.isin("parked-committed", LATER) | (waits & released)) & hidden
    is_put_off = (state == SCHEDULED) & ~F.col("is_lacking")
    kept_in_time = is_put_off | (state == LATER) | (F.col("is_behind") & (waits | (state == "parked-committed")))
    kept = F.when(is_timed, kept_in_time).otherwise(kept)
    is_gone = committed & ~abandoned & ~kept & ~young
    in_order = ledger.is_prepare_order() & F.isnotnull("h_key") & hidden & released
    # It may wait for one of its key that half has lost, as its own first record.
    may_wait = in_order & F.col("is_unplaced") & F.isnull("d_last") & F.isnull("d_parked_ms")
    lost = is_gone & _has("lost_n") & ~may_wait
    some = F.coalesce("h_distinct", "d_count") > F.col("lost_n") + F.col("gone_n") + F.col("hidden_n")
    unsettled = ~rolled_back & ~(committed & whole) & ~abandoned
    not_kept = is_known & unsettled & (state != "") & ~F.col("is_kept")
    undecided = ~committed & ~rolled_back
    forgotten = undecided & F.isnotnull("d_last") & (state == "") & ~young
    contradicted = undecided & state.isin("held", "waiting", "parked-committed", SCHEDULED) & ~young
    contrary = F.col("is_contradicted")
    cut_off = is_known & ledger.is_cut_off()
    is_late = F.when(is_timed & (state == SCHEDULED), F.col("next_ms") < judging.cut_ms - judging.overdue_ms).otherwise(
        (undecided | waits | (state == LATER)) & (age_ms > judging.overdue_ms)
    )
    faults = {
        "orphan": visible & ~is_known & ~(F.coalesce("v_gone", F.lit(0)) >= F.col("v_n")),
        "leaked": visible & is_known & ~unknown & (~released | early),
        "duplicate": visible & is_known & ((F.col("v_n") > F.col("v_distinct")) | (F.col("attempts_visible") > 1)),
        "torn": visible & ((lost & some) | (is_timed & F.col("is_part_torn") & ~young)) & ~unknown,
        "corrupt": visible & F.col("is_differing"),
        "lost": not_kept | ((lost | forgotten | contradicted) & ~unknown),
    }
    is_certain = reduce(lambda found, each: found | sure(each), faults.values(), F.lit(False))
    is_taken = F.when(abandoned, F.col("is_part_taken") & ~young).otherwise(is_put_off & F.col("is_taken"))
    uncertain = ~is_known | unknown | (is_gone & (_has("gone_n") | may_wait)) | (is_timed & is_taken)
    is_parked = (undecided & (state == "parked")) | (committed & (state == "parked-committed"))
    may_have_been = sure(in_order) | sure(abandoned & is_timed)
    return {
        **faults,
        "out_of_window": cut_off | (sure(uncertain) & ~is_certain),
        ledger.MAY_WAIT: may_have_been & is_known & ~unknown & ~cut_off,
        # Order is compared behind the judgement: `with_late`.
        _LATE: F.lit(False),
        "parked": (hidden | (is_timed & ~whole)) & is_parked & ~sure(abandoned) & F.col("is_kept"),
        "conflicting": contrary & ((rolled_back & hidden) | (committed & whole & visible) | given_up),
        "rolled_back": hidden & (rolled_back | abandoned),
        "ok": committed & visible & (whole | (is_timed & given_up)),
        "overdue": is_late,
        "open": F.lit(True),
    }


_FAULTY = frozenset({"leaked", "duplicate", "orphan", "corrupt", "out_of_order"})
SETTLED = _FAULTY | {"ok", "rolled_back", "conflicting", "out_of_window", ledger.MAY_WAIT}
"""Verdicts that only a further record of the transaction could change; the others are judged again by every run."""


def is_final(judging: Judging) -> Column:
    """Whether only a further record changes what a core was judged as (the column `verdict`)."""
    # While it is young nothing that is missing makes it torn, which goes before.
    may_be_torn = _is_young(judging) & _has("lost_n")
    # Others may wait for what is undecided.
    is_undecided = (F.col("verdict") == "leaked") & F.isnull(ledger.decision())
    return F.col("verdict").isin(*SETTLED) & ~((F.col("verdict") == "corrupt") & sure(may_be_torn)) & ~is_undecided


def verdict_column(judging: Judging) -> Column:
    conditions = _conditions(judging)
    first, *others = VERDICTS
    name = F.when(sure(conditions[ledger.MAY_WAIT]), ledger.MAY_WAIT).otherwise(first.name)
    chosen = F.when(sure(conditions[first.name]), name)
    return reduce(lambda found, v: found.when(sure(conditions[v.name]), v.name), others, chosen)


def with_less_fault(rows: DataFrame, judging: Judging, *attempt: str) -> DataFrame:
    """Rows of an attempt in several readings (`reading`) → the one with the least fault, of equals the first, with its `verdict`.

    Settling a transaction ends it on doubt: so for one on doubt, a reading that does not settle it. If nothing is wrong with the first
    reading, that one: a message lost by it may wait for others of its key, which only the whole ledger shows (`ledger.LOST_OR`).
    """
    faults = [name for name, severity in SEVERITIES.items() if severity is Severity.FAULT]
    # What is wrong in every reading chooses none, nor may it hide what is wrong in one: other attempts, and messages that are
    # visible twice or differ.
    same = {"attempts_visible": F.lit(1), "v_n": F.col("v_distinct"), "is_differing": F.lit(False)}
    alone = rows.withColumns({f"_{name}": F.col(name) for name in same} | same)
    alone = alone.withColumn("verdict", verdict_column(judging))
    is_fault = F.col("verdict").isin(*faults)
    is_kept = F.col("verdict").isin("ok", "rolled_back", "conflicting") & sure(ledger.doubt_state() != "")
    is_wrong = is_fault | is_kept
    is_unsure = is_kept | F.col("verdict").isin("out_of_window", ledger.MAY_WAIT)
    rank = F.when((F.col("reading") == 0) & ~is_wrong, -1).when(is_fault, 2).otherwise(is_unsure.cast("int"))
    of_attempt = Window.partitionBy(*attempt)
    least = F.min(F.struct(rank, "reading")).over(of_attempt)
    is_lost = F.max((F.col("reading") == 0) & ledger.is_missing_in_order()).over(of_attempt)
    alone = alone.withColumns({"_chosen": least["reading"], "_is_lost": is_lost})
    chosen = alone.where(F.col("reading") == F.col("_chosen")).withColumns({name: F.col(f"_{name}") for name in same})
    before = F.when(sure("_is_lost") & (F.col("reading") > 0), ledger.LOST_OR).otherwise("")
    chosen = chosen.withColumn("verdict", F.concat(before, verdict_column(judging)))
    return chosen.drop("_chosen", "_is_lost", *(f"_{name}" for name in same))


def with_late(rows: DataFrame, is_late: str) -> DataFrame:
    """Rows of the ledger with the verdict that those have which came too late (the column `is_late`; null: it did not).

    A verdict before `out_of_order` in the table stays. One after it is replaced if a message is visible.
    """
    names = [verdict.name for verdict in VERDICTS]
    behind = names[names.index(_LATE) + 1 :]
    found = F.col(is_late) & (F.col("visible_count") > 0) & F.col("verdict").isin(*behind)
    return rows.withColumn("verdict", F.when(sure(found), _LATE).otherwise(F.col("verdict")))


def is_transaction() -> Column:
    """Whether a core is of a transaction: an op line or a check alone names none, unless its half records are gone; what stood on doubt does."""
    return _has("h_n") | _has("v_n") | _has("o_gone") | F.isnotnull("d_count") | _has("k_n")


def exit_code(counts: Mapping[str, int]) -> int:
    """1 when a promise is broken, else 0."""
    return int(any(n and SEVERITIES[verdict] is Severity.FAULT for verdict, n in counts.items()))
