"""What one epoch reads and writes in half, op and doubt, by Spark's own Kafka source and sink. Never: decisions (jobs/sink.py)."""

import json
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from operator import or_

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, Row, SparkSession
from pyspark.sql import functions as F

from txlayer.core import codec
from txlayer.core.checks import CLOCK_ERROR_MS
from txlayer.core.codec import NEXT_VERSION, TIMED_VERSION, VERSION, WHOLE_MAX
from txlayer.core.ledger.transitions import TxnState
from txlayer.core.messages import OpMessage, ParkReason, Resolution, Source
from txlayer.core.partitions import half_partition
from txlayer.core.topics import CLOSED_SETTING, closed_at_ms
from txlayer.errors import NotAuthorisedError, OutcomeUnknownError, RefusedRecordError, TopicMismatchError
from txlayer_spark import lines, sink
from txlayer_spark.brokers import Brokers, NamespaceAddress, Span, Spans
from txlayer_spark.parse import TopicKind, parse
from txlayer_spark.sessions import failures_as_ours, source_options

_AFTER_A_COMMIT = frozenset(state.value for state in (TxnState.WAITING, TxnState.HELD, TxnState.PARKED_COMMITTED))
_UNDECIDED = frozenset({TxnState.OPEN.value, TxnState.PARKED.value})
_COMMIT, _ROLLBACK = Resolution.COMMIT.name, Resolution.ROLLBACK.name
_ANYWHERE = (0, WHOLE_MAX)  # first and last offset of an attempt of which only its end on doubt is known


@dataclass(frozen=True, slots=True)
class Attempt:
    """One attempt, as far as the records that were read show it."""

    txn_id: str
    nonce: str
    first_offset: int
    last_offset: int
    completed_at: int | None = None
    """Half offset at which all messages were there, one after the other; None: some are missing."""
    producer_group: str = ""
    born_ms: int = 0
    decision: Resolution | None = None
    decided_ms: int | None = None  # when that was, by the clock of a broker
    is_settled: bool = False
    """It left the doubt topic, or may be decided there, even if the deciding line is older than what was read."""
    is_incomplete: bool = False
    """Its commit names an earlier half record than the last: a rollback no longer counts, but an abandon or another commit does."""
    twins: tuple[int, ...] = ()  # offsets of second copies that doubt names
    doubted_ms: int | None = None
    """On doubt: when its first half record was stored. A line that no coordinator has read yet may be as old."""

    @property
    def key(self) -> str:
        return f"{self.txn_id}/{self.nonce}"

    @property
    def op_offset(self) -> int:
        """The half record that a resolution must name: it counts whatever copies come after it."""
        return self.first_offset if self.completed_at is None else self.completed_at

    def knows(self, offset: int) -> bool:
        return offset in (self.first_offset, self.completed_at, self.last_offset, *self.twins)

    @property
    def is_open(self) -> bool:
        """It is undecided: a commit may still come."""
        return self.decision is None and not self.is_settled


Attempts = Mapping[str, Attempt]  # {id/nonce: what is known}


def belongs_to(txn_id: str, epoch_id: str) -> bool:
    """Whether a transaction is the epoch, or a part of it."""
    return txn_id == epoch_id or txn_id.startswith(f"{epoch_id}.")


def _begin(epoch_id: str) -> tuple[str, str]:
    """How a key (id/nonce) of the epoch begins, and one of a part of it: epoch 1 is not epoch 11."""
    return f"{epoch_id}/", f"{epoch_id}."


def half_traces(raw: DataFrame, epoch_id: str) -> DataFrame:
    """Half records as Kafka gives them → one row per attempt of the epoch."""
    line = lines.text(lines.header(F.col("headers"), codec.HALF_HEADER))
    starts = (f"{v}|{begin}" for v in (VERSION, NEXT_VERSION, TIMED_VERSION) for begin in _begin(epoch_id))
    # What is out of form belongs to no attempt: coordinators quarantine it.
    ours = parse(raw.where(reduce(or_, map(line.startswith, starts))), TopicKind.HALF)
    ours = ours.where(F.isnull("error"))
    records = F.sort_array(F.collect_list(F.struct("offset", "index", "count")))
    return ours.groupBy("txn_id", "nonce").agg(
        F.min("offset").alias("first_offset"),
        F.max("offset").alias("last_offset"),
        F.min("index").alias("first_index"),
        _completed_at(records).alias("completed_at"),
        F.first("producer_group").alias("producer_group"),
        F.first("born_ms").alias("born_ms"),
    )


def _completed_at(records: Column) -> Column:
    """Where the last message that was due came; as the coordinator joins them, which quarantines what is not the next one."""
    nothing = F.lit(None).cast("bigint")
    begin = F.struct(F.lit(0).cast("bigint").alias("seen"), nothing.alias("count"), nothing.alias("at"))

    def join(known: Column, record: Column) -> Column:
        is_due = (record["index"] == known["seen"]) & (F.isnull(known["count"]) | (record["count"] == known["count"]))
        joined = F.struct(
            (known["seen"] + 1).alias("seen"), record["count"].alias("count"), record["offset"].alias("at")
        )
        return F.when(is_due, joined).otherwise(known)

    return F.aggregate(records, begin, join, lambda known: F.when(known["seen"] == known["count"], known["at"]))


def halves_at(raw: DataFrame, epoch_id: str, offsets: Collection[int]) -> DataFrame:
    """Half records as Kafka gives them → of those offsets, the ones that hold a half record of the epoch."""
    ours = parse(raw.where(F.col("offset").isin(*offsets)), TopicKind.HALF)
    is_ours = (F.col("txn_id") == epoch_id) | F.col("txn_id").startswith(_begin(epoch_id)[1])
    return ours.where(is_ours).select("txn_id", "nonce", "offset")


def op_traces(raw: DataFrame, epoch_id: str) -> DataFrame:
    """Op records as Kafka gives them → one row per commit or rollback of the epoch's attempts."""
    value = lines.text(F.col("value"))
    whole, part = (F.contains(value, F.lit(f"|{begin}")) for begin in _begin(epoch_id))
    # Lines of other transactions in the same record never reach the driver.
    txn_id = F.col("txn_id")
    return (
        parse(raw.where(whole | part), TopicKind.OP)
        .where(F.col("resolution").isin(_COMMIT, _ROLLBACK))
        .where((txn_id == epoch_id) | txn_id.startswith(_begin(epoch_id)[1]))
        .select(
            *("partition", "offset", "line", "txn_id", "nonce", "producer_group"),
            *("resolution", "last_offset", "born_ms", "is_abandon", F.unix_millis("timestamp").alias("at_ms")),
        )
    )


def doubt_traces(raw: DataFrame, epoch_id: str) -> DataFrame:
    """Doubt records as Kafka gives them → every summary, and every end of one, of the epoch's attempts."""
    key = lines.text(F.col("key"))
    whole, part = (key.startswith(begin) for begin in _begin(epoch_id))
    ours = parse(raw.where(whole | part), TopicKind.DOUBT)
    return ours.where("record = 'summary'").select("offset", "txn_id", "nonce", "is_tombstone", "summary")


def fold(
    known: Attempts,
    epoch_id: str,
    *,
    halves: Iterable[Row] = (),
    ops: Iterable[Row] = (),
    doubts: Iterable[Row] = (),
    known_halves: Collection[tuple[str, int]] = (),
) -> dict[str, Attempt]:
    """Add what was read to what was known; rows of other epochs are ignored.

    An attempt is decided by the first rollback that names one of its half records, or by the first commit that does so after
    all of them were there, as for the coordinator (docs/decisions/002). After a commit that names an earlier one, no rollback
    counts. `known_halves`: (id/nonce, offset) of half records that lines name (`in_question`).
    """
    attempts = dict(known)
    for row in halves:
        if belongs_to(row.txn_id, epoch_id):
            offsets = (row.first_offset, row.last_offset, row.completed_at)
            attempt = Attempt(row.txn_id, row.nonce, *offsets, row.producer_group, row.born_ms)
            before = attempts.get(attempt.key)
            attempts[attempt.key] = attempt if before is None else _joined(before, attempt)
    for row in sorted(doubts, key=lambda row: row.offset):
        if belongs_to(row.txn_id, epoch_id):
            _apply_doubt(attempts, row)
    for row in sorted(ops, key=lambda row: (row.offset, row.line)):
        key = f"{row.txn_id}/{row.nonce}"
        if not belongs_to(row.txn_id, epoch_id):
            continue
        # Half records older than what was read cannot be compared: then the line is believed.
        attempt = attempts.get(key) or Attempt(row.txn_id, row.nonce, row.last_offset, row.last_offset, row.last_offset)
        if attempt.decision is None and _counts(attempt, row, known_halves):
            born_ms = attempt.born_ms or row.born_ms
            attempt = replace(_decided(attempt, row), producer_group=row.producer_group, born_ms=born_ms)
            if attempt.decision is not None:
                attempt = replace(attempt, decided_ms=row.at_ms)
        attempts[key] = attempt
    return attempts


def in_question(attempts: Attempts, ops: Iterable[Row]) -> set[tuple[str, int]]:
    """(id/nonce, half offset) that lines name, if the records that were read do not show whether a half record is there."""
    named = ((f"{row.txn_id}/{row.nonce}", row.last_offset) for row in ops)
    return {
        (key, offset)
        for key, offset in named
        if key in attempts
        and not attempts[key].knows(offset)
        and attempts[key].first_offset < offset < attempts[key].last_offset
    }


def _counts(attempt: Attempt, row: Row, known_halves: Collection[tuple[str, int]]) -> bool:
    if attempt.producer_group and row.producer_group != attempt.producer_group:
        return False
    if (attempt.first_offset, attempt.last_offset) == _ANYWHERE:
        return True
    return attempt.knows(row.last_offset) or (attempt.key, row.last_offset) in known_halves


def _decided(attempt: Attempt, row: Row) -> Attempt:
    """The attempt after a line that counts; it was undecided before."""
    if row.resolution == _ROLLBACK:
        is_refused = attempt.is_incomplete and not row.is_abandon
        return attempt if is_refused else replace(attempt, decision=Resolution.ROLLBACK)
    is_anywhere = (attempt.first_offset, attempt.last_offset) == _ANYWHERE
    is_whole = attempt.completed_at is not None and row.last_offset >= attempt.completed_at
    if is_anywhere or is_whole:
        return replace(attempt, decision=Resolution.COMMIT)
    return replace(attempt, is_incomplete=True)


def _joined(before: Attempt, more: Attempt) -> Attempt:
    completed = [at for at in (before.completed_at, more.completed_at) if at is not None]
    return replace(
        before,
        producer_group=before.producer_group or more.producer_group,
        first_offset=min(before.first_offset, more.first_offset),
        last_offset=max(before.last_offset, more.last_offset),
        completed_at=min(completed, default=None),
    )


def _apply_doubt(attempts: dict[str, Attempt], row: Row) -> None:
    key, summary = f"{row.txn_id}/{row.nonce}", row.summary
    attempt = attempts.get(key)
    if row.is_tombstone:
        if attempt is not None:
            attempts[key] = replace(attempt, is_settled=True)
        else:
            attempts[key] = Attempt(row.txn_id, row.nonce, *_ANYWHERE, is_settled=True)
        return
    if summary is None:
        return
    if attempt is None:
        completed_at = summary.last_offset if summary.seen == summary["count"] else None
        offsets = (summary.first_offset, summary.last_offset, completed_at)
        attempt = Attempt(row.txn_id, row.nonce, *offsets, summary.producer_group, summary.born_ms)
    attempt = replace(
        attempt,
        producer_group=attempt.producer_group or summary.producer_group,
        twins=tuple(summary.twin_offsets or ()),
        doubted_ms=summary.appended_ms,
        is_settled=False,
    )
    if summary.reason == ParkReason.INCOMPLETE.value:
        attempt = replace(attempt, is_incomplete=True)
    elif summary.state in _AFTER_A_COMMIT:
        attempt = replace(attempt, decision=Resolution.COMMIT)
    elif summary.state not in _UNDECIDED:
        attempt = replace(attempt, is_settled=True)  # perhaps: only the later release that wrote it knows
    attempts[key] = attempt


REQUEST_BYTES_MAX = 64 * 1024 * 1024  # the Java client's own limit of 1 MiB would refuse what the half topic allows
_ROLES = ("half", "op", "doubt")


class EpochLog:
    """The records of one epoch's transactions, and how far they were read."""

    def __init__(
        self, spark: SparkSession, brokers: Brokers, address: NamespaceAddress, epoch_id: str, ids: Sequence[str]
    ) -> None:
        """Ask how many partitions there are."""
        self.epoch_id, self.ids = epoch_id, ids
        self._spark, self._brokers, self._address = spark, brokers, address
        counts = set(brokers.partition_counts([address.topic(role) for role in _ROLES]).values())
        if len(counts) != 1:
            raise TopicMismatchError(
                topic=f"{address.namespace}.*", expected="one count of partitions", found=str(sorted(counts))
            )
        self.partition_count = counts.pop()
        self._partitions = sorted(
            {half_partition(ordering_key=None, txn_id=txn_id, partition_count=self.partition_count) for txn_id in ids}
        )
        self._half: Spans = {}
        self._op_read: Mapping[int, int] = {}

    def find(self, since_ms: int) -> dict[str, Attempt]:
        """Attempts in op and half since then, and on doubt.

        Half is read in the partitions of these ids only. Op and doubt are small and are read in all partitions: they show the
        parts of an epoch that was split differently.
        """
        topic, everywhere = self._address.topic, range(self.partition_count)
        # Op first: if a decision is before its end, all half records of that transaction were stored earlier.
        op = self._brokers.since(topic("op"), everywhere, at_ms=since_ms)
        half = self._brokers.since(topic("half"), self._partitions, at_ms=since_ms)
        doubt = self._brokers.all_of(topic("doubt"), everywhere)
        self._op_read = {p: span.end for p, span in op.items()}
        halves = self._rows("half", half, half_traces)
        cut_off = {self._home(f"{row.txn_id}/{row.nonce}") for row in halves if row.first_index}
        if cut_off:
            # Other half records of the attempt may be older: without them its commit would look incomplete.
            whole = self._brokers.all_of(topic("half"), cut_off)
            half = {**half, **{p: Span(span.start, half[p].end) for p, span in whole.items()}}
            halves = self._rows("half", half, half_traces)
        self._half = half
        known = fold({}, self.epoch_id, halves=halves, doubts=self._rows("doubt", doubt, doubt_traces))
        op = self._with_older(op, known, since_ms)
        return self._decided(known, self._rows("op", op, op_traces))

    def _with_older(self, op: Spans, known: Attempts, since_ms: int) -> Spans:
        """The same, from the oldest undecided attempt on doubt: while coordinators are down, doubt does not show a commit."""
        oldest: dict[int, int] = {}
        for attempt in known.values():
            if attempt.is_open and attempt.doubted_ms is not None and attempt.doubted_ms < since_ms:
                home = self._home(attempt.key)
                oldest[home] = min(attempt.doubted_ms, oldest.get(home, since_ms))
        starts = {
            home: self._brokers.since(self._address.topic("op"), [home], at_ms=max(at_ms - CLOCK_ERROR_MS, 0))[home]
            for home, at_ms in oldest.items()
        }
        return {**op, **{home: Span(min(span.start, op[home].start), op[home].end) for home, span in starts.items()}}

    def closed_at_ms(self) -> int | None:
        """Since when the namespace accepts no new transactions; None: it does, or its settings may not be read."""
        half = self._address.topic("half")
        found = self._brokers.settings([half], CLOSED_SETTING)
        return closed_at_ms({CLOSED_SETTING: found[half]} if found else {})

    def halves_since(self, known: Attempts) -> dict[str, Attempt]:
        """The same with the half records that came since `find`."""
        new = self._new("half", {p: span.end for p, span in self._half.items()})
        return fold(known, self.epoch_id, halves=self._rows("half", new, half_traces))

    def ops_since(self, known: Attempts, *, begun: Sequence[Attempt] = ()) -> dict[str, Attempt]:
        """The same with the decisions that came since `find`; of `begun` also with the half records that came since."""
        # Op first, as in `find`: a commit names half records that were stored before it.
        new = self._new("op", self._op_read)
        known = self._going_on(known, begun)
        return self._decided(known, self._rows("op", new, op_traces))

    def _going_on(self, known: Attempts, begun: Sequence[Attempt]) -> Attempts:
        """The same with all half records of those attempts: one that lives may have stored some, and decided, since `find`."""
        starts: dict[int, int] = {}
        for attempt in begun:
            home = self._home(attempt.key)
            if (span := self._half.get(home)) is not None:
                starts[home] = min(starts.get(home, span.end), max(span.start, attempt.first_offset))
        if not starts:
            return known
        ends = self._brokers.ends(self._address.topic("half"), starts)
        rows = self._rows("half", {p: Span(start, ends[p]) for p, start in starts.items()}, half_traces)
        keys = {attempt.key for attempt in begun}
        return fold(known, self.epoch_id, halves=[row for row in rows if f"{row.txn_id}/{row.nonce}" in keys])

    def _home(self, key: str) -> int:
        txn_id = key.partition("/")[0]
        return half_partition(ordering_key=None, txn_id=txn_id, partition_count=self.partition_count)

    def _decided(self, known: Attempts, ops: Sequence[Row]) -> dict[str, Attempt]:
        """The same with those decisions; where a line names what may be a half record, the half topic is asked."""
        ops = [row for row in ops if not self._is_void(known, row)]
        older = self._older(known, ops)
        named: dict[int, set[int]] = {}
        for key, offset in in_question(known, ops) | older:
            named.setdefault(self._home(key), set()).add(offset)
        if not named:
            return fold(known, self.epoch_id, ops=ops)
        spans = {p: Span(min(offsets), max(offsets) + 1) for p, offsets in named.items()}
        offsets = {offset for each in named.values() for offset in each}
        rows = self._rows("half", spans, lambda raw, epoch: halves_at(raw, epoch, offsets))
        known_halves = {(f"{row.txn_id}/{row.nonce}", row.offset) for row in rows}
        ops = [row for row in ops if (f"{row.txn_id}/{row.nonce}", row.last_offset) not in older - known_halves]
        return fold(known, self.epoch_id, ops=ops, known_halves=known_halves)

    def _older(self, known: Attempts, ops: Sequence[Row]) -> set[tuple[str, int]]:
        """(id/nonce, half offset) that lines name of attempts that are all before what was read of half, and still there."""
        lines = [(f"{row.txn_id}/{row.nonce}", row) for row in ops if row.partition in self._half]
        rows = [(k, row) for k, row in lines if k not in known and row.last_offset < self._half[row.partition].start]
        if not rows:
            return set()
        there = self._brokers.all_of(self._address.topic("half"), {self._home(key) for key, _ in rows})
        return {(key, row.last_offset) for key, row in rows if row.last_offset >= there[self._home(key)].start}

    def _is_void(self, known: Attempts, row: Row) -> bool:
        """Whether a line names a half record of no attempt: that part of half was read, and nothing of it is there."""
        span = self._half.get(row.partition)
        is_read = span is not None and span.start <= row.last_offset < span.end
        return is_read and f"{row.txn_id}/{row.nonce}" not in known

    def say(self, attempts: Sequence[Attempt], resolution: Resolution, *, reason: str = "") -> None:
        """Write one resolution for each attempt; they are acknowledged."""
        said: dict[str, list[str]] = {}
        for attempt in attempts:
            of_half = (attempt.producer_group, attempt.op_offset, attempt.born_ms)
            op = OpMessage(resolution, attempt.key, *of_half, Source.PRODUCER, reason=reason)
            said.setdefault(attempt.txn_id, []).append(codec.encode_op(op))
        self.write(sink.op_records(self._spark, said, partition_count=self.partition_count), "op")

    def write(self, records: DataFrame, role: str) -> None:
        """Write records through Spark's Kafka sink; they are acknowledged."""
        settings = {
            **self._address.kafka_options,
            "bootstrap.servers": self._address.bootstrap_servers,
            "acks": "all",
            # Half records stay in the order of their index, also when the client sends some again.
            "enable.idempotence": "true",
            "max.request.size": str(REQUEST_BYTES_MAX),
        }
        options = {f"kafka.{name}": value for name, value in settings.items()}
        writer = records.write.format("kafka").options(**options)
        topic = self._address.topic(role)
        try:
            writer.option("topic", topic).save()
        except (PySparkException, Py4JJavaError) as exc:
            told = str(exc)
            if "RecordTooLarge" in told:
                raise RefusedRecordError(
                    "a message is larger than the topic allows (max.message.bytes); nothing was committed", topic=topic
                ) from exc
            if "AuthorizationException" in told:
                raise NotAuthorisedError(f"{topic} may not be written") from exc
            raise OutcomeUnknownError(
                "Spark could not write all records: try the same epoch again", txn_id=self.epoch_id, step=role
            ) from exc

    def _new(self, role: str, read: Mapping[int, int]) -> Spans:
        ends = self._brokers.ends(self._address.topic(role), self._partitions)
        return {p: Span(read[p], end) for p, end in ends.items()}

    def _rows(self, role: str, spans: Spans, traces: Callable[[DataFrame, str], DataFrame]) -> list[Row]:
        """A few rows for each attempt, whatever the spans hold."""
        filled = {p: span for p, span in spans.items() if span.start < span.end}
        if not filled:
            return []
        topic = self._address.topic(role)
        options = source_options(
            bootstrap_servers=self._address.bootstrap_servers, topics=[topic], kafka_options=self._address.kafka_options
        )
        del options["subscribe"]
        raw = (
            self._spark.read.format("kafka")
            .options(**options)
            .option("assign", json.dumps({topic: list(filled)}))
            .option("startingOffsets", json.dumps({topic: {p: s.start for p, s in filled.items()}}))
            .option("endingOffsets", json.dumps({topic: {p: s.end for p, s in filled.items()}}))
            .load()
        )
        with failures_as_ours():
            return traces(raw, self.epoch_id).collect()
