"""`verify`: reads a window, judges every transaction in it, and proves or refutes the promises.

Two passes over a file on disk: by transaction id, and by ordering key. Memory holds one id, or one key's late ones, at a time.
"""

import marshal
import sqlite3
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import closing
from functools import partial
from itertools import groupby
from operator import itemgetter
from typing import Any, NamedTuple, Self

from txlayer.adapters.connect import Clients
from txlayer.adapters.ports import Administration, LogReader, Record, TopicPartition, append_time_of, partition_count_of
from txlayer.adapters.readers import Range, log_time, records_of
from txlayer.config import DOUBT_AFTER_MAX, ClientConfig, SystemTopics, milliseconds
from txlayer.core import codec
from txlayer.core.checks import CLOCK_ERROR_MS
from txlayer.core.codec import WHOLE_LENGTH_MAX
from txlayer.core.dead_letters import DLQ_HEADER
from txlayer.core.messages import (
    DLQ_SUFFIX,
    RESERVED_HEADER_PREFIX,
    HalfHeader,
    Headers,
    OpMessage,
    OrderMode,
    Origin,
    Resolution,
    Undecodable,
    nonce_of,
    txn_id_of,
    user_headers,
)
from txlayer.core.partitions import half_partition, murmur2, partition_of_key_hash
from txlayer.core.verification import (
    ABANDON,
    COMMIT,
    CUT,
    FOREVER,
    MISSING,
    RESCHEDULE,
    ROLLBACK,
    UNBOUND,
    ContentTrace,
    DoubtTrace,
    ForwardTrace,
    HalfTrace,
    Judged,
    OpTrace,
    OrderFold,
    OrderMark,
    Promise,
    Proof,
    QuarantineTrace,
    Traces,
    Verdict,
    VerdictFinding,
    Window,
    judge,
    severity,
)
from txlayer.errors import NotAuthorisedError

CACHE_BYTES = 16 * 1024 * 1024  # what SQLite may keep in memory; beyond it, it writes to disk
BATCH_COUNT = 10_000  # traces that are kept together

Trace = HalfTrace | OpTrace | DoubtTrace | ContentTrace | ForwardTrace | QuarantineTrace

_KINDS: tuple[tuple[type[Trace], str], ...] = (
    (HalfTrace, "halves"),
    (OpTrace, "ops"),
    (DoubtTrace, "doubts"),
    (ContentTrace, "contents"),
    (ForwardTrace, "forwards"),
    (QuarantineTrace, "quarantined"),
)
"""(kind of trace, the field of `Traces` that it belongs to)."""
LATER = "unknown"  # stands for an empty state of a summary: it is no end, and no state that this release knows
_NUMBERS = {kind: number for number, (kind, _) in enumerate(_KINDS)}
_SCHEMA = """
CREATE TABLE traces (txn_id TEXT, trace BLOB);
CREATE TABLE marks (key TEXT, topic TEXT, partition INTEGER, offset INTEGER, decided INTEGER, line INTEGER, mark BLOB);
"""
_INSERT = "INSERT INTO traces VALUES (?, ?)"
_MARK = "INSERT INTO marks VALUES (?, ?, ?, ?, ?, ?, ?)"

OrderedMark = tuple[OrderMark, str, str, Verdict]  # (mark, txn_id, nonce, verdict so far)


class TraceIndex:
    """For one thread. Its file has no name, so it ends with the process, whatever ends that."""

    def __init__(self) -> None:
        # Without a name SQLite takes a temporary file. Written once and thrown away: nothing of it has to survive a crash.
        self._connection = sqlite3.connect("", isolation_level=None)
        for setting in (
            "journal_mode = OFF",
            "synchronous = OFF",
            "temp_store = FILE",
            f"cache_size = -{CACHE_BYTES // 1024}",
        ):
            self._connection.execute(f"PRAGMA {setting}")
        self._connection.executescript(_SCHEMA)
        self._waiting: list[tuple[Any, ...]] = []
        self._waiting_marks: list[tuple[Any, ...]] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._connection.close()

    def keep(self, txn_id: str, trace: Trace) -> None:
        self._waiting.append((txn_id, marshal.dumps((_NUMBERS[type(trace)], *trace))))
        if len(self._waiting) >= BATCH_COUNT:
            self._write(_INSERT, self._waiting)

    def each(self) -> Iterator[Traces]:
        """Everything that was kept, id by id; memory holds one id at a time."""
        self._write(_INSERT, self._waiting)
        with closing(self._connection.execute("SELECT * FROM traces ORDER BY txn_id")) as rows:
            for txn_id, group in groupby(rows, key=itemgetter(0)):
                traces = Traces(txn_id)
                for _, raw in group:
                    number, *values = marshal.loads(raw)  # noqa: S302 - written by this process
                    kind, name = _KINDS[number]
                    getattr(traces, name).append(kind._make(values))
                yield traces

    def mark(self, mark: OrderMark, *, txn_id: str, nonce: str, verdict: Verdict) -> None:
        """One visible message of a transaction with an ordering key."""
        key, origin, decided_at, *how = mark
        raw = marshal.dumps((*how, txn_id, nonce, verdict.value))
        self._waiting_marks.append((key, *origin, *(decided_at or (None, mark.half_offset)), raw))
        if len(self._waiting_marks) >= BATCH_COUNT:
            self._write(_MARK, self._waiting_marks)

    def marks(self) -> Iterator[OrderedMark]:
        """All marks by key, topic, partition and offset; those without an offset yet by their decision, or behind these by half."""
        self._write(_MARK, self._waiting_marks)
        query = "SELECT * FROM marks ORDER BY key, topic, partition, offset, decided IS NULL, decided, line"
        with closing(self._connection.execute(query)) as rows:
            for key, topic, partition, offset, decided, line, raw in rows:
                *how, txn_id, nonce, verdict = marshal.loads(raw)  # noqa: S302 - as above
                decided_at = None if decided is None else (decided, line)
                mark = OrderMark(key, Origin(topic, partition, offset), decided_at, *how)
                yield mark, txn_id, nonce, Verdict(verdict)

    def _write(self, statement: str, rows: list[tuple[Any, ...]]) -> None:
        self._connection.execute("BEGIN")
        self._connection.executemany(statement, rows)
        self._connection.execute("COMMIT")
        rows.clear()


EDGE_COUNT = 20_000
"""A second copy of a half record lies at most so far behind the first (docs/explanation/protocol.md, "Stored offsets")."""


class TraceRecords:
    """Turns the records of a window into traces; for one thread."""

    def __init__(self, trace_index: TraceIndex, topics: SystemTopics, *, partition_count: int) -> None:
        self._trace_index = trace_index
        self._topics = topics
        self.partition_count = partition_count
        self.named_topics: set[str] = set()  # real topics that the half messages name
        self.earliest_ms: dict[str, int] = {}  # {real topic: the earliest time that a producer gave to a message of it}
        self.strange_count = 0
        self.half_starts: Mapping[int, int] = {}
        self.half_ends: Mapping[int, int] = {}  # between them half was read
        self.since_ms = 0
        self.is_past = False  # whether half goes on behind what was read of it
        self.stable_ends: Mapping[TopicPartition, int] = {}
        """Of the real topics: behind it the end of a record is not known yet."""
        self.op_firsts: dict[TopicPartition, int] = {}
        """{op partition: the append time of the first record that was read}."""
        self.real_first_ms: dict[TopicPartition, int] = {}
        """{partition of a real topic: the earliest append time there, where the broker keeps append times}."""
        self.ended_quarantined: set[tuple[int, int, int]] = set()
        """Those of quarantined records that a person has ended (as `QuarantineTrace`)."""
        self._edge: set[str] = set()  # ids of transactions whose first half record may lie before the window
        self._seen: defaultdict[TopicPartition, set[int]] = defaultdict(set)

    def half(self, record: Record) -> None:
        headers, partition = record.headers(), record.partition()
        head = codec.half_of(headers)
        if head is None:
            self.strange_count += 1
            return
        options, txn_id = head.options, txn_id_of(head.key)
        crc = (
            half_partition(ordering_key=None, txn_id=txn_id, partition_count=1 << 32)
            if options.key_hash is None
            else partition_of_key_hash(options.key_hash, partition_count=1 << 32)
        )
        # Half may have had fewer partitions (`topics widen`); what came into a wrong one is quarantined.
        if all(crc % count != partition for count in range(self.partition_count, partition, -1)):
            self.strange_count += 1
            return
        self.named_topics.add(head.topic)
        if options.timestamp_ms is not None:
            known = self.earliest_ms.get(head.topic, options.timestamp_ms)
            self.earliest_ms[head.topic] = min(known, options.timestamp_ms)
        if record.offset() < self.half_starts.get(partition, 0) + EDGE_COUNT:
            self._edge.add(txn_id)
        key = record.key()
        content = content_of(head.topic, head.index, key, record.value(), headers)
        trace = HalfTrace(
            nonce_of(head.key),
            partition,
            record.offset(),
            head.index,
            head.count,
            head.topic,
            content,
            record.timestamp()[1],
            options.key_hash or "",
            options.order is OrderMode.PREPARE,
            options.immunity_ms or 0,
            head.producer_group,
            head.born_ms,
            _or_unbound(options.timestamp_ms),
            _or_unbound(options.partition),
            _or_unbound(options.key_murmur) if key is None else murmur2(key),
            options.deliver_at_ms or 0,
            options.deliver_at_ms is not None,
        )
        self._trace_index.keep(txn_id, trace)

    def op(self, record: Record) -> None:
        partition, offset, at_ms = record.partition(), record.offset(), record.timestamp()[1]
        self.op_firsts.setdefault((record.topic(), partition), at_ms)
        lines = codec.split_ops(record.value())
        if isinstance(lines, Undecodable):
            self.strange_count += 1
            return
        first = self.half_starts.get(partition, 0)
        # Where half has lost its end, doubt may tell of the half record that a line names.
        end = self.half_ends.get(partition, 1 << 62) if self.is_past else 1 << 62
        for number, line in enumerate(lines):
            # A line counts only where it names a half record: most lines of a long op log name one outside the window.
            fields = line.split("|", 5)
            if len(fields) > 5 and _is_offset(fields[4]) and not first <= int(fields[4]) < end:
                # At the window's edge a second copy may be in it whose first one, which the line names, is not.
                is_at_edge = int(fields[4]) < first and txn_id_of(fields[2]) in self._edge
                if not is_at_edge:
                    continue
            op = codec.decode_op(line)
            if isinstance(op, Undecodable):
                self.strange_count += 1
            elif op.resolution is not Resolution.UNKNOWN or op.is_reschedule:
                at = (partition, offset, number, at_ms)
                due_ms = _or_unbound(op.time_ms)
                trace = OpTrace(nonce_of(op.key), *at, _said(op), op.last_offset, op.producer_group, due_ms)
                self._trace_index.keep(txn_id_of(op.key), trace)

    def doubt(self, record: Record) -> None:
        parsed = codec.parse_doubt_key(record.key())
        if parsed is None:
            self._quarantined(record)
            return
        key, index = parsed
        txn_id, nonce, offset = txn_id_of(key), nonce_of(key), record.offset()
        value = record.value()
        if index is not None:
            content = None if value is None else self._content_on_doubt(record, index)
            origin = codec.origin_of(record.headers())  # of the half record that doubt keeps
            half_offset = UNBOUND if origin is None else origin[1]
            self._trace_index.keep(txn_id, ContentTrace(nonce, record.partition(), offset, index, content, half_offset))
            return
        summary = None if value is None else codec.decode_summary(key, value)
        if isinstance(summary, Undecodable):
            self.strange_count += 1
            return
        found = DoubtTrace(nonce, record.partition(), offset, record.timestamp()[1], "", -1, appended_ms=0)
        if summary is not None:
            found = found._replace(
                state=summary.state or LATER,
                first_offset=summary.first_offset,
                last_offset=summary.last_offset,
                copies=",".join(map(str, summary.twin_offsets)),
                seen=summary.seen,
                count=summary.count,
                appended_ms=summary.appended_ms,
            )
        self._trace_index.keep(txn_id, found)

    def _quarantined(self, record: Record) -> None:
        """What a coordinator quarantined is no part of the transaction that it names; most name none."""
        kept = codec.parse_quarantine_key(record.key())
        if kept is None:
            return
        origin, line = kept
        place = (origin.partition, origin.offset, -1 if line is None else line)
        if record.value() is None:  # without the transaction that it named
            if origin.topic == (self._topics.half if line is None else self._topics.op):
                self.ended_quarantined.add(place)
            return
        named: HalfHeader | OpMessage | Undecodable | None = None
        if line is not None:
            named = codec.decode_op((record.value() or b"").decode("ascii", "replace"))
        elif origin.topic == self._topics.half:
            named = codec.half_of(record.headers())
        if named is not None and not isinstance(named, Undecodable):
            self._trace_index.keep(txn_id_of(named.key), QuarantineTrace(*place))

    def begin_slice(self) -> None:
        """Forget which committed records were seen: another slice of offsets begins."""
        self._seen.clear()

    def committed(self, record: Record) -> None:
        """A record of a real topic that every reader sees."""
        self._seen[record.topic(), record.partition()].add(record.offset())
        self._forward(record, is_committed=True)

    def uncommitted(self, record: Record) -> None:
        """A record of a real topic; those that were seen committed are passed over."""
        tp = (record.topic(), record.partition())
        appended_ms = append_time_of(record)
        if appended_ms is not None:
            self.real_first_ms[tp] = min(self.real_first_ms.get(tp, appended_ms), appended_ms)
        if record.offset() not in self._seen[tp]:
            self._forward(record, is_committed=False)

    def _forward(self, record: Record, *, is_committed: bool) -> None:
        headers = record.headers()
        ids, origins = [], []
        has_others = False
        for name, value in headers or ():
            if name == codec.ID_HEADER:
                ids.append(value)
            elif name == codec.ORIGIN_HEADER:
                origins.append(value)
            elif name == DLQ_HEADER and record.topic().endswith(DLQ_SUFFIX):
                return  # a dead letter
            elif name.startswith(RESERVED_HEADER_PREFIX) and name != codec.GROUP_HEADER:
                has_others = True
        if not ids and not origins:
            return  # another program's
        origin = codec.decode_origin(origins[0] or b"") if len(origins) == 1 else None
        if len(ids) != 1 or ids[0] is None or origin is None or isinstance(origin, Undecodable) or has_others:
            # a record with our headers in another form is a phantom
            origin = (-1, -1, 0, 0, 0)
        partition, offset, index, count, born_ms = origin
        if index >= count:
            partition = offset = -1
        at_ms, is_append_time = record.timestamp()[1], append_time_of(record) is not None
        if self.is_past and offset >= self.half_ends.get(partition, 1 << 62):
            return  # of a transaction behind the window
        is_older = 0 <= offset < self.half_starts.get(partition, 0)
        txn_id = (ids[0] or b"").decode("utf-8", "replace") if ids else ""
        if is_older and at_ms < self.since_ms and txn_id not in self._edge:
            return  # stored and visible before the window
        topic, number, key = record.topic(), record.partition(), record.key()
        content = content_of(topic, index, key, record.value(), headers)
        is_hidden = not is_committed and record.offset() >= self.stable_ends.get((topic, number), 1 << 62)
        trace = ForwardTrace(
            topic,
            number,
            record.offset(),
            partition,
            offset,
            count,
            content,
            is_committed,
            is_hidden,
            index,
            born_ms,
            at_ms,
            is_append_time,
            None if key is None else hash(key),
        )
        self._trace_index.keep(txn_id, trace)

    def _content_on_doubt(self, record: Record, index: int) -> int:
        if codec.is_cut(record.headers()):
            return CUT
        key, value, headers = codec.decode_content(value=record.value(), headers=record.headers())
        head = codec.half_of(headers)
        return content_of("" if head is None else head.topic, index, key, value, headers)


def content_of(topic: str, index: int, key: bytes | None, value: bytes | None, headers: Headers | None) -> int:
    """64 bits that stand for what must be the same in a half message, on doubt, and in what is forwarded of it.

    They are Python's own hash, whose seed is secret: they are compared within one process alone.
    """
    ours: Any = tuple(user_headers(headers))
    return hash((topic, index, key, value, ours))


def _said(op: OpMessage) -> str:
    if op.is_abandon:
        return ABANDON
    return {Resolution.COMMIT: COMMIT, Resolution.ROLLBACK: ROLLBACK, Resolution.UNKNOWN: RESCHEDULE}[op.resolution]


def _or_unbound(number: int | None) -> int:
    return UNBOUND if number is None else number


def _is_offset(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= WHOLE_LENGTH_MAX


MARGIN_MS = 10 * 60 * 1000
"""Clocks of brokers and coordinators may differ by this, and a producer may take so long to prepare."""
COMPACTION_LAG, TOMBSTONES_KEPT = "min.compaction.lag.ms", "delete.retention.ms"
"""For so long compaction leaves what doubt said; and then, for so long, null values."""
PATIENCE_S = 30.0  # no record and no end of a partition for so long: the broker does not answer any more
SLICE_COUNT = 200_000
"""Offsets of real topics that are read committed and uncommitted before the two are compared: bounds memory."""
_PROGRESS_COUNT = 5_000

COMMITTED, UNCOMMITTED = "read_committed", "read_uncommitted"

Ranges = dict[TopicPartition, Range]


class HeldBack(NamedTuple):
    """A partition on which an open Kafka transaction holds `read_committed` readers back."""

    topic: str
    partition: int
    stable: int
    end: int


class WantedWindow(NamedTuple):
    """Which window."""

    since_ms: int
    until_ms: int | None = None
    topics: tuple[str, ...] = ()  # real topics; empty: those that the half messages name
    grace_ms: int = 60_000
    overdue_ms: int = 900_000
    clock_error_ms: int = CLOCK_ERROR_MS  # by how much the clocks of two brokers may differ


class WindowReading(NamedTuple):
    """What was read."""

    window: Window
    topics: tuple[str, ...]
    record_counts: dict[str, int]
    held_back: tuple[HeldBack, ...]
    strange_count: int  # half and op records that are none of ours; coordinators quarantine them


class WindowReader:
    """Reads one window; for one thread, and to be used once."""

    def __init__(
        self, clients: Clients, *, on_progress: Callable[[int, int], None] = lambda _done, _total: None
    ) -> None:
        """`on_progress` gets how many offsets of how many are read."""
        self._clients = clients
        self._topics = clients.config.topics
        self._on_progress = on_progress
        self._held_back: list[HeldBack] = []
        self._counts: Counter[str] = Counter()
        self._done = self._total = 0

    def read(self, asked: WantedWindow, trace_index: TraceIndex) -> WindowReading:
        with closing(self._clients.admin()) as admin:
            count, _ = (partition_count_of(admin, topic) for topic in (self._topics.half, self._topics.op))
            traces = TraceRecords(trace_index, self._topics, partition_count=count)
            halves = [(self._topics.half, p) for p in range(count)]
            starts = admin.offsets_at(halves, at_ms=asked.since_ms)
            ends = self._up_to(admin, self._ends(admin, halves), asked.until_ms)
            ends = {p: max(end, starts[p]) for p, end in ends.items()}
            traces.half_starts = {p: start for (_, p), start in starts.items()}
            self._read("half", {p: (starts[p], ends[p]) for p in halves}, traces.half)
            wanted = asked.topics or tuple(sorted(t for t in traces.named_topics if not self._topics.is_system(t)))
            count_of = partial(partition_count_of, admin, create=None) if asked.topics else admin.partition_count
            counts = {topic: count_of(topic) for topic in wanted}
            missing = {topic for topic, number in counts.items() if number is None}
            reals = [(topic, p) for topic, number in counts.items() for p in range(number or 0)]
            # What is judged is as old as the brokers say: by a clock that is ahead, what is just on its way is lost. They are asked once
            # more: while half was read, compaction went on, and what doubt may lack is counted from here.
            cut_ms = log_time(admin, self._topics, wall_ms=int(self._clients.wall_clock() * 1000)).latest_ms
            # From here on the order of the lines is the argument (see above).
            real_ranges = self._real_ranges(admin, reals, asked.since_ms, traces.earliest_ms)
            others = self._doubt_and_op(admin, count, asked.since_ms)
            firsts = admin.start_offsets([*real_ranges[0], *(p for p in others if p[0] == self._topics.op)])
            compacted = {topic for topic in wanted if "compact" in self._setting(admin, topic, "cleanup.policy")}
            doubt_lag_ms, tombstones_ms = (
                int(self._setting(admin, self._topics.doubt, name) or 0) for name in (COMPACTION_LAG, TOMBSTONES_KEPT)
            )
            # An undecided one that is older is on doubt.
            is_short = asked.since_ms > cut_ms - milliseconds(DOUBT_AFTER_MAX) - MARGIN_MS
            half_firsts = admin.start_offsets(halves) if is_short else {}
            hiding_waits = frozenset(p[1] for p, first in half_firsts.items() if first < starts[p])
            traces.partition_count = partition_count_of(admin, self._topics.half)
            tails = self._behind(admin, ends, traces.partition_count, asked.until_ms)
        self._read("half", tails, traces.half)
        topics = self._topics
        traces.half_ends = {p: end for (_, p), (_, end) in tails.items()}
        traces.since_ms, traces.is_past = asked.since_ms, asked.until_ms is not None
        traces.stable_ends = {p: end for p, (_, end) in real_ranges[0].items()}
        self._read("op", {p: r for p, r in others.items() if p[0] == topics.op}, traces.op)
        self._read("doubt", {p: r for p, r in others.items() if p[0] == topics.doubt}, traces.doubt)
        self._read_real(*real_ranges, traces)
        window = Window(
            half_topic=topics.half,
            starts=traces.half_starts,
            ends={p: offset for (_, p), offset in ends.items()},
            cut_ms=cut_ms,
            grace_ms=asked.grace_ms,
            overdue_ms=asked.overdue_ms,
            clock_error_ms=asked.clock_error_ms,
            doubt_from_ms=cut_ms - doubt_lag_ms,
            doubt_gone_ms=cut_ms - doubt_lag_ms - tombstones_ms,
            unread_topics=frozenset((traces.named_topics - set(wanted)) | missing | compacted),
            op_from_ms={
                p: from_ms
                for (topic, p), from_ms in _shortened(others, firsts, asked.since_ms, traces.op_firsts).items()
                if topic == topics.op
            },
            real_from_ms=_shortened(real_ranges[1], firsts, asked.since_ms, traces.real_first_ms),
            partition_counts={topic: number or 0 for topic, number in counts.items()},
            is_past=asked.until_ms is not None,
            hiding_waits=hiding_waits,
            ended_quarantined=frozenset(traces.ended_quarantined),
        )
        return WindowReading(window, tuple(wanted), dict(self._counts), self._still_held_back(), traces.strange_count)

    # --- where to begin and to end ------------------------------------------------------------------------------------

    def _up_to(
        self, admin: Administration, ends: dict[TopicPartition, int], until_ms: int | None
    ) -> dict[TopicPartition, int]:
        """The ends, or where records of this time begin before them."""
        if until_ms is None:
            return ends
        until = admin.offsets_at(ends, at_ms=until_ms)
        return {p: min(until[p], end) for p, end in ends.items()}

    def _behind(
        self, admin: Administration, ends: Mapping[TopicPartition, int], partition_count: int, until_ms: int | None
    ) -> Ranges:
        """Half behind these ends, so that transactions that begin before them are whole; all of partitions that were added meanwhile."""
        halves = [(self._topics.half, p) for p in range(partition_count)]
        newest = self._up_to(admin, admin.end_offsets(halves), None if until_ms is None else until_ms + MARGIN_MS)
        return {p: (ends.get(p, 0), max(end, ends.get(p, 0))) for p, end in newest.items()}

    def _real_ranges(
        self, admin: Administration, reals: Collection[TopicPartition], since_ms: int, earliest_ms: Mapping[str, int]
    ) -> tuple[Ranges, Ranges]:
        """(committed, uncommitted)."""
        if not reals:
            return {}, {}
        stable = self._ends(admin, reals)
        whole = admin.end_offsets(reals, is_committed=False)
        starts: dict[TopicPartition, int] = {}
        for topic in {topic for topic, _ in reals}:
            # Forwarded records carry the coordinator's clock, or a time that the user chose.
            at_ms = min(since_ms, earliest_ms.get(topic, since_ms)) - MARGIN_MS
            mine = [p for p in reals if p[0] == topic]
            starts.update(admin.offsets_at(mine, at_ms=at_ms))
        return (
            {p: (starts[p], max(stable[p], starts[p])) for p in reals},
            {p: (starts[p], max(whole[p], starts[p])) for p in reals},
        )

    def _doubt_and_op(self, admin: Administration, count: int, since_ms: int) -> Ranges:
        topics = self._topics
        doubts = [(topics.doubt, p) for p in range(partition_count_of(admin, topics.doubt))]
        ops = [(topics.op, p) for p in range(count)]
        ends = self._ends(admin, doubts) | self._ends(admin, ops)
        starts = admin.start_offsets(doubts)
        starts |= admin.offsets_at(ops, at_ms=since_ms - MARGIN_MS)
        return {p: (starts[p], max(end, starts[p])) for p, end in ends.items()}

    def _setting(self, admin: Administration, topic: str, name: str) -> str:
        """Empty where it may not be read: docs/howto/verify.md says what follows from that."""
        try:
            state = admin.describe_topics([topic]).get(topic)
        except NotAuthorisedError:
            return ""
        return "" if state is None else state.settings.get(name, "")

    def _ends(self, admin: Administration, partitions: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        stable = admin.end_offsets(partitions)
        whole = admin.end_offsets(partitions, is_committed=False)
        self._held_back += [HeldBack(*p, stable[p], whole[p]) for p in partitions if stable[p] < whole[p]]
        return stable

    def _still_held_back(self) -> tuple[HeldBack, ...]:
        # While coordinators run, some Kafka transaction is nearly always open: only one that stays is reported.
        partitions = {(held.topic, held.partition): held for held in self._held_back}
        if not partitions:
            return ()
        with closing(self._clients.admin()) as admin:
            stable = admin.end_offsets(partitions)
        return tuple(held for p, held in partitions.items() if stable[p] == held.stable)

    # --- reading ------------------------------------------------------------------------------------------------------

    def _read(self, role: str, ranges: Ranges, on_record: Callable[[Record], None]) -> None:
        self._plan(ranges)
        with closing(self._reader(COMMITTED)) as reader:
            self._read_with(reader, role, ranges, on_record)

    def _reader(self, isolation: str) -> LogReader:
        return self._clients.reader(isolation=isolation, is_sparing=True)

    def _plan(self, *several: Ranges) -> None:
        self._total += sum(end - start for ranges in several for start, end in ranges.values())

    def _read_with(self, reader: LogReader, role: str, ranges: Ranges, on_record: Callable[[Record], None]) -> None:
        done = 0
        for done, record in enumerate(records_of(reader, ranges, patience_s=PATIENCE_S), start=1):
            on_record(record)
            if not done % _PROGRESS_COUNT:
                self._on_progress(self._done + done, self._total)
        # Markers and compacted records have offsets, too.
        self._done += sum(end - start for start, end in ranges.values())
        self._on_progress(self._done, self._total)
        self._counts[role] += done

    def _read_real(self, committed: Ranges, uncommitted: Ranges, traces: TraceRecords) -> None:
        """Twice, slice by slice: records that a reader of committed ones does not see are found by their offsets."""
        self._plan(committed, uncommitted)
        if not committed:
            return
        size = max(SLICE_COUNT // len(committed), 1)
        with closing(self._reader(COMMITTED)) as stable, closing(self._reader(UNCOMMITTED)) as whole:
            behind = 0
            while any(start + behind < end for start, end in uncommitted.values()):
                traces.begin_slice()
                self._read_with(stable, "committed", _slice(committed, behind, size), traces.committed)
                self._read_with(whole, "uncommitted", _slice(uncommitted, behind, size), traces.uncommitted)
                behind += size


def _shortened(
    ranges: Ranges, firsts: Mapping[TopicPartition, int], since_ms: int, first_ms: Mapping[TopicPartition, int]
) -> dict[TopicPartition, int]:
    """{partition: what came up to this time may be gone, or was not read}, without those that are there from offset 0."""
    found = {}
    for partition, (start, _) in ranges.items():
        if start > firsts.get(partition, start):
            found[partition] = since_ms - MARGIN_MS
        elif start > 0:
            found[partition] = first_ms.get(partition, FOREVER)
    return found


def _slice(ranges: Ranges, behind: int, size: int) -> Ranges:
    return {
        p: (start + behind, min(start + behind + size, end))
        for p, (start, end) in ranges.items()
        if start + behind < end
    }


class Verification(NamedTuple):
    """What was read, and what it proves."""

    reading: WindowReading
    proof: Proof
    read_s: float
    judge_s: float


def verify(
    clients: Clients,
    asked: WantedWindow,
    *,
    on_read: Callable[[int, int], None] = lambda _done, _total: None,
    on_judged: Callable[[int], None] = lambda _count: None,
) -> Verification:
    started = time.monotonic()
    with TraceIndex() as trace_index:
        reading = WindowReader(clients, on_progress=on_read).read(asked, trace_index)
        read_at = time.monotonic()
        proof = prove(trace_index, reading.window, on_judged=on_judged)
        return Verification(reading, proof, read_at - started, time.monotonic() - read_at)


def verdicts_of(
    clients: Clients,
    txn_id: str,
    asked: WantedWindow,
    *,
    on_read: Callable[[int, int], None] = lambda _done, _total: None,
) -> list[Judged | VerdictFinding]:
    """What is said of the attempts of one id in a window: each has its `nonce`, `verdict` and `detail`; the rest as `verify`."""
    with TraceIndex() as trace_index:
        reading = WindowReader(clients, on_progress=on_read).read(asked, trace_index)
        found = judgements(trace_index, reading.window)
        said = (each.finding if isinstance(each, Late) else each for each in found)
        return [each for each in said if each.txn_id == txn_id]


def prove(trace_index: TraceIndex, window: Window, *, on_judged: Callable[[int], None] = lambda _count: None) -> Proof:
    proof = Proof()
    for found in judgements(trace_index, window, on_judged=on_judged):
        if isinstance(found, Late):
            proof.add_late(found.finding, before=found.before)
        else:
            proof.add(found)
    return proof


class Late(NamedTuple):
    """An attempt that was judged before, and whose order is wrong."""

    finding: VerdictFinding
    before: Verdict


def judgements(
    trace_index: TraceIndex, window: Window, *, on_judged: Callable[[int], None] = lambda _count: None
) -> Iterator[Judged | Late]:
    """Each attempt once, and behind them those that came too late for their ordering key, once each."""
    for number, traces in enumerate(trace_index.each(), start=1):
        for judged in judge(traces, window):
            for mark in judged.order_marks:
                trace_index.mark(mark, txn_id=judged.txn_id, nonce=judged.nonce, verdict=judged.verdict)
            if not judged.may_wait:
                yield judged
        if not number % _PROGRESS_COUNT:
            on_judged(number)
    fold, key = OrderFold(), ""
    late: set[tuple[str, str]] = set()  # of one key: a transaction is late once
    for mark, txn_id, nonce, verdict in trace_index.marks():
        if mark.key != key:
            key = mark.key
            late.clear()
        if mark.role == MISSING:
            found = fold.verdict_of_missing(mark, verdict)
            origin = Origin(window.half_topic, mark.origin.partition, mark.half_offset)
            is_waiting = found is Verdict.OPEN
            yield Judged(
                txn_id, nonce, found, origin, "committed, and nowhere", is_committed=True, is_on_its_way=is_waiting
            )
            continue
        why = fold.is_late(mark)
        if why and (txn_id, nonce) not in late:
            late.add((txn_id, nonce))
            finding = VerdictFinding(Verdict.OUT_OF_ORDER, txn_id, nonce, mark.origin, why, (Promise.P6,))
            yield Late(finding, verdict)


def verification_json(found: Verification, *, asked: WantedWindow, config: ClientConfig) -> dict[str, object]:
    proof, reading = found.proof, found.reading
    return {
        "namespace": config.namespace,
        "since_ms": asked.since_ms,
        "until_ms": asked.until_ms,
        "read_until_ms": reading.window.cut_ms,
        "topics": list(reading.topics),
        "unread_topics": sorted(reading.window.unread_topics),
        "is_refuted": proof.is_refuted,
        "transaction_count": proof.transaction_count,
        "promises": {
            status.promise.name: {
                "status": status.word,
                "proved_count": status.proved_count,
                "refuted_count": status.refuted_count,
                "undecidable_count": status.undecidable_count,
            }
            for status in proof.statuses()
        },
        "verdicts": {v.value: proof.verdicts[v] for v in Verdict if proof.verdicts[v]},
        "finding_count": proof.finding_count,
        "findings": [
            {
                "verdict": f.verdict.value,
                "severity": severity(f.verdict).value,
                "txn_id": f.txn_id,
                "nonce": f.nonce,
                "topic": f.origin.topic,
                "partition": f.origin.partition,
                "offset": f.origin.offset,
                "reason": f.detail,
                "breaks": [p.name for p in f.promises],
            }
            for f in proof.findings
        ],
        "open_kafka_transactions": [held._asdict() for held in reading.held_back],
        "strange_count": reading.strange_count,
        "record_counts": reading.record_counts,
        "read_s": round(found.read_s, 3),
        "judge_s": round(found.judge_s, 3),
    }
