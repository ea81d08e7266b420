"""Bronze → ledger with verdicts. A run reads what is new and what the last one left open, not what is settled."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any

from pyspark.sql import Column, DataFrame, Observation, SparkSession
from pyspark.sql import functions as F

from txlayer.errors import UsageError
from txlayer_spark import order
from txlayer_spark.catalog import BatchFolder, Catalog, ReadState
from txlayer_spark.events import EVENT_KINDS, TOPIC_BITS, Names, events, signed
from txlayer_spark.ledger import (
    fold,
    fold_exactly,
    is_stranger,
    may_come,
    merge,
    needs_every_record,
    with_distinct,
)
from txlayer_spark.rows import State, to_stored, unfolded
from txlayer_spark.schemas import TopicKind
from txlayer_spark.shelf import Run, Shelf
from txlayer_spark.verdicts import SETTLED, Judging, is_transaction, verdict_column

ORDER_KEPT_MS = 7 * 24 * 3600 * 1000
"""How long an ordering key's place is remembered after its last message: as long as half records are kept."""

_WRITING = {
    # Rows stand in no order: no part of a file can be passed over by its smallest and largest values.
    "parquet.column.statistics.enabled": "false",
    **{
        f"parquet.enable.dictionary#{column}": "false"
        for column in (
            "txn_id", "nonce_max", "born_ms", "h_last", "h_last_ms", "h_key", "o_commit", "o_commit_ms", "v_place",
            "v_last_ms",
        )
    },
}  # fmt: skip
"""What hardly ever comes twice: a dictionary of it is filled, and then thrown away."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerSettings:
    """Where from and where to, and what counts as late."""

    bronze: str
    root: str
    grace_ms: int = 60_000
    overdue_ms: int = 900_000


@dataclass(frozen=True, slots=True)
class _Sources:
    """What a run reads."""

    new: DataFrame
    """What happened since the last run."""
    forwarded: Callable[[], DataFrame]
    """Of that, what became visible."""
    since: Callable[[int], DataFrame]
    """Whatever happened since a time (in ms)."""
    names: Names
    is_first: bool
    """Nothing was settled before."""
    orphans: DataFrame | None
    """Ids that earlier runs settled without a half record."""


def update_ledger(spark: SparkSession, settings: LedgerSettings) -> Run:
    """Fold what bronze has since the last run into the ledger; the run.

    Killed at any point and called again, it does the same; the ledger of the last complete run stays readable.

    Raises:
        UsageError: bronze has not been read once to its end. Nothing was written.
    """
    catalog, shelf = Catalog(spark, settings.bronze), Shelf(spark, settings.root)
    state, last = catalog.state(), shelf.last()
    if state.cut_ms is None:
        raise UsageError(f"no bronze in {catalog.folder.path}: run txlayer-spark bronze first")
    orphans = (
        shelf.ids("orphans", last.orphans).select("txn_id").distinct() if last.orphans else None
    )
    sources, folders = _sources(spark, catalog, state, last, orphans)
    number = last.number + 1
    first_offsets = _first_offsets(catalog, folders, state, last)
    judging = Judging(
        cut_ms=state.cut_ms, grace_ms=settings.grace_ms, overdue_ms=settings.overdue_ms,
        first_offsets=first_offsets, unread_topics=_unread(state),
    )  # fmt: skip
    carried = shelf.carried(last)
    core = fold(sources.new)
    if carried is not None:
        core = merge(core.unionByName(carried))
    rows, counted = _judged(core, sources, judging), Observation()
    halfless = F.count_if(_is_orphan()).alias("orphans")
    rows = rows.observe(counted, *order.counts(_is_keyed_row(), F.col("v_n") > 1), halfless)
    columns = shelf.put_rows(rows, number, options=_WRITING)
    asked = shelf.stored(number, columns, State.ASKED) if shelf.has(number, State.ASKED) else None
    revised = None if asked is None else _fold_exactly(asked, sources, judging, shelf, number)
    has_orphans = _orphans(
        shelf, number, columns, is_sure=bool(counted.get["orphans"]), asked=asked
    )
    again = [cores.select("txn_id") for cores in (carried, asked) if cores is not None]
    keyed = _keyed(shelf.stored(number, columns, State.OPEN, State.SETTLED), sources, again)
    # What was written has been counted on its way, where no rows came behind it.
    counts = _counts(keyed) if again else counted.get
    has_order = bool(counts["keyed"]) or last.has_order
    has_late = has_order and _order(spark, sources, keyed, counts, shelf, last, judging)
    run = Run(
        number, state.cut_ms, _last_batches(folders, last), {str(p): o for p, o in first_offsets.items()},
        groups=state.groups, topics=state.topics, has_order=has_order,
        has_carried=any(shelf.has(number, s) for s in (State.OPEN, State.ASKED, State.ALONE)),
        orphans=(*last.orphans, *([number] if has_orphans else [])),
        revised=(*last.revised, *([number] if revised else [])),
        late=(*last.late, *([number] if has_late else [])), columns=columns,
    )  # fmt: skip
    shelf.store(run)
    return run


def read_ledger(spark: SparkSession, root: str) -> DataFrame:
    """The ledger in a folder as of its last run: one row per transaction with its verdict, names and times.

    What is stored is shorter than what this gives: read a ledger by this, not its files.

    Raises:
        UsageError: there is no ledger yet.
    """
    shelf = Shelf(spark, root)
    return shelf.rows(shelf.last()).drop("run", "is_settled")


def _sources(
    spark: SparkSession, catalog: Catalog, state: ReadState, last: Run, orphans: DataFrame | None
) -> tuple[_Sources, list[BatchFolder]]:
    names = Names(spark, groups=state.groups, topics=state.topics)
    counting = catalog.cut(state)
    done = {int(reader): batch for reader, batch in last.batches.items()}
    folders = [f for f in counting if f.last > done.get(f.reader, -1)]
    # A folded folder may hold batches that an earlier run had.
    is_new = F.lit(True)
    for reader in {f.reader for f in folders if f.first <= done.get(f.reader, -1)}:
        others = ~F.col("folder").startswith(f"{reader:03d}-")
        is_new = is_new & (others | (F.col("batch") > done[reader]))

    def since(at_ms: int) -> DataFrame:
        records = catalog.records(counting, kinds=EVENT_KINDS)
        day = F.to_date(F.timestamp_millis(F.lit(at_ms)))
        return events(records.where(F.col("day") >= day), names)

    new = catalog.records(folders, kinds=EVENT_KINDS).where(is_new)
    # What is not there at all is not planned either, nor compiled.
    found = catalog.kinds(folders)
    kinds = [kind for kind in EVENT_KINDS if kind in found] or EVENT_KINDS

    def forwarded() -> DataFrame:
        return events(new, names, kinds=[TopicKind.FORWARDED])

    happened = events(new, names, kinds=kinds)
    is_first = not last.number
    return _Sources(happened, forwarded, since, names, is_first, orphans), folders


def _first_offsets(
    catalog: Catalog, folders: Sequence[BatchFolder], state: ReadState, last: Run
) -> dict[int, int]:
    """The first half offset that was there to be read, per partition."""
    known = {int(partition): first for partition, first in last.first_offsets.items()}
    system = state.system
    offsets = {} if system is None else system.end_offsets
    ends = next((e for t, e in offsets.items() if t.endswith(".half")), {})
    # A partition that ended above 0 and of which nothing was read had lost everything before.
    empty = {int(partition): end for partition, end in ends.items()}
    if empty and empty.keys() <= known.keys():
        return known
    half = catalog.records(folders, kinds=[TopicKind.HALF])
    rows = half.groupBy("partition").agg(F.min("offset").alias("first")).collect()
    return {**empty, **{row.partition: row["first"] for row in rows}, **known}


def _unread(state: ReadState) -> int:
    bits = 0
    for number, topic in enumerate(state.topics):
        if topic not in state.judged_topics:
            bits |= 1 << min(number, TOPIC_BITS)
    return signed(bits)


def _last_batches(folders: Sequence[BatchFolder], last: Run) -> dict[str, int]:
    batches = dict(last.batches)
    for folder in folders:
        batches[str(folder.reader)] = max(folder.last, batches.get(str(folder.reader), -1))
    return batches


def _judged(core: DataFrame, sources: _Sources, judging: Judging) -> DataFrame:
    """The rows of all transactions but of those that need every record: of these, the core alone."""
    is_asked = needs_every_record()
    if not sources.is_first:
        is_asked = is_asked | is_stranger()
    if sources.orphans is not None:
        core = core.join(sources.orphans.withColumn("_orphan", F.lit(True)), "txn_id", "left")
        is_asked = is_asked | F.isnotnull("_orphan")
    counted = with_distinct(_compiled_alone(core)).withColumn("_asked", is_asked)
    is_row = ~F.col("_asked") & is_transaction()
    kept = F.col("_asked") | is_transaction() | may_come(judging.cut_ms)
    rows = counted.where(kept).withColumn("verdict", F.when(is_row, verdict_column(judging)))
    state = F.when(F.col("_asked"), int(State.ASKED)).when(~is_row, int(State.ALONE))
    return to_stored(rows.withColumn("is_settled", state.otherwise(_state())), keeps_core=True)


def _compiled_alone(frame: DataFrame) -> DataFrame:
    """The same rows: what makes them is one method of Java's, and what follows is another, since a large one is not compiled."""
    # More partitions than there are: none is joined to another, and no row moves.
    return frame.coalesce(1_000_000)


def _state() -> Column:
    return F.when(F.col("verdict").isin(*SETTLED), int(State.SETTLED)).otherwise(int(State.OPEN))


def _fold_exactly(
    asked: DataFrame, sources: _Sources, judging: Judging, shelf: Shelf, number: int
) -> bool:
    """Add the rows of the transactions that need every record; whether settled rows of earlier runs no longer count."""
    # The producer's clock: a day's margin.
    first = asked.agg(F.min("core.born_ms").alias("born_ms")).head()
    since_ms = max(0, ((first.born_ms if first is not None else None) or 0) - 86_400_000)
    few = sources.since(since_ms).join(asked.select("txn_id"), "txn_id", "left_semi")
    exact = shelf.put(fold_exactly(shelf.put(few, "few", number)), "exact", number)
    rows = exact.where(is_transaction()).withColumn("verdict", verdict_column(judging))
    rows = to_stored(rows.withColumn("is_settled", _state()), keeps_core=False)
    shelf.put_rows(rows, number, options=_WRITING, adds=True)
    if sources.is_first:
        return False
    strangers = asked.where(F.isnull("core.h_n")).select("txn_id")
    if sources.orphans is not None:
        strangers = strangers.union(asked.select("txn_id").join(sources.orphans, "txn_id"))
    revised = exact.where((F.col("h_n") > 0) | (F.col("v_n") > 0))
    revised = revised.join(strangers, "txn_id", "left_semi").select("txn_id").distinct()
    shelf.put(revised, "revised", number)
    return True


def _is_orphan() -> Column:
    """Whether a stored row was settled without a half record that may come yet."""
    is_settled = F.col("is_settled") == int(State.SETTLED)
    return is_settled & F.isnull("h_last") & (F.col("verdict") != "out_of_window")


def _orphans(
    shelf: Shelf, number: int, columns: Mapping[str, Any], *, is_sure: bool, asked: DataFrame | None
) -> bool:
    """Put down the ids that this run settled without a half record; whether there are any."""
    if not is_sure and asked is None:
        return False
    found = shelf.stored(number, columns, State.SETTLED).where(_is_orphan()).select("txn_id")
    return not shelf.put(found, "orphans", number).isEmpty()


def _is_keyed_row() -> Column:
    """Whether the order of a stored row is judged."""
    return (F.col("is_settled") != int(State.ASKED)) & order.is_keyed(aside="more.")


def _keyed(rows: DataFrame, sources: _Sources, again: Sequence[DataFrame]) -> DataFrame:
    """The stored rows whose order is judged; `_several`: of more than one message, or of what an earlier run compared.

    `again`: ids whose rows may say what an earlier run compared.
    """
    keyed = unfolded(rows).where(order.is_keyed()).withColumn("_several", F.col("v_n") > 1)
    if sources.is_first or not again:
        return keyed
    ids = reduce(DataFrame.union, again).distinct().withColumn("_again", F.lit(True))
    keyed = keyed.join(ids, "txn_id", "left")
    return keyed.withColumn("_several", F.col("_several") | F.isnotnull("_again"))


def _counts(keyed: DataFrame) -> Mapping[str, int]:
    row = keyed.agg(*order.counts(F.lit(True), F.col("_several"))).first()
    return {} if row is None else row.asDict()


def _order(  # the parts of a run
    spark: SparkSession,
    sources: _Sources,
    keyed: DataFrame,
    counts: Mapping[str, int],
    shelf: Shelf,
    last: Run,
    judging: Judging,
) -> bool:
    """Write how far each key came, and what became visible too late; whether anything did."""
    number, before = last.number + 1, shelf.order(last)
    messages = order.visible_alone(keyed.where(~F.col("_several")))
    if counts["several"]:
        # A row tells the place of one message: of several, the records do.
        several = order.visible(sources.forwarded(), keyed.where("_several"))
        messages = messages.unionByName(several)
    state = before if before is not None else order.nothing(spark)
    compared = order.compared(messages, state, kept_from_ms=judging.cut_ms - ORDER_KEPT_MS)
    counted = Observation()
    compared = compared.observe(counted, F.count_if("is_late").alias("late"))
    found = shelf.put(compared, "order", number)
    if not counted.get["late"]:
        return False
    shelf.put(found.where("is_late").select("txn_id").distinct(), "late", number)
    return True
