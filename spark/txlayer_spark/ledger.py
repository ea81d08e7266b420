"""What happened → one row per transaction. DataFrame → DataFrame; native functions only.

The *core* of a transaction is numbers that can be merged with later ones: a run carries on the cores of
transactions that are not settled. What is stored of a core, and what people read, is in shelf.py.

Nearly every transaction is folded from numbers alone, by one hash aggregation. A few need every record at once: ids with
several attempts, with more messages than a bit set holds, with second copies, with op lines that name another offset.
`needs_every_record` says which, and `fold_exactly` folds them, rule by rule.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from typing import NamedTuple

from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as F

from txlayer_spark.events import (
    COLUMNS,
    DUE_BIT,
    LATER,
    LINE_BITS,
    OFFSET_BITS,
    REASON_BITS,
    SCHEDULED,
    SOURCE_BITS,
    STATE_BITS,
    STATES,
    Held,
    Kind,
    Said,
    bit,
    claimed,
)
from txlayer_spark.lines import empty_array, sure

INDEX_BITS = 63  # messages of a transaction that one number tells apart

ALONE_MS = 86_400_000
"""How long an op line or a check waits for half records that were not read yet; a day's margin for clocks."""


class _Part(NamedTuple):
    """One column of the core: how it is folded, and of what."""

    fold: Callable[[Column], Column]
    of: Column


def core() -> Mapping[str, _Part]:  # the table of what is folded, in one piece
    def when(kind: Kind, column: Column | str, *more: Column) -> Column:
        chosen = F.col("kind") == int(kind)
        for condition in more:
            chosen = chosen & condition
        return F.when(chosen, F.col(column) if isinstance(column, str) else column)

    def said(*words: Said) -> Column:
        return F.col("a").isin(*map(int, words))

    one = F.lit(1).cast("bigint")
    index_bit = F.call_function("shiftleft", one, F.least("idx", F.lit(INDEX_BITS)).cast("int"))
    decided = said(Said.COMMIT, Said.ROLLBACK, Said.ABANDON)
    # Of 63 messages at most: more need every record.
    packed = F.shiftleft("idx", OFFSET_BITS).bitwiseOR(F.col("pos"))
    is_ours = F.col("kind").isin(int(Kind.HALF), int(Kind.OP))
    is_held, is_whole = F.col("a") != int(Held.ENDED), F.col("a") == int(Held.WHOLE)
    last_doubt = F.shiftleft("pos", REASON_BITS + STATE_BITS)
    last_doubt = last_doubt.bitwiseOR(F.shiftleft("a", REASON_BITS)).bitwiseOR(F.coalesce("b", F.lit(0)))
    timed = F.when(F.isnotnull("t"), F.xxhash64("idx", "t"))
    # After an answer without a decision, no message is on its way.
    is_answer = (F.col("kind") == int(Kind.OP)) & said(Said.UNKNOWN)
    seen_ms = F.when(F.col("kind") == int(Kind.FORWARDED), F.col("g")).when(~is_answer, F.col("at_ms"))
    # What a later release wrote may say that it is parked.
    parked = F.col("a").isin(*map(STATES.index, ("parked", "parked-committed", LATER)))
    return {
        "nonce_min": _Part(F.min, F.col("nonce")),
        "nonce_max": _Part(F.max, F.col("nonce")),
        "born_ms": _Part(F.min, F.col("born_ms")),
        # The time of what is visible may be the user's.
        "seen_ms": _Part(F.max, seen_ms),
        "g_min": _Part(F.min, F.when(is_ours, F.col("g"))),
        "g_max": _Part(F.max, F.when(is_ours, F.col("g"))),
        "h_n": _Part(F.sum, when(Kind.HALF, one)),
        "h_bits": _Part(F.bit_or, when(Kind.HALF, index_bit)),
        "h_count": _Part(F.max, when(Kind.HALF, "n")),
        # Where it is so many times that of the greatest ones, all half records say the same count, ordering key and order mode.
        "h_same": _Part(F.sum, when(Kind.HALF, _said_alike("n", "c", "key"))),
        "h_begin": _Part(F.min, when(Kind.HALF, packed)),
        "h_end": _Part(F.max, when(Kind.HALF, packed)),
        "h_partition": _Part(F.max, when(Kind.HALF, "partition")),
        "h_first": _Part(F.min, when(Kind.HALF, "pos")),
        "h_last": _Part(F.max, when(Kind.HALF, "pos")),
        "h_first_ms": _Part(F.min, when(Kind.HALF, "at_ms")),
        "h_last_ms": _Part(F.max, when(Kind.HALF, "at_ms")),
        "h_hash": _Part(F.bit_xor, when(Kind.HALF, "hash")),
        "h_group": _Part(F.max, when(Kind.HALF, "a")),
        "h_content": _Part(F.bit_xor, when(Kind.HALF, "d")),
        "h_named": _Part(F.bit_or, when(Kind.HALF, index_bit, F.isnotnull("w"))),
        "h_wanted": _Part(F.bit_xor, when(Kind.HALF, "w")),
        "h_timed": _Part(F.bit_or, when(Kind.HALF, index_bit, F.isnotnull("t"))),
        "h_time": _Part(F.bit_xor, when(Kind.HALF, timed)),
        "h_topics": _Part(F.bit_or, when(Kind.HALF, bit(F.col("b")))),
        "h_options": _Part(F.max, when(Kind.HALF, "c")),
        "h_key": _Part(F.max, when(Kind.HALF, "key")),
        "o_commit": _Part(F.min, when(Kind.OP, "pos", said(Said.COMMIT))),
        "o_commit_ms": _Part(F.min, when(Kind.OP, "at_ms", said(Said.COMMIT))),
        "o_rollback": _Part(F.min, when(Kind.OP, "pos", said(Said.ROLLBACK))),
        "o_rollback_ms": _Part(F.min, when(Kind.OP, "at_ms", said(Said.ROLLBACK))),
        "o_abandon": _Part(F.min, when(Kind.OP, "pos", said(Said.ABANDON))),
        "o_abandon_ms": _Part(F.min, when(Kind.OP, "at_ms", said(Said.ABANDON))),
        "o_gone": _Part(F.sum, when(Kind.OP, one, F.isnotnull("w"))),
        "o_partition": _Part(F.max, when(Kind.OP, "partition")),
        "o_unknown": _Part(F.sum, when(Kind.OP, one, said(Said.UNKNOWN))),
        # Below every offset where doubt keeps a line or a half record: only every record says which one.
        "o_last_min": _Part(F.min, F.coalesce(when(Kind.OP, "n", decided), when(Kind.QUARANTINED, F.lit(-1)))),
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
        "d_seen": _Part(F.max, when(Kind.DOUBT, "idx")),
        "d_first_ms": _Part(F.min, when(Kind.DOUBT, "hash")),
        "k_n": _Part(F.sum, when(Kind.CONTENT, one, is_held)),
        "k_content": _Part(F.bit_xor, when(Kind.CONTENT, "d", is_whole)),
        "k_odd": _Part(F.sum, when(Kind.CONTENT, one, ~is_whole)),
        "v_n": _Part(F.sum, when(Kind.FORWARDED, one)),
        "v_bits": _Part(F.bit_or, when(Kind.FORWARDED, index_bit)),
        "v_broken": _Part(F.sum, when(Kind.FORWARDED, one, F.isnotnull("a"))),
        "v_gone": _Part(F.sum, when(Kind.FORWARDED, one, F.isnotnull("key"))),
        "v_early_ms": _Part(F.min, when(Kind.FORWARDED, "g")),
        "v_wanted": _Part(F.bit_xor, when(Kind.FORWARDED, "w")),
        "v_time": _Part(F.bit_xor, when(Kind.FORWARDED, timed)),
        "v_count": _Part(F.max, when(Kind.FORWARDED, "n")),
        "v_partition": _Part(F.max, when(Kind.FORWARDED, "partition")),
        "v_first": _Part(F.min, when(Kind.FORWARDED, "pos")),
        "v_first_ms": _Part(F.min, when(Kind.FORWARDED, "at_ms")),
        "v_last_ms": _Part(F.max, when(Kind.FORWARDED, "at_ms")),
        "v_hash": _Part(F.bit_xor, when(Kind.FORWARDED, "hash")),
        "v_topics": _Part(F.bit_or, when(Kind.FORWARDED, bit(F.col("b")))),
        "v_place": _Part(F.min, when(Kind.FORWARDED, "c")),
    }


def _said_alike(count: str, options: str, key: str) -> Column:
    """A short number for what a half record says that the first one of its transaction says."""
    return F.hash(count, F.col(options).bitwiseAND(DUE_BIT - 1), key).cast("bigint")


def fold(happened: DataFrame, *, by: Sequence[str] = ("txn_id",)) -> DataFrame:
    """What happened (`events.COLUMNS`) → the core, one row per id."""
    # Shuffled first and folded after that: before the shuffle there is next to nothing to fold, and a core is four times as wide.
    spread = happened.repartition(*by)
    parts = core()
    return spread.groupBy(*by).agg(*(part.fold(part.of).alias(name) for name, part in parts.items()))


def merge(cores: DataFrame) -> DataFrame:
    """Cores of different runs → one per id."""
    parts = core()
    return cores.groupBy("txn_id").agg(*(part.fold(F.col(name)).alias(name) for name, part in parts.items()))


def needs_every_record(*, excusing_topics: int, is_young: Column) -> Column:
    """Whether a core does not show what became of its transaction.

    Args:
        excusing_topics: Bits of the real topics that a message may have left, or that hide it.
        is_young: Whether what is missing may still be on its way.
    """
    has_half, on_doubt = F.isnotnull("h_n"), doubt_state() != ""
    several = F.col("nonce_min") != F.col("nonce_max")
    large = F.greatest(F.coalesce("h_count", "v_count"), F.coalesce("v_count", "h_count")) > INDEX_BITS
    misnamed = (F.col("o_last_min") != F.col("h_last")) | (F.col("o_last_max") != F.col("h_last"))
    # A line without a half record before it is given up, or counts: doubt shows which.
    ahead = F.least("o_commit_ms", "o_rollback_ms") < F.col("h_last_ms")
    kept = (F.col("k_n") == F.col("d_seen")) & is_kept_plainly()
    # A commit is incomplete without all half records; but what retention took of them is believed.
    in_part = is_committed() & (F.col("h_n") < F.col("h_count"))
    # In these states doubt explains no missing message of a committed one.
    is_unexplained = F.coalesce(doubt_state(), F.lit("")).isin("", "open", "parked")
    missing = is_committed() & F.isnull("v_n") & is_unexplained
    excused = F.col("h_topics").bitwiseAND(excusing_topics) != 0
    return reduce(
        lambda found, each: found | sure(each),
        (
            several,
            large,
            misnamed,
            ahead,
            in_part,
            F.isnotnull("o_abandon"),
            has_times() & F.isnotnull("o_commit"),
            F.col("v_broken") > 0,
            has_half & ~_is_plainly_stored(),
            # Of what half has lost doubt says where it was.
            ~has_half & F.isnotnull("d_last") & (F.coalesce("v_gone", F.lit(0)) < F.col("v_n")),
            is_shown_otherwise() & ~(is_young & _is_shown_in_part()),
            on_doubt & ~sure(kept),
            missing & excused & ~is_young,
        ),
        F.lit(False),
    )


def is_shown_otherwise() -> Column:
    """Whether something is visible that is not each message once, as it was stored."""
    return F.isnotnull("h_n") & F.isnotnull("v_n") & ~is_plainly_visible()


def _is_shown_in_part() -> Column:
    """Whether messages are missing and, as far as the numbers show, nothing else is wrong."""
    is_once = (F.bit_count("v_bits") == F.col("v_n")) & (F.col("v_n") < F.col("h_count"))
    return is_once & (F.col("v_bits").bitwiseAND(F.bitwise_not("h_bits")) == 0)


def may_be_reversed() -> Column:
    """Whether messages of it are visible, and further ones of it may come to the same topic."""
    is_crowded = (F.bit_count("h_topics") < F.col("h_count")) | (F.col("h_topics") < 0)
    return sure((F.col("v_n") > 0) & is_crowded)


def first_ms() -> Column:
    """The latest time at which the first record of a core was written; null if no broker's clock shows it.

    A producer's clock alone does not count: if it is ahead, it names a day after that of the record.
    """
    times = [F.col(f"core.{name}") for name in _TIMES]
    return F.least(F.when(F.coalesce(*times).isNotNull(), F.col("core.born_ms")), *times)


_TIMES = ("h_first_ms", "o_commit_ms", "o_rollback_ms", "o_abandon_ms", "c_first_ms", "d_first_ms", "v_early_ms")
"""Not the times of visible messages, which may be the user's."""


def _is_plainly_stored() -> Column:
    """Each half record is there once, in the order of the indexes from the first on, of one group in one partition."""
    # `h_bits` is all ones from the lowest bit on: no bit is set above one that is not. (63 ones plus 1 would overflow.)
    is_row = F.shiftrightunsigned("h_bits", 1).bitwiseAND(F.bitwise_not("h_bits")) == 0
    is_once = (F.col("h_n") == F.bit_count("h_bits")) & (F.col("h_n") <= F.col("h_count"))
    offset_mask = (1 << OFFSET_BITS) - 1
    in_order = (F.col("h_begin").bitwiseAND(offset_mask) == F.col("h_first")) & (
        F.col("h_end").bitwiseAND(offset_mask) == F.col("h_last")
    )
    said = _said_alike("h_count", "h_options", "h_key")
    is_one = (F.col("g_min") == F.col("g_max")) & (F.col("h_same") == F.col("h_n") * said)
    return is_row & is_once & in_order & is_one


def is_plainly_visible() -> Column:
    """Each message is visible once, as it was stored, in the partition and with the timestamp that the user set."""
    is_once = (F.col("v_n") == F.col("h_count")) & (F.bit_count("v_bits") == F.col("v_n"))
    named = F.coalesce(F.col("h_named"), F.lit(0))
    wanted = (F.col("h_named") == F.col("h_bits")) & (F.col("h_wanted") == F.col("v_wanted"))
    is_as_stored = (F.col("v_hash") == F.col("h_hash")) & ((named == 0) | sure(wanted))
    timed = (F.col("h_timed") == F.col("h_bits")) & (F.col("h_time") == F.col("v_time"))
    # If the broker sets the times, a producer cannot set one.
    is_in_time = F.isnull("h_timed") | F.isnull("v_time") | sure(timed)
    return sure(is_once & is_as_stored & is_in_time)


def is_kept_plainly() -> Column:
    """Whether doubt holds the content of each half record, once, as it was stored."""
    is_once = (F.col("k_n") == F.col("h_n")) & (F.coalesce(F.col("k_odd"), F.lit(0)) == 0)
    return sure(is_once & (F.col("k_content") == F.col("h_content")))


def is_stranger() -> Column:
    """Whether a core's records came after their transaction was settled, or belong to no stored transaction."""
    return F.isnull("h_n")


def may_come(cut_ms: int) -> Column:
    """Whether a core's records are so young that the half records of their transaction may still be read.

    The ends of a cut are not from one moment: each broker reports those of its own partitions, one after the other.
    """
    return F.col("seen_ms") >= cut_ms - ALONE_MS


_OF_TIMES = ("is_early", "is_part_torn", "is_in_part", "is_part_taken", "is_behind", "is_lacking", "is_taken")


def with_distinct(core: DataFrame) -> DataFrame:
    """A core that shows what became of its transaction, with what a verdict needs beside it.

    For example, a committed transaction of three messages of which one is not visible has `h_distinct` 3, `v_distinct` 2 and `lost_n` 1. If
    retention may have removed that one, it has `gone_n` 1 and `lost_n` 0.

    * `h_distinct`, `v_distinct`: messages that are stored, and that are visible. `attempts_visible`: attempts of the id that are.
    * `released`, `released_ms`: the op line from which on it may be visible, and its append time.
    * `is_differing`: what is visible is not what was stored. `is_kept`: doubt has all of it.
    * `lost_n`: messages that are missing. `gone_n`: those that may have been visible and be gone. `hidden_n`: those that may be where no
      reader can see them; `hidden_gone_n`: the ones of these that may be gone.
    * `is_contradicted`: the opposite of what counts was said later.
    * `is_unplaced`: half may have lost its first record, so that its place there is not known.

    Of a transaction with times:

    * `is_early`: a message is visible before it was released.
    * Of messages that were released together: `is_in_part`, only some are visible; `is_part_torn`, the same, and the others cannot be gone or
      hidden; `is_part_taken`, the others may be gone.
    * Of messages that were released: `is_behind`, one is not visible; `is_lacking`, one is not visible and cannot be gone or hidden; `is_taken`, one
      is not visible and may have been.
    * `next_ms`: the next time for which no line released messages.
    """
    released = is_committed()
    missing = F.when(released & F.isnull("v_n"), F.col("h_n")).otherwise(0)
    return core.withColumns(
        {
            "h_distinct": F.bit_count("h_bits").cast("bigint"),
            "v_distinct": F.bit_count("v_bits").cast("bigint"),
            "attempts_visible": F.lit(1).cast("bigint"),
            "released": F.when(released, F.col("o_commit")),
            "released_ms": F.when(released, F.col("o_commit_ms")),
            "is_differing": F.lit(False),
            "is_kept": is_kept_plainly(),
            "lost_n": missing.cast("bigint"),
            "gone_n": F.lit(0).cast("bigint"),
            "hidden_n": F.lit(0).cast("bigint"),
            "hidden_gone_n": F.lit(0).cast("bigint"),
            "is_contradicted": (released & F.isnotnull("o_rollback")) | (is_rolled_back() & F.isnotnull("o_commit")),
            **{name: F.lit(False) for name in ("is_unplaced", *_OF_TIMES)},
            "next_ms": F.lit(None).cast("bigint"),
        }
    )


_ATTEMPT = ["txn_id", "nonce", "partition"]
_READING = [*_ATTEMPT, "reading"]


def fold_exactly(  # its steps, in their order
    happened: DataFrame,
    excused: DataFrame,
    *,
    shortened_partitions: Sequence[int],
    clock_error_ms: int,
    put: Callable[[DataFrame, str], DataFrame],
) -> tuple[DataFrame, DataFrame]:
    """What happened to some ids → a core per id, attempt (`nonce`), half partition and `reading`, with the columns of `with_distinct`;
    and their visible messages, with the `nonce` of the attempt.

    The records do not show whether every op line counted. An attempt with such lines has a row for each choice of them that
    one coordinator may have made: from `reading` 0, in which all count, to the highest, in which none does.

    Args:
        happened: `events.COLUMNS`, everything that is known of those ids.
        excused: `b` (the number of a real topic); `until_ms`: what was decided up to then may have been visible there and be
            gone; `is_hidden`: a missing message may be where no reader can see it.
        shortened_partitions: Half partitions in which a transaction may begin with a later message.
        clock_error_ms: By how much the clocks of two brokers may differ.
        put: Writes rows under a name, and returns them as they are read from there.

    A half record belongs to its attempt when its index is due; an op line counts when it names such a record and its producer
    group; a forwarded record belongs to the attempt whose half record it names.
    """
    # Each step reads those before it several times: without `put`, Spark would plan them again for each.
    quarantined = happened.where(F.col("kind") == int(Kind.QUARANTINED))
    every_half = _not_quarantined(happened.where(F.col("kind") == int(Kind.HALF)), quarantined)
    half = put(_belonging(every_half, shortened_partitions), "half")
    doubts = happened.where(F.col("kind") == int(Kind.DOUBT))
    twins = happened.where(F.col("kind") == int(Kind.TWIN))
    held = happened.where(F.col("kind") == int(Kind.CONTENT))
    contents = _newest(held).where(F.col("a") != int(Held.ENDED))
    messages = put(_messages(half, _newest(held.where(F.col("a") != int(Held.ENDED)))), "messages")
    ops = _not_given_up(happened.where(F.col("kind") == int(Kind.OP)), quarantined)
    known = _known_offsets(half, reduce(DataFrame.unionByName, (doubts, twins, held)))
    named = _naming_halves(ops, half, known, clock_error_ms=clock_error_ms)
    counting = put(_with_unsure(named.unionByName(_naming_doubts(ops, known, doubts))), "counting")
    readings = put(_readings(counting), "readings")
    unplaced = counting.where(F.isnotnull("_unsure") & F.isnotnull("w") & F.isnull("due")).select(*_ATTEMPT).distinct()
    unplaced = unplaced.withColumn("is_unplaced", F.lit(True))
    counting = _in_readings(counting, readings)
    counting = counting.where(F.isnull("_unsure") | _counts(F.col("_unsure")))
    lines = _numbered(counting, messages, shortened_partitions)
    decided = _decided(lines)
    there = messages.select(*_ATTEMPT).union(counting.select(*_ATTEMPT)).distinct()
    alone = ops.join(there, _ATTEMPT, "left_anti")
    forwarded = happened.where(F.col("kind") == int(Kind.FORWARDED))
    strays = happened.where(F.col("kind") == int(Kind.HALF)).join(half, [*_ATTEMPT, "pos"], "left_anti")
    forwarded = put(_attached(forwarded, half, strays, messages, known), "attached")
    shown = _shown(forwarded, clock_error_ms=clock_error_ms)
    claims = _claims(forwarded)
    missing = _missing(messages, shown, claims, decided, excused)
    timed = _timed(lines, messages, forwarded, shown, claims, excused, clock_error_ms=clock_error_ms)
    kept = _kept(messages, contents, doubts)
    # The first one's order mode is that of all.
    options = F.col("_c").bitwiseAND(DUE_BIT - 1).bitwiseOR(F.col("c").bitwiseAND(DUE_BIT))
    once = half.where(~F.col("is_copy")).withColumns({"c": options, "key": F.col("_key")})
    checks = happened.where(F.col("kind") == int(Kind.CHECK))
    parts = [once, alone, forwarded, checks, doubts, held]
    others = reduce(DataFrame.unionByName, (part.select(*COLUMNS) for part in parts))
    others = _in_readings(others, readings)
    every = others.select(*COLUMNS, "reading").unionByName(counting.select(*COLUMNS, "reading"))
    folded = fold(every, by=_READING)
    released = decided.select(*_READING, "released", "released_ms", "is_contradicted", "_before")
    rows = folded.join(released, _READING, "left").join(missing, _READING, "left").join(timed, _READING, "left")
    for extra in (shown_counts(shown), kept, unplaced):
        rows = rows.join(extra, _ATTEMPT, "left")
    stored = once.groupBy(*_ATTEMPT).agg(F.count("*").alias("h_distinct"))
    rows = rows.join(stored, _ATTEMPT, "left")
    # If a transaction has other half records, visible messages of half records that are gone add nothing.
    of_id = Window.partitionBy("txn_id")
    is_row = sure((F.col("h_n") > 0) | (F.col("o_gone") > 0))
    is_told = F.max(is_row).over(of_id) & (F.col("v_gone") >= F.col("v_n"))
    is_repeated = (F.col("nonce") == STRAY) & sure(is_told)
    rows = rows.withColumn("_repeated", is_repeated).where(~F.col("_repeated")).drop("_repeated")
    # What retention took the beginning of is not judged, nor is another one for its sake.
    is_judged = (F.col("nonce") != STRAY) & (F.col("reading") == 0) & ~sure(is_cut_off())
    visible = F.sum((F.when(is_judged, F.col("v_n")) > 0).cast("bigint")).over(of_id)
    # An incomplete commit parked it, even if doubt shows nothing of it.
    is_incomplete = is_committed() & F.coalesce(F.col("o_commit") < F.col("released"), F.isnull("released"))
    rows = rows.withColumns(
        {
            "d_parked_ms": F.least("d_parked_ms", F.when(is_incomplete, F.col("o_commit_ms"))),
            "attempts_visible": F.greatest(F.coalesce(visible, F.lit(0)), F.lit(1)),
            "is_differing": sure("is_differing"),
            "is_kept": sure("is_kept"),
            "lost_n": F.coalesce("lost_n", F.lit(0)),
            "hidden_n": F.coalesce("hidden_n", F.lit(0)),
            "hidden_gone_n": F.coalesce("hidden_gone_n", F.lit(0)),
            "gone_n": F.coalesce("gone_n", F.lit(0)) + F.coalesce("_before", F.lit(0)),
            **{name: sure(name) for name in ("is_contradicted", "is_unplaced", *_OF_TIMES)},
        }
    ).drop("_before")
    return rows, forwarded.select(*COLUMNS)


STRAY = -1  # in place of the nonce of what is visible and belongs to no attempt


def _belonging(half: DataFrame, shortened: Sequence[int]) -> DataFrame:
    """The half records that belong to their attempt, with `is_copy`, and with producer group, options and ordering key of the first (`_g`, `_c`, `_key`)."""
    record = F.struct("pos", "idx", "n")
    gathered = half.groupBy(*_ATTEMPT).agg(F.array_sort(F.collect_list(record)).alias("_all"))
    may_begin_late = F.lit(False)
    if shortened:
        may_begin_late = F.col("partition").isin(*shortened)
    nothing = F.array().cast("array<bigint>")
    number = "bigint"
    start = F.struct(
        F.lit(-1).cast(number).alias("low"),
        F.lit(-1).cast(number).alias("top"),
        F.lit(-1).cast(number).alias("count"),
        nothing.alias("out"),
    )

    def take(so_far: Column, each: Column) -> Column:
        begins = so_far["count"] < 0
        fits = (each["n"] == so_far["count"]) & ((each["idx"] <= so_far["top"] + 1) | may_begin_late)
        is_due = F.when(begins, (each["idx"] == 0) | may_begin_late).otherwise(fits & (each["idx"] >= so_far["low"]))
        out = so_far["out"]
        return F.struct(
            F.when(is_due & begins, each["idx"]).otherwise(so_far["low"]).alias("low"),
            F.when(is_due, F.greatest(so_far["top"], each["idx"])).otherwise(so_far["top"]).alias("top"),
            F.when(is_due & begins, each["n"]).otherwise(so_far["count"]).alias("count"),
            F.when(is_due, out).otherwise(F.concat(out, F.array(each["pos"]))).alias("out"),
        )

    out = F.aggregate("_all", start, take)["out"]
    strays = gathered.select(*_ATTEMPT, F.explode(out).alias("pos"))
    belonging = half.join(strays, [*_ATTEMPT, "pos"], "left_anti")
    of_index = Window.partitionBy(*_ATTEMPT, "idx").orderBy("pos")
    in_order = Window.partitionBy(*_ATTEMPT).orderBy("pos")
    of_first = {f"_{name}": F.first(name).over(in_order) for name in ("g", "c", "key")}
    return belonging.withColumns({"is_copy": F.row_number().over(of_index) > 1, **of_first})


def _newest(contents: DataFrame) -> DataFrame:
    newest = Window.partitionBy(*_ATTEMPT, "idx").orderBy(F.desc("pos"))
    now = contents.withColumn("_at", F.row_number().over(newest)).where(F.col("_at") == 1)
    return now.drop("_at")


def _not_quarantined(half: DataFrame, quarantined: DataFrame) -> DataFrame:
    """The half records except quarantined ones: these are no part of their transaction."""
    kept = quarantined.where(F.isnotnull("a")).select("txn_id", "partition", "pos").distinct()
    return half.join(kept, ["txn_id", "partition", "pos"], "left_anti")


def _not_given_up(ops: DataFrame, quarantined: DataFrame) -> DataFrame:
    """The op lines except quarantined ones: these were given up before their half records came."""
    given_up = quarantined.where(F.isnull("a")).select("txn_id", "partition", F.col("pos").alias("_op_line")).distinct()
    by_line = ops.withColumn("_op_line", F.shiftright("pos", SOURCE_BITS))
    return by_line.join(given_up, ["txn_id", "partition", "_op_line"], "left_anti").drop("_op_line")


def _messages(half: DataFrame, contents: DataFrame) -> DataFrame:
    """Every message that is known, once: of half, else of doubt (`pos` null)."""
    columns = (*_ATTEMPT, "idx", "n", "born_ms", "at_ms", "pos", "hash", "b", "w", "d", "t", "due")
    stored = half.where(~F.col("is_copy")).select(*columns)
    others = contents.join(stored, [*_ATTEMPT, "idx"], "left_anti")
    return stored.unionByName(others.withColumn("pos", F.lit(None).cast("bigint")).select(*columns))


def _known_offsets(half: DataFrame, told: DataFrame) -> DataFrame:
    """Per attempt: `_g`, its producer group; `_first`, `_last`, `_last_copy`: of its half offsets, null of one that half has lost.

    And `_told`: those that doubt names at any time, null of an attempt that never stood there; `_kept`, `_told_last`: of these,
    those that it does not forget, and the last one; `_held_at`: those of its contents; `_low`,
    `_high`: between these are all of its offsets, also of records that are gone.
    """
    own = ~F.col("is_copy")
    stored = half.groupBy(*_ATTEMPT).agg(
        F.max("_g").alias("_g"),
        F.min(F.when(own, F.col("pos"))).alias("_first"),
        F.max(F.when(own, F.col("pos"))).alias("_last"),
        F.max(F.when(~own, F.col("pos"))).alias("_last_copy"),
    )
    # Of one that has no half record the coordinator did not know them.
    is_summary = (F.col("kind") == int(Kind.DOUBT)) & (F.col("idx") > 0)
    twin = F.when(F.col("kind") == int(Kind.TWIN), F.array("d"))
    named, kept = (
        F.when(is_summary, F.array("w", "d")).otherwise(twin),
        F.when(is_summary, F.array("w")).otherwise(twin),
    )
    of_attempt = told.groupBy(*_ATTEMPT).agg(
        F.flatten(F.collect_set(named)).alias("_told"),
        F.flatten(F.collect_set(kept)).alias("_kept"),
        F.max(F.when(is_summary, F.col("d"))).alias("_told_last"),
        F.collect_set(F.when(F.col("kind") == int(Kind.CONTENT), F.col("w"))).alias("_held_at"),
    )
    low, high = F.array_min("_told"), F.array_max("_told")
    return stored.join(of_attempt, _ATTEMPT, "full").withColumns(
        {"_low": F.least("_first", low), "_high": F.greatest("_last", "_last_copy", high)}
    )


def _naming_halves(ops: DataFrame, half: DataFrame, known: DataFrame, *, clock_error_ms: int) -> DataFrame:
    """The op lines that count, or may have counted, by a half record of their transaction and its producer group.

    With `_is_certain`; `_releases`: whether every half record is at or before the one that they name; `_is_gone`: that one is, and as
    far as anybody knows it was the last.

    A line may have counted when it was there before its half record, when it names one between the ends of a transaction that
    stood on doubt, which doubt forgets, the last one there before a further one joined, or one that is gone.
    """
    half_positions = half.select(
        *_ATTEMPT, F.col("pos").alias("n"), F.col("is_copy").alias("_is_copy"), F.col("at_ms").alias("_half_ms")
    )
    named = ops.join(known, _ATTEMPT).where(F.col("g") == F.col("_g"))
    named = named.join(half_positions, [*_ATTEMPT, "n"], "left")
    nothing = F.array().cast("array<bigint>")
    told = F.coalesce("_told", nothing)
    is_there = F.isnotnull("_half_ms")
    is_kept = (F.col("n") == F.col("_first")) | sure("_is_copy")
    is_kept = is_kept | F.array_contains(F.coalesce("_kept", nothing), F.col("n"))
    is_end = is_kept | (F.col("n") == F.col("_last")) | F.array_contains(told, F.col("n"))
    # A further half record joined: doubt has forgotten this one.
    has_later = sure(F.col("n") < F.col("_told_last")) | (is_there & (F.col("n") < F.col("_last")))
    is_ahead = sure(F.col("_half_ms") > F.col("at_ms") + clock_error_ms)
    is_between = (F.col("_low") < F.col("n")) & (F.col("n") < F.col("_high"))
    is_gone = F.isnotnull("w")
    marked = named.where(is_there | is_end | (is_gone & ((F.size(told) == 0) | is_between)))
    is_known = is_kept | (is_end & ~has_later) | (is_there & F.isnull("_told"))
    return marked.select(
        *COLUMNS,
        (is_known & ~is_ahead).alias("_is_certain"),
        (F.col("n") >= F.col("_last")).alias("_releases"),
        # Unless doubt tells of a half record behind it.
        (is_gone & F.coalesce(F.col("n") >= F.col("_told_last"), F.lit(True))).alias("_is_gone"),
    )


def _naming_doubts(ops: DataFrame, known: DataFrame, doubts: DataFrame) -> DataFrame:
    """The same of what doubt alone knows: the lines that name an end of its summary, and its producer group."""
    told = (
        doubts.where(F.isnotnull("n"))
        .groupBy(*_ATTEMPT)
        .agg(
            F.max("w").alias("_first"),
            F.max("d").alias("_last"),
            F.max("n").alias("_count"),
            F.max("idx").alias("_seen"),
            F.max("g").alias("_g"),
        )
    )
    of_half = known.where(F.isnotnull("_first"))
    named = ops.join(of_half, _ATTEMPT, "left_anti").join(told, _ATTEMPT).where(F.col("g") == F.col("_g"))
    named = named.where((F.col("n") == F.col("_first")) | (F.col("n") == F.col("_last")))
    is_whole = (F.col("n") == F.col("_last")) & (F.col("_seen") == F.col("_count"))
    return named.select(
        *COLUMNS, F.lit(True).alias("_is_certain"), is_whole.alias("_releases"), F.lit(False).alias("_is_gone")
    )


_UNSURE_MAX = 6  # so many uncertain lines of an attempt are read in each way; further ones go with the last of these


def _with_unsure(counting: DataFrame) -> DataFrame:
    """The lines with `_unsure`: the number, from 0, of one that is not certain; null of the others, and of those that decide nothing."""
    is_unsure = ~F.col("_is_certain") & (F.col("a") != int(Said.UNKNOWN))
    so_far = F.count_if(is_unsure).over(Window.partitionBy(*_ATTEMPT).orderBy("pos"))
    return counting.withColumn("_unsure", F.when(is_unsure, so_far - 1))


def _readings(counting: DataFrame) -> DataFrame:
    """Each `reading` of the unsure attempts that one coordinator may have had; in 0 all lines count.

    The bits of its number, from the highest, are 1 where a line does not count: `_tried` of them.
    """
    line = F.struct(F.col("_unsure").alias("number"), F.col("n").alias("names"))
    unsure = counting.where(F.col("_unsure") < _UNSURE_MAX).groupBy(*_ATTEMPT)
    every = unsure.agg(F.array_sort(F.collect_list(line)).alias("_lines")).withColumn("_tried", F.size("_lines"))
    last = F.call_function("shiftleft", F.lit(1), F.col("_tried")) - 1
    every = every.withColumn("reading", F.explode(F.sequence(F.lit(0), last)))
    number = "bigint"
    nothing, impossible = F.lit(-1).cast(number), F.lit(-2).cast(number)

    def take(forgotten: Column, each: Column) -> Column:
        """If a line does not count, doubt has forgotten its half record and those before it."""
        counts, names = _counts(each["number"]), each["names"]
        kept = F.when(names > forgotten, forgotten).otherwise(impossible)
        return F.when(forgotten == impossible, impossible).when(counts, kept).otherwise(F.greatest(forgotten, names))

    return every.where(F.aggregate("_lines", nothing, take) != impossible).drop("_lines")


def _counts(number: Column) -> Column:
    """Whether the line with this number among the unsure ones counts in a `reading`."""
    place = F.col("_tried") - 1 - F.least(number.cast("int"), F.col("_tried") - 1)
    return F.call_function("shiftright", F.col("reading"), place).bitwiseAND(1) == 0


def _in_readings(rows: DataFrame, readings: DataFrame) -> DataFrame:
    """The rows of an unsure attempt once in each `reading`; those of other attempts only in 0."""
    found = rows.join(readings, _ATTEMPT, "left")
    return found.withColumn("reading", F.coalesce("reading", F.lit(0)))


def _numbered(counting: DataFrame, messages: DataFrame, shortened: Sequence[int]) -> DataFrame:
    """The lines with `_low`, the first message of their attempt that is known, and `_is_complete`: whether a commit there is."""
    # Without a message of its own index a commit is incomplete; what retention took before another one is believed.
    there = F.count_distinct("idx") + F.min("idx")
    if shortened:
        there = F.when(F.col("partition").isin(*shortened), F.max("idx") + 1).otherwise(there)
    numbers = messages.groupBy(*_ATTEMPT).agg(there.alias("_there"), F.min("idx").alias("_low"), F.max("n").alias("_n"))
    is_there = F.col("_there") == F.col("_n")
    is_complete = F.col("_is_gone") | sure(F.col("_releases") & is_there)
    return counting.join(numbers, _ATTEMPT, "left").withColumn("_is_complete", is_complete)


def _decided(lines: DataFrame) -> DataFrame:
    """An attempt's `released` and `released_ms` in each reading."""
    releases = F.col("_is_complete")

    def first(column: str, *words: Said, more: Column | None = None) -> Column:
        chosen = F.col("a").isin(*map(int, words))
        return F.min(F.when(chosen if more is None else chosen & more, F.col(column)))

    rows = lines.groupBy(*_READING).agg(
        first("pos", Said.COMMIT).alias("_commit"),
        first("pos", Said.ROLLBACK).alias("_rollback"),
        first("pos", Said.ABANDON).alias("_abandon"),
        first("pos", Said.COMMIT, more=releases).alias("_released"),
        first("at_ms", Said.COMMIT, more=releases).alias("_released_ms"),
        F.max(F.when(F.col("a") == int(Said.COMMIT), F.col("pos"))).alias("_last_commit"),
        F.max("_low").alias("_low"),
    )
    never = F.lit((1 << 63) - 1)
    other = F.least(F.coalesce("_rollback", never), F.coalesce("_abandon", never))
    is_commit = F.col("_commit") < other
    holds = is_commit & (F.col("_released") < F.coalesce("_abandon", never))
    # A line after an abandon is contrary to the abandon, not to the commit before it.
    is_refused = (F.col("_rollback") < F.coalesce("_abandon", never)) | (F.col("_last_commit") > F.col("_abandon"))
    return rows.select(
        *_READING,
        F.when(holds, F.col("_released")).alias("released"),
        F.when(holds, F.col("_released_ms")).alias("released_ms"),
        F.when(is_commit, is_refused).otherwise(F.isnotnull("_commit")).alias("is_contradicted"),
        F.when(is_commit, F.col("_commit")).alias("_committed"),
        F.when(is_commit, F.greatest(F.col("_low"), F.lit(0))).alias("_before"),
    )


_FOREVER = 1 << 62  # later than any time


def _timed(
    lines: DataFrame,
    messages: DataFrame,
    forwarded: DataFrame,
    shown: DataFrame,
    claims: DataFrame,
    excused: DataFrame,
    *,
    clock_error_ms: int,
) -> DataFrame:
    """Per reading of an attempt with times: `next_ms` and `_OF_TIMES` of `with_distinct`."""
    due = F.coalesce("due", F.lit(0))
    times = messages.groupBy(*_ATTEMPT).agg(
        F.array_sort(F.collect_set(due)).alias("_times"), F.max(F.isnotnull("due")).alias("_has_times")
    )
    times = times.where("_has_times").drop("_has_times")
    line = F.struct("pos", "a", "at_ms", "due", "_is_complete")
    said = lines.where(F.col("a") != int(Said.UNKNOWN)).join(times, _ATTEMPT)
    of_reading = said.groupBy(*_READING).agg(
        F.array_sort(F.collect_list(line)).alias("_lines"), F.first("_times").alias("_times")
    )
    parts = of_reading.withColumn("_said", _released("_lines", "_times"))
    parts = parts.select(*_READING, F.col("_said.parts").alias("_parts"), F.col("_said.left").alias("_left"))
    each = messages.select(*_ATTEMPT, "idx", "n", "born_ms", "b", due.alias("_due")).join(parts, _ATTEMPT)
    part = F.get(F.filter("_parts", lambda one: F.col("_due") <= one["to_ms"]), F.lit(0))
    each = each.select(*_READING, "idx", "n", "born_ms", "b", part["pos"].alias("_pos"), part["at_ms"].alias("_at_ms"))
    visible = forwarded.where(F.col("nonce") != STRAY).select(*_ATTEMPT, "idx", F.col("g").alias("_seen_ms"))
    visible = visible.join(each, [*_ATTEMPT, "idx"])
    is_early = F.isnull("_pos") | sure(F.col("_seen_ms") < F.col("_at_ms") - clock_error_ms)
    early = visible.groupBy(*_READING).agg(F.max(is_early).alias("is_early"))
    there = shown.where("_own_topic").select(*_ATTEMPT, "idx", F.lit(True).alias("_is_there"))
    those = each.where(F.isnotnull("_pos")).join(there, [*_ATTEMPT, "idx"], "left")
    those = those.join(claims, _CLAIM, "left").join(F.broadcast(excused), "b", "left")
    is_gone = sure("is_hidden") | F.isnotnull("_is_claimed")
    is_gone = is_gone | sure(F.col("_at_ms") <= F.col("until_ms"))
    is_missing = F.isnull("_is_there")
    of_part = those.groupBy(*_READING, "_pos").agg(
        F.count("*").alias("_n"),
        F.count_if(is_missing).alias("_missing_n"),
        F.count_if(is_missing & is_gone).alias("_gone_n"),
        F.max(is_missing & is_gone & ~sure("is_hidden")).alias("_is_taken"),
    )
    is_in_part = (F.col("_missing_n") > 0) & (F.col("_missing_n") < F.col("_n"))
    torn = of_part.groupBy(*_READING).agg(
        F.max(is_in_part & (F.col("_gone_n") == 0)).alias("is_part_torn"),
        F.max(is_in_part).alias("is_in_part"),
        F.max(is_in_part & F.col("_is_taken")).alias("is_part_taken"),
        F.max(F.col("_missing_n") > 0).alias("is_behind"),
        F.max(F.col("_missing_n") > F.col("_gone_n")).alias("is_lacking"),
        F.max("_is_taken").alias("is_taken"),
    )
    found = parts.select(*_READING, F.get("_left", F.lit(0)).alias("next_ms"))
    return found.join(early, _READING, "left").join(torn, _READING, "left")


def _released(lines: str, times: str) -> Column:
    """What op lines, in their order, say of these times: `parts`, each with the line that released it and up to which time, and `left`."""
    number = "bigint"
    start = F.struct(
        F.lit(0).alias("decision"),
        F.lit(False).alias("is_released"),
        F.lit(False).alias("is_abandoned"),
        F.array().cast("array<bigint>").alias("left"),
        empty_array("array<struct<pos:bigint,at_ms:bigint,to_ms:bigint>>").alias("parts"),
    )

    def take(so_far: Column, line: Column) -> Column:
        said, left = line["a"], so_far["left"]
        is_timed = said.isin(int(Said.RELEASE), int(Said.RESCHEDULE))
        awaits = so_far["is_released"] & ~so_far["is_abandoned"] & (F.size(left) > 0)
        is_moved = awaits & (said == int(Said.RESCHEDULE))
        is_due = awaits & (said == int(Said.RELEASE)) & (line["due"] == F.get(left, F.lit(0)))
        is_due = sure(is_due & (line["at_ms"] >= line["due"]))
        may_decide = ~is_timed & ((so_far["decision"] == 0) | ((so_far["decision"] == 1) & ~so_far["is_abandoned"]))
        is_commit = may_decide & (said == int(Said.COMMIT))
        is_first = is_commit & ~so_far["is_released"] & sure(line["_is_complete"])
        begins = is_first & (F.get(F.col(times), F.lit(0)) == 0)
        now = F.when(is_first, F.col(times)).otherwise(left)
        is_part = is_due | begins
        rest = F.when(F.size(now) > 0, F.slice(now, 2, F.greatest(F.size(now) - 1, F.lit(0)))).otherwise(now)
        to_ms = F.when(F.size(rest) == 0, F.lit(_FOREVER)).otherwise(F.get(now, F.lit(0)))
        part = F.struct(line["pos"].alias("pos"), line["at_ms"].alias("at_ms"), to_ms.cast(number).alias("to_ms"))
        decides = may_decide & (so_far["decision"] == 0)
        return F.struct(
            F.when(decides, F.when(is_commit, 1).otherwise(2)).otherwise(so_far["decision"]).alias("decision"),
            (so_far["is_released"] | is_first).alias("is_released"),
            (so_far["is_abandoned"] | (may_decide & ~decides & (said == int(Said.ABANDON)))).alias("is_abandoned"),
            F.when(is_moved, F.array(line["due"])).when(is_part, rest).otherwise(now).alias("left"),
            F.when(is_part, F.concat(so_far["parts"], F.array(part))).otherwise(so_far["parts"]).alias("parts"),
        )

    return F.aggregate(lines, start, take)


def _attached(
    forwarded: DataFrame, half: DataFrame, strays: DataFrame, messages: DataFrame, known: DataFrame
) -> DataFrame:
    """What is visible with the nonce of its attempt, or `STRAY`, with what it should be (`_b`, `_hash`, `_w`, `_t`, `_half_ms`).

    `strays`: half records that belong to no attempt, nor does what names them.
    """
    expected = (
        F.col("nonce").alias("_nonce"),
        F.col("b").alias("_b"),
        F.col("hash").alias("_hash"),
        F.col("w").alias("_w"),
        F.col("t").alias("_t"),
        F.col("at_ms").alias("_half_ms"),
        F.lit(True).alias("_stored"),
    )
    claim = ["txn_id", "partition", "pos", "idx", "n", "born_ms"]
    found = forwarded.drop("nonce").join(half.select(*claim, *expected), claim, "left")
    # Malformed headers name no half record, even if a part of them can be read.
    is_broken = F.isnotnull("a")
    found = found.withColumn("_nonce", F.when(~is_broken, F.col("_nonce")))
    of_half = found.where(F.isnotnull("_nonce"))
    found = found.join(strays.select(*claim, F.lit(True).alias("_is_stray")), claim, "left")
    # What doubt alone knows has no half offset any more; of the others it forgets those between the ends.
    claim.remove("pos")
    ends = known.where(F.isnotnull("_told")).select(
        *_ATTEMPT, "_low", "_high", F.concat("_told", "_held_at").alias("_told")
    )
    kept = messages.join(ends, _ATTEMPT, "left")
    kept = kept.where(F.isnull("pos") | F.isnotnull("_low"))
    kept = kept.select(
        *(F.col(name).alias(f"_of_{name}") for name in claim),
        *expected[:-1],
        F.isnotnull("pos").alias("_stored"),
        "_low",
        "_high",
        "_told",
        F.col("d").alias("_content"),
    )
    own = ("_nonce", "_b", "_hash", "_w", "_t", "_half_ms", "_stored")
    # In the join: of many attempts and many messages, each pair would be a row.
    is_its_own = ~is_broken & F.isnull("_is_stray")
    is_its_own = is_its_own & F.coalesce(F.col("pos").between(F.col("_low"), F.col("_high")), ~F.col("_stored"))
    is_its_own = reduce(Column.__and__, (F.col(name) == F.col(f"_of_{name}") for name in claim), is_its_own)
    others = found.where(F.isnull("_nonce")).drop(*own).join(kept, is_its_own, "left")
    # Of two attempts prepared in one millisecond, that of which doubt names this half record.
    is_named = sure(F.array_contains("_told", F.col("pos")))
    claims = Window.partitionBy("txn_id", "b", "c").orderBy(F.desc(is_named), "_nonce")
    others = others.withColumn("_place", F.row_number().over(claims)).where(F.col("_place") == 1).drop("_place")
    content = claimed(F.col("_content"), F.col("partition"), F.col("pos"), F.col("n"), F.col("born_ms"))
    others = others.withColumn("_hash", content).drop("_low", "_high", "_told", "_content", "_is_stray")
    others = others.drop(*(f"_of_{name}" for name in claim))
    return of_half.unionByName(others).withColumn("nonce", F.coalesce("_nonce", F.lit(STRAY)))


def _shown(forwarded: DataFrame, *, clock_error_ms: int) -> DataFrame:
    """Per attempt and message that is visible: whether on its own topic, and whether one of its records differs."""
    # A time in the future became that of forwarding.
    is_cut = (F.col("_half_ms") - clock_error_ms <= F.col("t")) & (F.col("t") < F.col("_t"))
    differs = F.col("_stored") & (F.col("hash") != F.col("_hash"))
    differs = differs | (F.col("w") != F.col("_w")) | ((F.col("t") != F.col("_t")) & ~is_cut)
    own = forwarded.where(F.col("nonce") != STRAY)
    return own.groupBy(*_ATTEMPT, "idx").agg(
        F.max(sure(F.col("b").eqNullSafe(F.col("_b"))) | ~F.col("_stored")).alias("_own_topic"),
        F.max(sure(differs)).alias("_differs"),
    )


def shown_counts(shown: DataFrame) -> DataFrame:
    """Per attempt, how many messages are visible, and whether one differs."""
    return shown.groupBy(*_ATTEMPT).agg(F.count("*").alias("v_distinct"), F.max("_differs").alias("is_differing"))


_CLAIM = ["txn_id", "partition", "idx", "n", "born_ms", "b"]


def _claims(forwarded: DataFrame) -> DataFrame:
    """What is visible under a half offset that is gone says that it is (`_CLAIM`): the first copy of a message, for example."""
    gone = forwarded.where((F.col("nonce") == STRAY) & F.isnotnull("key") & F.isnull("a"))
    return gone.select(*_CLAIM).distinct().withColumn("_is_claimed", F.lit(True))


def _missing(
    messages: DataFrame, shown: DataFrame, claims: DataFrame, decided: DataFrame, excused: DataFrame
) -> DataFrame:
    """Per reading, how many of its messages are not on their topic: `lost_n`, and `gone_n` that may have been there."""
    there = shown.where("_own_topic").select(*_ATTEMPT, "idx")
    missing = messages.join(there, [*_ATTEMPT, "idx"], "left_anti").join(
        decided.where(F.isnotnull("_committed")), _ATTEMPT
    )
    missing = missing.join(claims, _CLAIM, "left").join(F.broadcast(excused), "b", "left")
    is_gone = (F.col("released_ms") <= F.col("until_ms")) | F.isnotnull("_is_claimed")
    is_gone = sure(F.isnotnull("released") & is_gone)
    is_hidden = F.isnotnull("released") & sure("is_hidden")
    return missing.groupBy(*_READING).agg(
        F.count_if(~is_gone & ~is_hidden).alias("lost_n"),
        F.count_if(is_gone & ~is_hidden).alias("gone_n"),
        F.count_if(is_hidden).alias("hidden_n"),
        F.count_if(is_hidden & is_gone).alias("hidden_gone_n"),
    )


def _kept(messages: DataFrame, contents: DataFrame, doubts: DataFrame) -> DataFrame:
    """Per attempt, whether doubt has every half record that it says to have (`is_kept`); what it cut is in half."""
    newest = Window.partitionBy(*_ATTEMPT).orderBy(F.desc("pos"))
    now = doubts.withColumn("_at", F.row_number().over(newest)).where(F.col("_at") == 1)
    now = now.select(*_ATTEMPT, F.col("idx").alias("_seen"), F.col("w").alias("_from"), F.col("d").alias("_until"))
    held = contents.select(*_ATTEMPT, "idx", F.col("a").alias("_held"), F.col("d").alias("_content"))
    each = messages.join(now, _ATTEMPT).join(held, [*_ATTEMPT, "idx"], "left")
    is_cut = F.col("_held") == int(Held.CUT)
    is_same = sure(is_cut | (F.col("_content") == F.col("d")))
    is_of_half = F.isnotnull("pos")
    # Of the first message half may have a second copy alone, whatever that holds.
    is_compared = (
        is_of_half & (F.col("pos") <= F.col("_until")) & ((F.col("idx") > 0) | (F.col("pos") == F.col("_from")))
    )
    wrong = (is_compared & ~is_same) | (~is_of_half & is_cut)
    return each.groupBy(*_ATTEMPT).agg(
        ((F.count_if(wrong) == 0) & (F.count("_held") >= F.max("_seen"))).alias("is_kept")
    )


# --- what a core says ---------------------------------------------------------------------------------------------------


def is_cut_off() -> Column:
    """Whether half no longer has its first record, or lacks one of those that were there when it was committed."""
    is_gone = F.isnull("h_n") & F.isnotnull("d_last")
    lacks_some = F.isnotnull("released") & (F.coalesce("h_distinct", F.lit(0)) < F.col("h_count"))
    return is_gone | (F.shiftright("h_begin", OFFSET_BITS) > 0) | lacks_some


def is_committed() -> Column:
    never = F.lit((1 << 63) - 1)
    other = F.least(F.coalesce("o_rollback", never), F.coalesce("o_abandon", never))
    return F.isnotnull("o_commit") & (F.col("o_commit") < other)


def is_rolled_back() -> Column:
    """Whether the decision is a rollback, or an abandon of what was undecided."""
    return F.isnotnull(decision()) & ~is_committed()


def was_ended_without_half() -> Column:
    """Whether it was on doubt only because of an op line, and was ended there: it was rolled back before its half records came."""
    return sure(F.isnull(decision()) & (F.col("d_seen") == 0) & (doubt_state() == ""))


def is_abandoned() -> Column:
    """Whether an operator gave up what was committed."""
    return is_committed() & F.isnotnull("o_abandon")


def decision() -> Column:
    """The packed position of the decision; null without one."""
    return F.least("o_commit", "o_rollback", "o_abandon")


def offset_of(line: Column) -> Column:
    """The offset in op of the packed position of a line."""
    return F.shiftright(line, LINE_BITS + SOURCE_BITS)


def doubt_state() -> Column:
    """The state that doubt has of the transaction now; empty if it is settled there, null if it never was on doubt."""
    code = F.shiftright("d_last", REASON_BITS).bitwiseAND((1 << STATE_BITS) - 1)
    return F.get(F.array(*map(F.lit, STATES)), code.cast("int"))


def immunity_ms() -> Column:
    return F.shiftright(F.coalesce("h_options", F.lit(0)).bitwiseAND(DUE_BIT - 1), 1)


def has_times() -> Column:
    """Whether a message of it has a time before which no consumer may see it. The order of these is not judged here."""
    return F.coalesce(F.col("h_options"), F.lit(0)).bitwiseAND(DUE_BIT) != 0


_USERS_TIME_BIT = 1 << 62  # beside `DUE_BIT`, of stored rows alone


def stored_options() -> Column:
    """What the half records say of order and times, and whether the times of what is visible are the user's."""
    is_users = F.isnotnull("h_timed") & F.isnull("v_early_ms")
    return F.when(is_users, F.col("h_options").bitwiseOR(_USERS_TIME_BIT)).otherwise(F.col("h_options"))


def is_prepare_order() -> Column:
    """Whether a later one of its key waits for it before it is decided."""
    return F.coalesce(F.col("h_options"), F.lit(0)).bitwiseAND(1) == 1


_LANE = ("key", "half_partition", "topic", "real_partition")
_PROGRESS = ("decided", "stored", "seen_ms")
STATE_COLUMNS = (*_LANE, *_PROGRESS)  # how far each key came on each partition: what a later run compares with
COMPARED = f"txn_id string, nonce bigint, {' bigint, '.join(STATE_COLUMNS)} bigint, is_late boolean, is_state boolean"
"""The columns of what was compared, for a reader of its files."""


def nothing(spark: SparkSession) -> DataFrame:
    absent = F.lit(None).cast("bigint")
    return spark.range(0).select(*(absent.alias(name) for name in STATE_COLUMNS))


QUICK_MS = 60_000
"""What is visible so soon after it was stored is taken for one that was never parked, where doubt has forgotten all. A time
that the user set does not tell it."""


def is_keyed(*, doubt_from_ms: int, doubt_gone_ms: int, stored_ms: Column, extras: str = "") -> Column:
    """Whether the order of a row is judged; of a stored one (not `rows.unfolded`) with `extras`, the prefix of the columns that few have.

    Of what was stored before `doubt_from_ms` compaction may have taken that it was parked on doubt, which gives up its place; of what
    was stored before `doubt_gone_ms`, that it was there.
    """
    stored_ms = F.coalesce(stored_ms, F.lit(0))
    has_users_time = F.coalesce(F.col("h_options"), F.lit(0)).bitwiseAND(_USERS_TIME_BIT) != 0
    is_quick = sure(F.col("v_last_ms") - stored_ms <= QUICK_MS) & ~has_users_time
    never_there = F.isnull(f"{extras}d_last") & ((stored_ms >= doubt_gone_ms) | is_quick)
    is_told = never_there | (stored_ms >= doubt_from_ms)
    return is_told & (
        F.isnotnull("h_key")
        & ~has_times()
        & (F.col("verdict") != "out_of_window")
        & (F.col("v_n") > 0)
        & F.isnull(f"{extras}d_parked_ms")
    )


def counts(is_keyed: Column, is_several: Column) -> tuple[Column, Column]:
    """How many rows there are to be compared (`keyed`), and of these how many whose messages only the records tell (`several`)."""
    return (F.count_if(is_keyed).alias("keyed"), F.count_if(is_keyed & is_several).alias("several"))


def is_several(topics: Column) -> Column:
    """Whether a row does not tell where its message is: of several, or on a topic that shares its bit with others."""
    return (F.col("v_n") > 1) | (topics < 0)


def reversed_ids(forwarded: DataFrame, rows: DataFrame) -> DataFrame:
    """The ids of those transactions of whose messages (`told`) a later one is before an earlier one of its key."""
    messages = forwarded.select(*_claiming(), "b", "c", "idx", "d")
    messages = _of_rows(messages, rows.select(*_whose(), "h_key"))
    is_ordered = F.isnotnull("h_key") | F.isnotnull("d")
    key = F.when(F.isnull("h_key"), F.col("d"))
    partition = F.shiftright("c", OFFSET_BITS)
    messages = messages.where(is_ordered).select(
        "txn_id", "nonce", "b", "c", "idx", key.alias("lane"), partition.alias("real_partition")
    )
    lane = Window.partitionBy("txn_id", "nonce", "b", "real_partition", "lane").orderBy("c")
    before = lane.rowsBetween(Window.unboundedPreceding, -1)
    found = messages.withColumn("_before", F.max("idx").over(before))
    return found.where(F.col("idx") < F.col("_before")).select("txn_id", "nonce").distinct()


def ahead(rows: DataFrame, *, edge_ms: int, doubt_from_ms: int) -> DataFrame:
    """What of rows others of their ordering key may wait for (`AHEAD_COLUMNS`), a row per key and half partition.

    None that was parked: it has given up its place. `edge_ms`: what was decided or parked later is young; `doubt_from_ms`: as of
    `is_keyed`.
    """
    is_told = F.isnull("d_last") | (F.coalesce("h_first_ms", F.lit(0)) >= doubt_from_ms)
    is_judged = F.col("verdict") != "out_of_window"
    is_placed = F.col("h_first") >= 0
    is_in_place = F.isnull("d_parked_ms") & is_told & is_judged
    may_be_waited_for = is_in_place & F.isnull(decision()) & ~F.col("verdict").isin(*_CERTAIN)
    is_undecided = may_be_waited_for & is_placed
    # If its line counted, it waits, too: behind one that is unknown it is unknown as well.
    is_perhaps = F.col("verdict").startswith(LOST_OR) & F.isnull("d_last")
    left_ms = F.greatest(F.least("o_commit_ms", "o_rollback_ms", "o_abandon_ms"), "d_parked_ms")
    is_young = sure(is_judged & is_placed & (left_ms >= edge_ms))
    is_on_doubt = F.coalesce(doubt_state(), F.lit("")) != ""
    of_key = rows.where(F.isnotnull("h_key") & F.isnotnull("h_first")).groupBy("h_key", "half_partition")
    found = of_key.agg(
        F.min(F.when(is_undecided & ~is_perhaps, F.col("h_first"))).alias("undecided"),
        F.min(F.when(is_undecided & is_perhaps, F.col("h_first"))).alias("_perhaps"),
        F.max(is_undecided & is_on_doubt).alias("is_on_doubt"),
        F.min(F.when(is_young, F.col("h_first"))).alias("young"),
        F.min(F.when((_is_unknown() | (may_be_waited_for & ~is_placed)) & ~is_young, F.col("h_first"))).alias(
            "unknown"
        ),
        F.lit(doubt_from_ms).cast("bigint").alias("told_from_ms"),
    )
    is_known = ~sure(F.col("unknown") < F.col("_perhaps"))
    found = found.withColumn("undecided", F.least("undecided", F.when(is_known, F.col("_perhaps")))).drop("_perhaps")
    return found.where(F.coalesce("undecided", "young", "unknown").isNotNull())


AHEAD_COLUMNS = ("undecided", "is_on_doubt", "young", "unknown", "told_from_ms")
"""Where in half the first one is that is undecided, that was decided a moment ago, and of which nobody knows whether it was
visible; whether one of the undecided is on doubt; from when on doubt tells who was parked."""

_CERTAIN = ("corrupt", "duplicate")
"""Faults that what is visible shows alone. Without them one of these would be leaked, or not known, when no decision is there."""
MAY_WAIT = "may_wait"
"""Stored instead of `out_of_window` of what is so only because it may have been visible: what may wait for an undecided one of its
key, and what was cancelled after a part of it may have been visible, for which nothing waits."""
LOST_OR = "lost or "
"""Stored before the verdict of what is lost if a line counted of which the records do not show it, and may wait then."""


def _is_unknown() -> Column:
    """Whether it cannot be told of a row if its messages became visible: the records that would say it are gone.

    What an open Kafka transaction alone hides is decided, and not on doubt: it holds back no other.
    """
    # What doubt keeps is there, unless a message of it is visible already.
    is_kept = (F.coalesce(doubt_state(), F.lit("")) != "") & (has_times() | F.isnull("v_n"))
    # What was cancelled is settled, whatever of it is visible.
    is_unsure = F.isnotnull("unsure") & ~is_kept & ~(is_abandoned() & has_times())
    # One that is scheduled holds back no other.
    return (F.coalesce(doubt_state(), F.lit("")) != SCHEDULED) & (
        (F.col("verdict") == "out_of_window")
        | ((F.col("verdict") == MAY_WAIT) & ~is_abandoned())
        | (F.col("verdict").isin("leaked", "open", *_CERTAIN) & ((F.col("unsure") == 2) | is_unsure))
    )


def is_lost() -> Column:
    """Whether a stored row is lost, perhaps only if a line counted (`LOST_OR`)."""
    return F.col("verdict").startswith("lost")


def is_missing_in_order() -> Column:
    """Whether a stored row is of messages that are nowhere, and may have waited for others of their ordering key."""
    return is_lost() & is_prepare_order() & F.isnotnull("h_key") & F.isnull("v_n")


def with_ahead(stored: DataFrame, ahead: DataFrame) -> DataFrame:
    """Stored rows with `_waits`: whether they wait rightly for others of their key; `_went_before`: whether they went before an
    undecided one; `_is_unsure`: whether they may wait for what nobody knows.

    What waits behind one that is on doubt is there itself.
    """
    first = F.coalesce("more.h_first", "h_last")
    is_behind = is_prepare_order() & (F.col("undecided") < first)
    # What was on doubt waits there until it is settled, and a commit that is incomplete does not wait.
    may_wait = is_prepare_order() & F.isnull("more.d_last") & F.isnull("more.d_parked_ms")
    waits = (is_behind & ~F.col("is_on_doubt")) | (F.col("young") < first)
    stored_ms = F.coalesce("more.h_first_ms", "h_last_ms")
    is_told = F.isnull("more.d_last") | (stored_ms >= F.col("told_from_ms"))
    is_in_place = is_told & F.isnull("more.d_parked_ms") & ~has_times()
    is_unsure = may_wait & (F.col("unknown") < first)
    found = stored.join(F.broadcast(ahead), ["h_key", "half_partition"], "left")
    found = found.withColumns(
        {"_waits": waits & may_wait, "_went_before": is_behind & is_in_place, "_is_unsure": is_unsure}
    )
    return found.drop(*AHEAD_COLUMNS)


def _whose() -> tuple[Column, ...]:
    """Which attempt a row is of, and where its half records stand."""
    nonce, partition = F.col("nonce_max").alias("nonce"), F.col("half_partition").alias("partition")
    return F.col("txn_id"), nonce, partition, F.col("h_first"), F.col("h_last")


def _claiming() -> tuple[Column, ...]:
    """What a message says of its attempt and its half record, for `_of_rows`."""
    return F.col("txn_id"), F.col("nonce").alias("_attempt"), F.col("partition"), F.col("pos")


def _of_rows(messages: DataFrame, rows: DataFrame) -> DataFrame:
    """Messages with the row of their attempt. Where nothing says which that is (`told`), an id has one alone in that part of half."""
    joined = messages.join(rows, ["txn_id", "partition"])
    is_within = F.col("pos").between(F.col("h_first"), F.col("h_last"))
    return joined.where(F.coalesce(F.col("_attempt") == F.col("nonce"), is_within)).drop("_attempt")


def told(forwarded: DataFrame, attached: DataFrame) -> DataFrame:
    """What became visible, with the nonce of its attempt where that is known (`attached`, of `fold_exactly`).

    Half records of several attempts of one id may be mixed: their offsets alone do not say whose a message is.
    """
    place = ["txn_id", "b", "c"]
    known = attached.select(*place, "nonce")
    return forwarded.drop("nonce").join(known, place, "left")


def visible(forwarded: DataFrame, rows: DataFrame) -> DataFrame:
    """What became visible (`told`) of those transactions → a row per message with its lane, its place there, and its transaction's order."""
    messages = forwarded.select(*_claiming(), "at_ms", *_message(F.col("b"), "c"))
    ordered = _of_rows(messages, rows.select(*_whose(), *_order()))
    return ordered.drop("partition", "pos", "h_first", "h_last")


def visible_alone(rows: DataFrame) -> DataFrame:
    """The same of transactions with one visible message, which say all of it: no record has to be read again."""
    # The one bit that is set has as many lower ones as its number says.
    number = F.bit_count(F.col("v_topics") - 1).cast("bigint")
    message = _message(number, "v_place")
    at_ms = F.col("v_first_ms").alias("at_ms")
    return rows.select("txn_id", F.col("nonce_max").alias("nonce"), *message, at_ms, *_order())


def _order() -> tuple[Column, ...]:
    return (
        F.col("h_key").alias("key"),
        # Where half gets more partitions, the key's offsets in half and op begin anew in another one.
        F.col("half_partition").cast("bigint").alias("half_partition"),
        F.when(is_committed() & ~is_prepare_order(), decision()).alias("decided_now"),
        is_prepare_order().alias("is_prepare"),
        # Of its messages the first one has the place in half: those of two transactions may be mixed there.
        F.when(F.col("h_first") >= 0, F.col("h_first")).alias("stored_now"),
        F.col("o_commit_ms").alias("committed_ms"),
    )


def _message(topic: Column, packed: str) -> tuple[Column, ...]:
    return (
        topic.alias("topic"),
        F.shiftright(packed, OFFSET_BITS).alias("real_partition"),
        F.col(packed).bitwiseAND((1 << OFFSET_BITS) - 1).alias("real_offset"),
    )


def compared(messages: DataFrame, state: DataFrame, *, kept_from_ms: int) -> DataFrame:
    """Messages (`visible`) and how far earlier runs came → the messages that came too late (`is_late`), and how far each key
    has come on each partition now (`is_state`), but for those that did not move after `kept_from_ms`.
    """
    stored = F.when(F.col("is_prepare"), F.col("stored_now")).alias("stored")
    offset = F.col("real_offset")
    now = messages.select(
        "txn_id",
        "nonce",
        *_LANE,
        offset,
        "decided_now",
        "stored_now",
        F.col("decided_now").alias("decided"),
        stored,
        # The time of what is visible may be the user's, of any year.
        F.greatest("at_ms", "committed_ms").alias("seen_ms"),
    )
    absent = F.lit(None)
    # Before the first message of all: one window, and one sort, for what is compared and what is kept.
    earlier = state.select(
        absent.cast("string").alias("txn_id"),
        absent.cast("bigint").alias("nonce"),
        *_LANE,
        F.lit(-1).cast("bigint").alias("real_offset"),
        absent.cast("bigint").alias("decided_now"),
        absent.cast("bigint").alias("stored_now"),
        "decided",
        "stored",
        "seen_ms",
    )
    lane = Window.partitionBy(*_LANE).orderBy("real_offset")
    before = lane.rowsBetween(Window.unboundedPreceding, -1)
    reached = {f"_{name}": F.max(name).over(before) for name in _PROGRESS}
    rows = now.unionByName(earlier).withColumns({**reached, "_next": F.lead("real_offset").over(lane)})
    late = (F.col("decided_now") < F.col("_decided")) | (F.col("stored_now") < F.col("_stored"))
    rows = rows.select(
        "txn_id",
        "nonce",
        *_LANE,
        *(F.greatest(name, f"_{name}").alias(name) for name in _PROGRESS),
        sure(late).alias("is_late"),
        F.isnull("_next").alias("is_state"),
    )
    is_state = F.col("is_state") & (F.col("seen_ms") >= kept_from_ms)
    return rows.withColumn("is_state", is_state).where(F.col("is_late") | F.col("is_state"))
