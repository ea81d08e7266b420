"""Bronze → ledger with verdicts. A run reads what is new and what the last one left open, not what is settled."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from txlayer.errors import UsageError
from txlayer_spark import order
from txlayer_spark.catalog import BatchFolder, Catalog, ReadState, effective
from txlayer_spark.events import EVENT_KINDS, TOPIC_BITS, Names, events
from txlayer_spark.ledger import (
    fold,
    fold_exactly,
    is_stranger,
    merge,
    needs_every_record,
    to_ledger,
    with_distinct,
)
from txlayer_spark.schemas import TopicKind
from txlayer_spark.shelf import Run, Shelf
from txlayer_spark.verdicts import SETTLED, Judging, is_transaction, verdict_column

ORDER_KEPT_MS = 7 * 24 * 3600 * 1000
"""How long an ordering key's place is remembered after its last message: as long as half records are kept."""

_WRITING = {
    f"parquet.enable.dictionary#{column}": "false"
    for column in (
        "txn_id", "nonce", "first_offset", "last_offset", "stored_at", "decided_at", "decided_offset", "forwarded_at",
        "visible_offset",
    )
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
    sources, folders = _sources(spark, catalog, state, last)
    number = last.number + 1
    first_offsets = _first_offsets(catalog, folders, state, last)
    core = fold(sources.new)
    carried = shelf.carried(last)
    if carried is not None:
        core = merge(core.unionByName(carried))
    core = shelf.put(core, "core", number)
    whole, revised = _complete(core, sources, shelf, number)
    judging = Judging(
        cut_ms=state.cut_ms, grace_ms=settings.grace_ms, overdue_ms=settings.overdue_ms,
        first_offsets=first_offsets, unread_topics=_unread(state),
    )  # fmt: skip
    late = _order(spark, sources, whole, shelf, last, judging)
    rows = to_ledger(_judge(whole, late, judging), sources.names)
    rows = rows.withColumn("is_settled", F.col("verdict").isin(*SETTLED).cast("int"))
    columns = shelf.put_rows(rows, number, options=_WRITING)
    has_open = shelf.has_open(number)
    if has_open:
        _carry(spark, core, shelf, number)
    if revised is not None:
        shelf.put(revised, "revised", number)
    run = Run(
        number, state.cut_ms, _last_batches(folders, last), {str(p): o for p, o in first_offsets.items()},
        has_carried=has_open, has_order=last.has_order or late is not None,
        revised=(*last.revised, *((number,) if revised is not None else ())), columns=columns,
    )  # fmt: skip
    shelf.store(run)
    return run


def _sources(
    spark: SparkSession, catalog: Catalog, state: ReadState, last: Run
) -> tuple[_Sources, list[BatchFolder]]:
    names = Names(spark, groups=state.groups, topics=state.topics)
    counting = effective(catalog.complete())
    done = {int(reader): batch for reader, batch in last.batches.items()}
    folders = [f for f in counting if f.last > done.get(f.reader, -1)]
    # A folded folder may hold batches that an earlier run had.
    is_new = F.lit(False)
    for reader in {f.reader for f in folders}:
        mine = F.col("folder").startswith(f"{reader:03d}-")
        is_new = is_new | (mine & (F.col("batch") > done.get(reader, -1)))

    def since(at_ms: int) -> DataFrame:
        records = catalog.records(counting, kinds=EVENT_KINDS)
        day = F.to_date(F.timestamp_millis(F.lit(at_ms)))
        return events(records.where(F.col("day") >= day), names)

    new = catalog.records(folders, kinds=EVENT_KINDS)
    if done:
        new = new.where(is_new)

    def forwarded() -> DataFrame:
        return events(new, names, kinds=[TopicKind.FORWARDED])

    return _Sources(events(new, names), forwarded, since, names, is_first=not last.number), folders


def _first_offsets(
    catalog: Catalog, folders: Sequence[BatchFolder], state: ReadState, last: Run
) -> dict[int, int]:
    """The first half offset that was there to be read, per partition."""
    half = catalog.records(folders, kinds=[TopicKind.HALF])
    rows = half.groupBy("partition").agg(F.min("offset").alias("first")).collect()
    system = state.readers[0]
    ends = next((e for t, e in system.end_offsets.items() if t.endswith(".half")), {})
    # A partition that ended above 0 and of which nothing was read had lost everything before.
    return {
        **{int(partition): end for partition, end in ends.items()},
        **{row.partition: row["first"] for row in rows},
        **{int(partition): first for partition, first in last.first_offsets.items()},
    }


def _unread(state: ReadState) -> int:
    bits = 0
    for number, topic in enumerate(state.topics):
        if topic not in state.real_topics:
            bits |= 1 << min(number, TOPIC_BITS)
    # A column holds it as a signed number.
    return bits - (1 << 64) if bits >> TOPIC_BITS else bits


def _last_batches(folders: Sequence[BatchFolder], last: Run) -> dict[str, int]:
    batches = dict(last.batches)
    for folder in folders:
        batches[str(folder.reader)] = max(folder.last, batches.get(str(folder.reader), -1))
    return batches


def _complete(
    core: DataFrame, sources: _Sources, shelf: Shelf, number: int
) -> tuple[DataFrame, DataFrame | None]:
    """The cores with those that need it folded from every record; ids whose settled rows no longer count, if any."""
    asked = needs_every_record()
    if not sources.is_first:
        asked = asked | is_stranger()
    found = core.agg(
        F.count_if(asked).alias("asked"), F.min(F.when(asked, F.col("born_ms"))).alias("born_ms")
    ).head()
    if found is None or not found.asked:
        return with_distinct(core), None
    ids = core.where(asked).select("txn_id", is_stranger().alias("_stranger"))
    # The producer's clock: a day's margin.
    happened = sources.since(max(0, (found.born_ms or 0) - 86_400_000))
    few = shelf.put(happened.join(ids.select("txn_id"), "txn_id", "left_semi"), "few", number)
    exact = shelf.put(fold_exactly(few), "exact", number)
    revised = None
    if not sources.is_first:
        known = exact.where((F.col("h_n") > 0) | (F.col("v_n") > 0))
        revised = known.join(ids.where("_stranger"), "txn_id", "left_semi")
        revised = revised.select("txn_id").distinct()
    return with_distinct(core.where(~asked)).unionByName(exact), revised


def _order(  # the parts of a run
    spark: SparkSession,
    sources: _Sources,
    whole: DataFrame,
    shelf: Shelf,
    last: Run,
    judging: Judging,
) -> DataFrame | None:
    """Ids that became visible too late; writes how far each key came. None when no key was ever used."""
    keyed = order.keyed(whole)
    before = shelf.order(last)
    counted = keyed.agg(F.count("*").alias("all"), F.count_if(_has_several()).alias("several"))
    found = counted.head()
    if before is None and (found is None or not found["all"]):
        return None
    if before is None:
        before = order.nothing(spark)
    number = last.number + 1
    has_several = found is not None and bool(found.several)
    messages = shelf.put(_messages(sources, keyed, has_several=has_several), "messages", number)
    late = shelf.put(order.out_of_order(messages, before), "late", number)
    reached = order.progress(messages, before)
    recent = reached.where(F.col("seen_ms") >= judging.cut_ms - ORDER_KEPT_MS)
    shelf.put(recent, "order", number)
    return late


def _has_several() -> Column:
    return F.col("v_n") > 1


def _messages(sources: _Sources, keyed: DataFrame, *, has_several: bool) -> DataFrame:
    # A later run's cores may say what an earlier one compared already; what it reads anew they do not.
    if not sources.is_first:
        return order.visible(sources.forwarded(), keyed)
    alone = order.visible_alone(keyed.where(~_has_several()))
    if not has_several:
        return alone
    return alone.unionByName(order.visible(sources.forwarded(), keyed.where(_has_several())))


def _judge(whole: DataFrame, late: DataFrame | None, judging: Judging) -> DataFrame:
    if late is None:
        marked = whole.withColumn("is_late", F.lit(False))
    else:
        marked = whole.join(late.withColumn("_late", F.lit(True)), "txn_id", "left")
        marked = marked.withColumn("is_late", F.coalesce("_late", F.lit(False)))
    return marked.where(is_transaction()).withColumn("verdict", verdict_column(judging))


def _carry(spark: SparkSession, core: DataFrame, shelf: Shelf, number: int) -> None:
    """Keep the cores that the next run judges again."""
    unsettled = spark.read.parquet(shelf.path("rows", number)).where(F.col("is_settled") == 0)
    left = core.join(unsettled.select("txn_id").distinct(), "txn_id", "left_semi")
    shelf.put(left, "carried", number)
