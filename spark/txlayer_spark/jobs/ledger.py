"""Bronze → ledger with verdicts. A run reads what is new and what the last one left open, not what is settled."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from typing import Any
from uuid import uuid4

from pyspark.sql import Column, DataFrame, Observation, SparkSession
from pyspark.sql import functions as F

from txlayer.core.checks import CLOCK_ERROR_MS
from txlayer.errors import UsageError
from txlayer_spark import ledger, lines
from txlayer_spark.catalog import FOLDERS_MIN, BatchFolder, Catalog, Gap, ReadState
from txlayer_spark.events import EVENT_KINDS, TOPIC_BITS, Kind, Names, events, signed
from txlayer_spark.parse import TopicKind, kind_of
from txlayer_spark.sessions import done_again
from txlayer_spark.shelf import EVERY, Run, Shelf, State, to_stored, unfolded
from txlayer_spark.verdicts import Judging, is_final, is_transaction, is_unknown, verdict_column, with_less_fault

ORDER_KEPT_MS = 7 * 24 * 3600 * 1000
"""How long after an ordering key's last message its position is remembered: as long as half records are kept."""

_OF_HALF = ("txn_id", "nonce_max", "born_ms", "h_last", "h_last_ms", "h_key")
_MOSTLY_NEW = (*_OF_HALF, "o_commit", "o_commit_ms", "v_place", "v_last_ms")
_WRITING = {  # what hardly ever comes twice: a dictionary of it is filled, and then thrown away
    # Rows stand in no order: no part of a file can be passed over by its smallest and largest values.
    "parquet.column.statistics.enabled": "false",
    **{f"parquet.enable.dictionary#{column}": "false" for column in _MOSTLY_NEW},
}


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerSettings:
    """Where from and where to, and what counts as late."""

    bronze: str
    root: str
    grace_ms: int = 60_000
    overdue_ms: int = 900_000
    clock_error_ms: int = CLOCK_ERROR_MS  # by how much the clocks of two brokers may differ


@dataclass(frozen=True, slots=True)
class _Sources:
    """What a run reads."""

    new: DataFrame  # what happened since the last run
    forwarded: Callable[[], DataFrame]  # of that, what became visible
    since: Callable[[int], DataFrame]  # whatever happened since a time (in ms)
    names: Names
    edges: _Edges
    is_first: bool  # nothing was settled before
    orphans: DataFrame | None  # ids that earlier runs settled without a half record


@dataclass(frozen=True, slots=True)
class _Edges:
    """Where what was read begins, ends or has a gap, and what that leaves open."""

    gap_times: Mapping[str, int]
    op_gaps: Mapping[int, Sequence[tuple[int, int | None]]]
    shortened_partitions: Sequence[int]
    excused: Mapping[int, int]
    """{number of a real topic: what was decided up to this time may have been visible there and be gone}."""
    hidden: Sequence[int]  # numbers of the real topics whose end cannot be read
    doubt_from_ms: int  # of what was stored earlier compaction may have taken states on doubt before they were read
    doubt_gone_ms: int  # of what was stored earlier it may have taken all that doubt said

    @property
    def excusing_topics(self) -> int:
        """Bits of the real topics whose missing messages need a look at each."""
        return _bits([*self.excused, *self.hidden])


@done_again
def update_ledger(spark: SparkSession, settings: LedgerSettings) -> Run:  # its steps, in their order
    """Fold the records that bronze got since the last run into the ledger; returns the run.

    If it is killed, call it again; the ledger of the last complete run stays readable. Bronze and the
    ledger may be compacted meanwhile.

    Raises:
        UsageError: bronze has not been read once to its end, it was begun anew since the last run, or another run of this ledger began meanwhile: this one does not count.
    """
    catalog, shelf = Catalog(spark, settings.bronze), Shelf(spark, settings.root)
    state = catalog.state()
    if state.cut_ms is None:
        raise UsageError(f"no bronze in {catalog.folder.path}: run txlayer-spark bronze first")
    number, last = shelf.begin(), shelf.last()
    bronze_id = catalog.bronze_id
    if last.bronze_id and last.bronze_id != bronze_id:
        raise UsageError(
            f"{catalog.folder.path} was begun anew, and {shelf.folder.path} was made from the bronze before: what both hold "
            "cannot be told apart. Name another folder for the ledger, or remove it. Nothing was changed"
        )
    known = shelf.ids("orphans", last.orphans).select("txn_id").distinct() if last.orphans else None
    sources, folders = _sources(spark, catalog, state, last, known, settings)
    edges = sources.edges
    judging = Judging(
        cut_ms=state.cut_ms,
        grace_ms=settings.grace_ms,
        overdue_ms=settings.overdue_ms,
        clock_error_ms=settings.clock_error_ms,
        op_gaps=edges.op_gaps,
    )
    carried = shelf.carried(last)
    core = ledger.fold(sources.new)
    if carried is not None:
        core = ledger.merge(core.unionByName(carried))
    rows, counted = _judged(core, carried, sources, judging), Observation()
    halfless = F.count_if(_is_orphan()).alias("orphans")
    crowded = F.count_if(_is_crowded(_shown_topics())).alias("crowded")
    repeated = F.count_if(_may_be_repeated()).alias("repeated")
    is_open = F.col("is_settled") == int(State.OPEN)
    queued = _queued(is_open)
    counts = ledger.counts(_is_keyed_row(edges), ledger.is_several(_shown_topics()))
    rows = rows.observe(counted, *counts, halfless, crowded, repeated, *queued)
    columns = shelf.put_rows(rows, number, options=_WRITING)
    asked = shelf.stored(number, columns, State.ASKED) if shelf.has(number, State.ASKED) else None
    copies = None
    if counted.get["repeated"] and not sources.is_first:
        copies = _copies(shelf, number, columns, carried, last)
    read_now = set(last.unread) & state.judged_topics
    if read_now:
        copies = _union(copies, _judged_too_early(state, read_now, asked, shelf, last))
    exact = _union(None if asked is None else asked.select("txn_id", ledger.first_ms().alias("first_ms")), copies)
    attached = None
    if exact is not None:
        attached = _fold_exactly(exact, asked, copies, sources, judging, shelf, last, number)
    revised = shelf.revised_since_folding(last)
    if attached is not None and not sources.is_first:
        revised = (*revised, number)
    orphans = None
    if counted.get["orphans"] or exact is not None:
        orphans = shelf.stored(number, columns, State.SETTLED).where(_is_orphan()).select("txn_id")
    again = [cores.select("txn_id") for cores in (carried, exact) if cores is not None]
    stored = shelf.counting(number, columns, revised, State.OPEN, State.SETTLED)
    keyed = _keyed(stored, sources, again)
    # What was written has been counted on its way, where no rows came behind it.
    found = _counts(keyed) if again else counted.get
    has_order = bool(found["keyed"]) or last.has_order
    compared = _order(spark, sources, attached, keyed, found, shelf, last, number, judging) if has_order else None
    turned = None
    if counted.get["crowded"] or exact is not None:
        # Several messages on one topic have an order of their own.
        shown = _told(sources, attached)
        shown = shown if attached is None else shown.unionByName(attached)
        turned = ledger.reversed_ids(
            shown, unfolded(stored).where(_is_crowded(F.col("v_topics")) & ~ledger.has_times())
        )
    run = Run(
        number,
        state.cut_ms,
        _last_batches(folders, last),
        edges.gap_times,
        groups=state.groups,
        topics=state.topics,
        has_order=has_order,
        has_carried=any(shelf.has(number, s) for s in (State.OPEN, State.ASKED, State.ALONE)),
        orphans=shelf.put_ids(orphans, "orphans", number, last.orphans),
        revised=revised,
        late=shelf.put_ids(
            _union(_late(compared, is_turned=False), _late(turned, is_turned=True)), "late", number, last.late
        ),
        columns=columns,
        unread=tuple(sorted(set(state.topics) - state.judged_topics)),
        bronze_id=bronze_id,
        ledger_id=last.ledger_id or uuid4().hex,
        skipped=shelf.skipped(last, number),
    )
    queue = counted.get if exact is None else _first(stored.agg(*queued))
    if queue["undecided"] or queue["missing"]:
        # Few miss anything, and of what was settled long ago only these need to know.
        waiting_for = shelf.counting_as_of(run) if queue["missing"] else stored.where(is_open)
        edge_ms = judging.cut_ms - judging.grace_ms
        ahead = ledger.ahead(unfolded(waiting_for), edge_ms=edge_ms, doubt_from_ms=edges.doubt_from_ms)
        run = replace(run, has_ahead=not shelf.put(ahead, "ahead", number).isEmpty())
    shelf.store(run)
    return run


def _late(ids: DataFrame | None, *, is_turned: bool) -> DataFrame | None:
    return None if ids is None else ids.select("txn_id", "nonce", F.lit(is_turned).alias("is_turned"))


def _queued(is_open: Column) -> tuple[Column, ...]:
    """How many rows there are for which others of their key wait (`undecided`), and that may wait themselves (`missing`)."""
    is_undecided = F.isnotnull("h_key") & F.isnull("o_commit")
    return (
        F.count_if(is_open & is_undecided).alias("undecided"),
        F.count_if(is_open & ledger.is_missing_in_order()).alias("missing"),
    )


def read_ledger(spark: SparkSession, root: str) -> DataFrame:
    """The ledger in a folder as of its last run: one row per transaction with its verdict, names and times.

    Do not read the ledger's files: they have the same content in a shorter form.

    Raises:
        UsageError: there is no ledger yet.
    """
    shelf = Shelf(spark, root)
    return shelf.rows(shelf.last()).drop("run", "is_settled")


def _sources(
    spark: SparkSession,
    catalog: Catalog,
    state: ReadState,
    last: Run,
    orphans: DataFrame | None,
    settings: LedgerSettings,
) -> tuple[_Sources, list[BatchFolder]]:
    counting = catalog.cut(state)
    half_partitions, half_gaps = _half(state)
    names = Names(
        spark,
        groups=state.groups,
        topics=state.topics,
        half_partitions=half_partitions,
        half_gaps=half_gaps,
        incarnations=state.incarnations(),
    )
    edges = _edges(catalog, counting, state, last, settings)
    folders = [f for f in counting if f.last > last.batches.get(str(f.reader), -1)]

    def since(at_ms: int) -> DataFrame:
        records = catalog.records(counting, kinds=EVENT_KINDS)
        day = lines.day_of(lines.time_of(F.lit(at_ms)))
        return events(records.where(F.col("day") >= day), names)

    new = catalog.records(folders, kinds=EVENT_KINDS, behind=last.batches)
    # What is not there at all is not planned either, nor compiled.
    found = catalog.kinds(folders)
    kinds = [kind for kind in EVENT_KINDS if kind in found] or EVENT_KINDS

    def forwarded() -> DataFrame:
        return events(new, names, kinds=[TopicKind.FORWARDED])

    happened = events(new, names, kinds=kinds)
    is_first = not last.number
    return _Sources(happened, forwarded, since, names, edges, is_first, orphans), folders


def _half(state: ReadState) -> tuple[int, dict[int, list[tuple[int, int]]]]:
    """How many partitions half has (0: unknown), and the gaps of each."""
    offsets = {} if state.system is None else state.system.end_offsets
    count = next((len(ends) for topic, ends in offsets.items() if topic.endswith(".half")), 0)
    gaps: dict[int, list[tuple[int, int]]] = {}
    for gap in _half_gaps(state):
        gaps.setdefault(gap.partition, []).append((gap.start, gap.end))
    return count, gaps


def _half_gaps(state: ReadState) -> list[Gap]:
    """Those of the namespace itself: a real topic may be called so, too."""
    system = () if state.system is None else state.system.topics
    return [g for g in state.gaps if g.topic in system and kind_of(g.topic) is TopicKind.HALF]


def _edges(
    catalog: Catalog, folders: Sequence[BatchFolder], state: ReadState, last: Run, settings: LedgerSettings
) -> _Edges:
    system = set() if state.system is None else set(state.system.topics)
    named = set(state.topics)
    op_gaps = [g for g in state.gaps if g.topic in system and kind_of(g.topic) is TopicKind.OP]
    real_gaps = [g for g in state.gaps if g.topic in named]
    times = _gap_times(catalog, folders, [*op_gaps, *real_gaps], last)
    lines: dict[int, list[tuple[int, int | None]]] = {}
    for gap in op_gaps:
        lines.setdefault(gap.partition, []).append((gap.start, _until_ms(gap, times, state)))
    until: dict[str, int] = {}
    for gap in real_gaps:
        until_ms = _until_ms(gap, times, state)
        found = _ALWAYS if until_ms is None else until_ms + settings.clock_error_ms
        until[gap.topic] = max(found, until.get(gap.topic, 0))
    for topic in (named - state.judged_topics) | (named & set(state.compacted)):
        until[topic] = _ALWAYS
    numbers = {topic: number for number, topic in enumerate(state.topics)}
    shortened = {gap.partition for gap in _half_gaps(state)}
    doubt_from_ms = 0 if state.doubt_lag_ms is None else (state.cut_ms or 0) - state.doubt_lag_ms
    return _Edges(
        gap_times=times,
        op_gaps=lines,
        shortened_partitions=sorted(shortened),
        excused={numbers[topic]: at_ms for topic, at_ms in until.items()},
        hidden=[numbers[topic] for topic in state.hidden if topic in numbers],
        doubt_from_ms=doubt_from_ms,
        doubt_gone_ms=doubt_from_ms - state.doubt_ends_ms,
    )


_ALWAYS = 1 << 60  # later than any time


def _until_ms(gap: Gap, times: Mapping[str, int], state: ReadState) -> int | None:
    """No record of a gap was written later: neither than the first one behind it, nor than the gap was seen; None: unknown."""
    known = (found.get(gap.name) for found in (times, state.noted_ms))
    return min((at_ms for at_ms in known if at_ms is not None), default=None)


def _gap_times(catalog: Catalog, folders: Sequence[BatchFolder], gaps: Sequence[Gap], last: Run) -> dict[str, int]:
    """{name of a gap: append time of the oldest record behind it}, of those that have one."""
    unknown = [gap for gap in gaps if gap.name not in last.gap_times]
    if not unknown:
        return dict(last.gap_times)
    structs = [
        F.struct(
            F.lit(gap.name).alias("gap"),
            F.lit(gap.topic).alias("topic"),
            F.lit(gap.partition).alias("partition"),
            F.lit(gap.end).cast("bigint").alias("end"),
        )
        for gap in unknown
    ]
    records = catalog.records(folders, kinds=[TopicKind.OP, TopicKind.FORWARDED])
    records = records.where(F.col("is_append_time"))
    behind = records.join(
        F.broadcast(records.sparkSession.range(1).select(F.inline(F.array(*structs)))), ["topic", "partition"]
    ).where(F.col("offset") >= F.col("end"))
    found = behind.groupBy("gap").agg(F.min(F.unix_millis("timestamp")).alias("at_ms")).collect()
    return {**last.gap_times, **{row.gap: row.at_ms for row in found}}


def _bits(numbers: Iterable[int]) -> int:
    bits = 0
    for number in numbers:
        bits |= 1 << min(number, TOPIC_BITS)
    return signed(bits)


def _last_batches(folders: Sequence[BatchFolder], last: Run) -> dict[str, int]:
    batches = dict(last.batches)
    for folder in folders:
        batches[str(folder.reader)] = max(folder.last, batches.get(str(folder.reader), -1))
    return batches


def _judged(core: DataFrame, carried: DataFrame | None, sources: _Sources, judging: Judging) -> DataFrame:
    """The rows of all transactions but of those that need every record: of these, the core alone."""
    edge_ms = judging.cut_ms - judging.grace_ms
    is_young = ledger.is_committed() & (F.col("o_commit_ms") >= edge_ms)
    is_asked = ledger.needs_every_record(excusing_topics=sources.edges.excusing_topics, is_young=lines.sure(is_young))
    if not sources.is_first:
        is_asked = is_asked | ledger.is_stranger()
    begun = None if carried is None else carried.where(ledger.may_be_reversed()).select("txn_id")
    known = _union(sources.orphans, begun)
    if known is not None:
        known = known.distinct().withColumn("_known", F.lit(True))
        core = core.join(known, "txn_id", "left")
        is_asked = is_asked | F.isnotnull("_known")
    counted = ledger.with_distinct(_compiled_alone(core)).withColumn("_asked", is_asked)
    is_row = ~F.col("_asked") & is_transaction()
    kept = F.col("_asked") | is_transaction() | ledger.may_come(judging.cut_ms)
    # Young, and a part of it is visible: numbers cannot say whether as it was stored.
    verdict = F.when(ledger.is_shown_otherwise(), "open").otherwise(verdict_column(judging))
    rows = counted.where(kept).withColumn("verdict", F.when(is_row, verdict))
    state = F.when(F.col("_asked"), int(State.ASKED)).when(~is_row, int(State.ALONE))
    return to_stored(rows.withColumn("is_settled", state.otherwise(_state(judging))), keeps_core=True)


def _compiled_alone(frame: DataFrame) -> DataFrame:
    """The same rows: what makes them is one method of Java's, and what follows is another, since a large one is not compiled."""
    # More partitions than there are: none is joined to another, and no row moves.
    return frame.coalesce(1_000_000)


def _state(judging: Judging) -> Column:
    return F.when(is_final(judging), int(State.SETTLED)).otherwise(int(State.OPEN))


def _union(*parts: DataFrame | None) -> DataFrame | None:
    there = [part for part in parts if part is not None]
    return reduce(DataFrame.union, there) if there else None


def _copies(
    shelf: Shelf, number: int, columns: Mapping[str, Any], carried: DataFrame | None, last: Run
) -> DataFrame | None:
    """The ids of new rows that an earlier run settled, and `first_ms`: half records of them came again; None without any."""
    rows = shelf.stored(number, columns, State.OPEN, State.SETTLED).where(_may_be_repeated())
    if carried is not None:
        rows = rows.join(carried.select("txn_id"), "txn_id", "left_anti")
    times = ("txn_id", F.least("born_ms", _stored_ms()).alias("first_ms"))
    # Few: what was on its way when bronze was read.
    new = shelf.put(rows.select(*times), "new", number)
    first = new.agg(F.min("first_ms").alias("first_ms")).head()
    if first is None or first.first_ms is None:
        return None
    settled = shelf.settled_since(last, at_ms=first.first_ms - _COPY_MARGIN_MS).select(*times)
    both = settled.join(new.select("txn_id"), "txn_id", "left_semi")
    ids = both.select("txn_id").distinct()
    both = both.union(new.join(ids, "txn_id", "left_semi"))
    found = both.groupBy("txn_id").agg(F.min("first_ms").alias("first_ms"))
    found = shelf.put(found, "copies", number)
    return None if found.isEmpty() else found


def _judged_too_early(
    state: ReadState, read_now: Collection[str], asked: DataFrame | None, shelf: Shelf, last: Run
) -> DataFrame:
    """The ids that were settled as `out_of_window` when those topics were not read, and `first_ms`."""
    bits = _bits(at for at, topic in enumerate(state.topics) if topic in read_now)
    rows = shelf.settled_since(last, at_ms=0).where(F.col("verdict").isin("out_of_window", ledger.MAY_WAIT))
    rows = rows.where(F.col("topics").bitwiseAND(bits) != 0)
    if asked is not None:
        rows = rows.join(asked.select("txn_id"), "txn_id", "left_anti")
    return rows.select("txn_id", F.least("born_ms", _stored_ms()).alias("first_ms"))


_COPY_MARGIN_MS = 3_600_000  # how long after the first one a producer may write a second copy
_DAY_MS = 86_400_000  # how far a clock may be wrong


def _fold_exactly(
    exact: DataFrame,
    asked: DataFrame | None,
    copies: DataFrame | None,
    sources: _Sources,
    judging: Judging,
    shelf: Shelf,
    last: Run,
    number: int,
) -> DataFrame:
    """Add the rows of the transactions that need every record (`txn_id`, `first_ms`), and note which rows these take the place of.

    What is visible of them, with the `nonce` of its attempt.
    """
    few, whole = _every_record(exact, sources, shelf, number)
    gone = None if asked is None or sources.is_first else _gone(few, asked, shelf, last)
    if gone is not None:
        shelf.put_rows(gone, number, options=_WRITING, adds=True)
        few = few.join(gone.select("txn_id"), "txn_id", "left_anti")
    if copies is not None:
        # With all of it, so that the next run asks again: the new records alone may look like a transaction of their own.
        cores = ledger.with_distinct(ledger.fold(few.join(copies.select("txn_id"), "txn_id", "left_semi")))
        cores = cores.withColumns({"verdict": F.lit(None).cast("string"), "is_settled": F.lit(int(State.ASKED))})
        shelf.put_rows(to_stored(cores, keeps_core=True), number, options=_WRITING, adds=True)
    spark, edges = few.sparkSession, sources.edges
    excused = spark.range(0).select(*_excuse(0, 0, is_hidden=False))
    if edges.excused or edges.hidden:
        structs = [
            F.struct(*_excuse(topic, edges.excused.get(topic, 0), is_hidden=topic in edges.hidden))
            for topic in sorted({*edges.excused, *edges.hidden})
        ]
        excused = spark.range(1).select(F.inline(F.array(*structs)))
    folded, attached = ledger.fold_exactly(
        few,
        excused,
        shortened_partitions=edges.shortened_partitions,
        clock_error_ms=judging.clock_error_ms,
        put=lambda rows, step: shelf.put(rows, f"steps/{step}", number),
    )
    found = shelf.put(folded, "exact", number)
    rows = with_less_fault(found.where(is_transaction()), judging, "txn_id", "nonce", "partition")
    rows = rows.withColumn("is_settled", _state(judging))
    rows = to_stored(rows, keeps_core=False, is_unknown=is_unknown(judging))
    shelf.put_rows(rows, number, options=_WRITING, adds=True)
    if not sources.is_first:
        of_attempts = found.where((F.col("h_n") > 0) | (F.col("v_n") > 0))
        of_attempts = of_attempts.select("txn_id", F.col("nonce_max").alias("nonce"))
        revised = of_attempts.union(whole.select("txn_id", F.lit(EVERY).cast("bigint")))
        # What half records that are gone left visible has no row beside the attempts that are there.
        is_gone = (F.col("kind") == int(Kind.FORWARDED)) & F.isnotnull("key")
        left = few.where(is_gone).select("txn_id", F.lit(None).cast("bigint"))
        revised = revised.union(left)
        shelf.put(revised.distinct(), "revised", number)
    return attached


def _told(sources: _Sources, attached: DataFrame | None) -> DataFrame:
    """What became visible since the last run, with the `nonce` of its attempt where that is known."""
    forwarded = sources.forwarded()
    return forwarded if attached is None else ledger.told(forwarded, attached)


def _every_record(exact: DataFrame, sources: _Sources, shelf: Shelf, number: int) -> tuple[DataFrame, DataFrame]:
    """What happened to those ids, and the ids of which really all of it was read.

    Of the others it is read from a day before the first record on that a core knows.
    """
    ids = exact.select("txn_id")
    first = exact.agg(F.min(F.coalesce("first_ms", F.lit(0))).alias("first_ms")).head()
    since_ms = max(0, (0 if first is None else first.first_ms or 0) - _DAY_MS)
    few = shelf.put(sources.since(since_ms).join(ids, "txn_id", "left_semi"), "few", number)
    if not since_ms:
        return few, ids
    claim = ["txn_id", "partition", "pos"]
    half = few.where(F.col("kind") == int(Kind.HALF)).select(*claim)
    # Half records that were gone before they could be read are not there either.
    shown = few.where((F.col("kind") == int(Kind.FORWARDED)) & F.isnull("key"))
    whole = shown.join(half, claim, "left_anti").select("txn_id")
    if sources.orphans is not None:
        whole = whole.union(ids.join(sources.orphans, "txn_id"))
    whole = whole.distinct()
    if whole.isEmpty():
        return few, whole
    every = sources.since(0).join(whole, "txn_id", "left_semi")
    few = few.join(whole, "txn_id", "left_anti").unionByName(every)
    return shelf.put(few, "all", number), whole


def _gone(few: DataFrame, asked: DataFrame, shelf: Shelf, last: Run) -> DataFrame | None:
    """The last rows of open transactions of which bronze does not hold every half record any more; None without any.

    They stay as they are until something more comes of them: then they cannot be judged.
    """
    here = few.where(F.col("kind") == int(Kind.HALF)).groupBy("txn_id")
    known = asked.join(here.agg(F.count("*").alias("_here")), "txn_id", "left")
    is_gone = F.col("core.h_n") > F.coalesce("_here", F.lit(0))
    lacking = known.where(is_gone).select("txn_id", F.col("core.seen_ms").alias("_seen_ms"))
    carried = shelf.carried(last)
    if carried is None or lacking.isEmpty():
        return None
    before = lacking.join(carried.select("txn_id", "seen_ms"), "txn_id")
    before = before.select("txn_id", (F.col("_seen_ms") > F.col("seen_ms")).alias("_is_more"))
    rows = shelf.counting(last.number, last.columns, last.revised, State.OPEN)
    rows = rows.join(before, "txn_id")
    verdict = F.when(F.col("_is_more"), "out_of_window").otherwise(F.col("verdict"))
    state = F.when(F.col("_is_more"), int(State.SETTLED)).otherwise(int(State.OPEN))
    changed = {
        "verdict": verdict,
        "is_settled": state,
        "is_exact": F.lit(True),
        "core": F.lit(None).cast(rows.schema["core"].dataType),
    }
    return rows.withColumns(changed).drop("_is_more")


def _excuse(number: int, until_ms: int, *, is_hidden: bool) -> tuple[Column, ...]:
    return (
        F.lit(number).cast("bigint").alias("b"),
        F.lit(until_ms).cast("bigint").alias("until_ms"),
        F.lit(is_hidden).alias("is_hidden"),
    )


def _is_orphan() -> Column:
    """Whether a stored row was settled without a half record that may come yet."""
    is_settled = F.col("is_settled") == int(State.SETTLED)
    return is_settled & F.isnull("h_last") & (F.col("verdict") != "out_of_window")


def _is_keyed_row(edges: _Edges) -> Column:
    """Whether the order of a stored row is judged."""
    is_keyed = ledger.is_keyed(
        doubt_from_ms=edges.doubt_from_ms, doubt_gone_ms=edges.doubt_gone_ms, stored_ms=_stored_ms(), extras="more."
    )
    return (F.col("is_settled") != int(State.ASKED)) & is_keyed


def _may_be_repeated() -> Column:
    """Whether the half records of a stored row may be second copies of some that an earlier run read.

    What is as it should be is not asked about: nearly everything is, and a day of it costs two steps.
    """
    is_row = F.col("is_settled").isin(int(State.OPEN), int(State.SETTLED)) & F.isnotnull("h_last")
    return is_row & ~F.col("verdict").isin("ok", "rolled_back")


def _stored_ms() -> Column:
    return F.coalesce("more.h_first_ms", "h_last_ms")


def _shown_topics() -> Column:
    """Bits of the topics on which messages of a stored row are visible."""
    # `more` is there where they are others than those of the half records.
    return F.coalesce("more.v_topics", "topics")


def _is_crowded(topics: Column) -> Column:
    """Whether one of these topics has several messages of the transaction."""
    return (F.col("v_n") > 1) & ((F.bit_count(topics) < F.col("v_n")) | (topics < 0))


def _keyed(rows: DataFrame, sources: _Sources, again: Sequence[DataFrame]) -> DataFrame:
    """The stored rows whose order is judged; `_several`: of more than one message, or of what an earlier run compared.

    `again`: ids whose rows may say what an earlier run compared.
    """
    edges = sources.edges
    is_keyed = ledger.is_keyed(
        doubt_from_ms=edges.doubt_from_ms, doubt_gone_ms=edges.doubt_gone_ms, stored_ms=F.col("h_first_ms")
    )
    keyed = unfolded(rows).where(is_keyed).withColumn("_several", ledger.is_several(F.col("v_topics")))
    if sources.is_first or not again:
        return keyed
    ids = reduce(DataFrame.union, again).distinct().withColumn("_again", F.lit(True))
    keyed = keyed.join(ids, "txn_id", "left")
    return keyed.withColumn("_several", F.col("_several") | F.isnotnull("_again"))


def _counts(keyed: DataFrame) -> Mapping[str, int]:
    return _first(keyed.agg(*ledger.counts(F.lit(True), F.col("_several"))))


def _first(rows: DataFrame) -> Mapping[str, int]:
    row = rows.first()
    return {} if row is None else row.asDict()


def _order(  # the parts of a run
    spark: SparkSession,
    sources: _Sources,
    attached: DataFrame | None,
    keyed: DataFrame,
    counts: Mapping[str, int],
    shelf: Shelf,
    last: Run,
    number: int,
    judging: Judging,
) -> DataFrame | None:
    """Write how far each key came; the ids of what became visible too late, None without any."""
    before = shelf.order(last)
    messages = ledger.visible_alone(keyed.where(~F.col("_several")))
    if counts["several"]:
        # A row tells the place of one message: of several, the records do.
        several = ledger.visible(_told(sources, attached), keyed.where("_several"))
        messages = messages.unionByName(several)
    state = before if before is not None else ledger.nothing(spark)
    # A run of an earlier release does not say it: where the key leads now.
    home = F.shiftrightunsigned("key", 32) % max(1, sources.names.half_partitions)
    state = state.withColumn("half_partition", F.coalesce("half_partition", home))
    compared = ledger.compared(messages, state, kept_from_ms=judging.cut_ms - ORDER_KEPT_MS)
    counted = Observation()
    compared = compared.observe(counted, F.count_if("is_late").alias("late"))
    found = shelf.put(compared, "order", number)
    return found.where("is_late").select("txn_id", "nonce") if counted.get["late"] else None


@done_again
def compact_ledger(spark: SparkSession, root: str, *, keep_ms: int | None = None, runs_min: int = FOLDERS_MIN) -> int:
    """Fold the settled rows of all runs but the last when `runs_min` or more are new; the run up to which they are folded.

    An earlier large fold stays as it is while less is new. `keep_ms` folds all rows at once, and leaves out transactions without a record in the last
    `keep_ms` before the last run. May be killed and called again; one at a time. A run of the ledger, or a report, may go on beside it.
    """
    shelf = Shelf(spark, root)
    last = shelf.last()
    if not last.number:
        return 0
    if keep_ms is None:
        return shelf.fold(runs_min=runs_min)
    return shelf.fold(kept_from_ms=last.cut_ms - keep_ms)
