"""Verdicts about transactions, from the records of all topics. Pure: a fold of its own, independent of the ledger's.

The deciding op line follows the ledger's rule (docs/decisions/002): the first commit or rollback that names one of the
attempt's half records. For some lines the records do not show whether they counted. Then every reading that one
coordinator may have had is tried, and an attempt is at fault only if it is wrong in all of them. The tests compare this
with an independent model of the protocol (tests/reference).

`OrderFold` judges P6 over many transactions, in the order of one partition of a real topic and for one ordering key. A
transaction with `order="commit"` must be decided after those before it. Before one with `order="prepare"`, no later one may
have been stored, and no earlier one may be undecided.

`Verdict`, `Severity` and `Promise` are the names that docs/howto/reconcile.md defines and Spark's jobs share; a test compares them. `Proof` counts per promise what is proved and what is refuted. It keeps a bounded number of findings: of a million good
transactions it keeps only counts.
"""

from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from functools import cached_property
from heapq import heappop, heappush
from itertools import product
from typing import NamedTuple

from txlayer.core.checks import IMMUNITY_MS_MAX
from txlayer.core.ledger.transitions import TxnState
from txlayer.core.messages import Origin


class Severity(Enum):
    """What a verdict requires."""

    GOOD = "good"  #: nothing
    WARNING = "warning"  #: an operator should look; the exit code stays 0
    FAULT = "fault"  #: a promise is broken: exit code 1


class Verdict(Enum):
    """Verdicts in order of precedence: a transaction gets the first one whose condition holds."""

    OUT_OF_WINDOW = "out_of_window"  #: a half record of it, or a topic of it, was not read
    ORPHAN = "orphan"  #: visible without a half record
    LEAKED = "leaked"  #: visible though rolled back or undecided
    DUPLICATE = "duplicate"  #: a message is visible twice, or two attempts under one id are
    TORN = "torn"  #: only a part of the transaction is visible
    CORRUPT = "corrupt"  #: what is visible is not what was stored
    OUT_OF_ORDER = "out_of_order"  #: visible after a later one of its ordering key
    PARKED = "parked"  #: on the doubt topic for a person, with its content
    LOST = "lost"  #: committed, not visible, and not held or parked
    CONFLICTING = "conflicting"  #: settled, and a contrary resolution was refused
    ROLLED_BACK = "rolled_back"  #: rolled back or given up, and nothing is visible
    OK = "ok"  #: committed, and every message is visible once as it was stored
    OVERDUE = "overdue"  #: undecided or held for longer than it should be
    OPEN = "open"  #: undecided, held, or in progress


class Promise(Enum):
    """Promises that `verify` proves or refutes; short forms of the sentences in docs/explanation/promises.md."""

    P1 = "no loss"  #: a committed message is visible, or is whole on the doubt topic
    P2 = "no duplicate"  #: a read_committed reader sees each message once
    P3 = "no phantom"  #: no rolled-back, undecided or foreign message is visible
    P4 = "one final decision"  #: the first commit or rollback holds, whatever comes later
    P5 = "atomic visibility"  #: all messages of one transaction, or none
    P6 = "order"  #: messages of one ordering key, in the order of their decisions


_FAULTS = {
    Verdict.ORPHAN: (Promise.P3,),
    Verdict.LEAKED: (Promise.P3,),
    Verdict.DUPLICATE: (Promise.P2,),
    Verdict.TORN: (Promise.P5, Promise.P1),
    Verdict.CORRUPT: (Promise.P3,),
    Verdict.OUT_OF_ORDER: (Promise.P6,),
    Verdict.LOST: (Promise.P1,),
}
_WARNINGS = frozenset({Verdict.OUT_OF_WINDOW, Verdict.PARKED, Verdict.CONFLICTING, Verdict.OVERDUE})


def severity(verdict: Verdict) -> Severity:
    if verdict in _FAULTS:
        return Severity.FAULT
    return Severity.WARNING if verdict in _WARNINGS else Severity.GOOD


def broken_promises(verdict: Verdict, *, is_rolled_back: bool) -> tuple[Promise, ...]:
    """The promises that a transaction with this verdict breaks. If it was rolled back and is visible, it had two decisions."""
    broken = _FAULTS.get(verdict, ())
    return (*broken, Promise.P4) if verdict is Verdict.LEAKED and is_rolled_back else broken


class Advice(NamedTuple):
    """What to do about transactions with one verdict."""

    sentence: str
    command: str
    """`ID`, `TOPIC` and `SINCE` in it stand for the transaction, its real topic, and a time before it was stored."""


_SHOW = "txlayer tx show --id ID --since SINCE"
ADVICE: Mapping[Verdict, Advice] = {
    Verdict.ORPHAN: Advice(
        "Find the client that writes this topic with txlayer's headers: a mirror, a backup, another namespace.",
        "txlayer verify --since SINCE --topics TOPIC",
    ),
    Verdict.LEAKED: Advice(
        "Warn the readers of its topics, and find out which client wrote the visible message.", _SHOW
    ),
    Verdict.DUPLICATE: Advice(
        "Find out which client wrote each copy: one that copies txlayer's headers, or a producer that used the id twice.",
        _SHOW,
    ),
    Verdict.TORN: Advice(
        "Find out whether records of one of its topics were deleted. If not, keep the topics, and report a defect.",
        _SHOW,
    ),
    Verdict.CORRUPT: Advice(
        "Compare the stored message with the visible one, and find out which client wrote that.", _SHOW
    ),
    Verdict.OUT_OF_ORDER: Advice(
        "Find out whether a transaction of its ordering key was settled by hand, or was parked for long.", _SHOW
    ),
    Verdict.LOST: Advice(
        "Start a coordinator if none runs (txlayer coordinator status). If one runs, keep the topics, and report a defect.",
        _SHOW,
    ),
    Verdict.PARKED: Advice(
        "Read why it is parked, look into its service's database, and decide: txlayer tx commit, rollback or abandon.",
        _SHOW,
    ),
    Verdict.OVERDUE: Advice(
        "Start a responder of its group if none runs (txlayer tx stats), or repair its topic; then ask again.",
        "txlayer tx check-now ID",
    ),
    Verdict.CONFLICTING: Advice(
        "Nothing is to be settled: the first decision counts. Ask its service why it said the opposite later.", _SHOW
    ),
    Verdict.OUT_OF_WINDOW: Advice(
        "It cannot be judged any more. Run the audit more often than topics delete records, and read all real topics.",
        "txlayer-spark audit --every 1h",
    ),
}
"""For each verdict that requires something."""

COMMIT, ROLLBACK, ABANDON, RESCHEDULE = "C", "R", "A", "U"
"""Content of an op line that counts. UNKNOWN lines without a time decide nothing and are left out."""

_PARKED = frozenset({TxnState.PARKED.value, TxnState.PARKED_COMMITTED.value})
_WAITS = frozenset({TxnState.HELD.value, TxnState.WAITING.value})
_SCHEDULED = TxnState.SCHEDULED.value
_UNDECIDED = frozenset({"", TxnState.OPEN.value, TxnState.PARKED.value})
_KNOWN = _UNDECIDED | _WAITS | _PARKED | {_SCHEDULED}
"""States of a summary. Of another one, of a later release, only this is certain: the transaction is not settled."""
UNBOUND = -1  # no partition, time or hash is set in the half record
FOREVER = 1 << 62  # later than any time, and greater than any offset
_UNSURE_MAX = 6
"""Limit of lines of one attempt that are tried each by itself; further ones count if the last of these does."""


class HalfTrace(NamedTuple):
    """A half record."""

    nonce: str
    partition: int
    offset: int
    index: int  # type: ignore[assignment]  # of the message; hides tuple.index, which has no caller
    count: int  # type: ignore[assignment]  # likewise
    topic: str  # the real topic
    content: int  # represents topic, index, key, value and user headers
    at_ms: int
    key_hash: str  # of the ordering key; "" without one
    is_prepare: bool  # order="prepare"
    immunity_ms: int
    group: str = ""  # the producer group
    born_ms: int = 0
    wanted_ms: int = UNBOUND  # timestamp for the forwarded record
    wanted_partition: int = UNBOUND  # partition of the real topic
    murmur: int = UNBOUND  # of the bytes that determine the partition
    due_ms: int = 0  # no consumer may see the message before
    is_timed: bool = False  # `due_ms` is set


class OpTrace(NamedTuple):
    """A commit, rollback or abandon line."""

    nonce: str
    partition: int
    offset: int
    line: int
    at_ms: int
    said: str  # COMMIT, ROLLBACK, ABANDON or RESCHEDULE
    last_offset: int
    group: str = ""
    due_ms: int = UNBOUND  # of a line that releases messages, or gives them another time


class DoubtTrace(NamedTuple):
    """A summary on doubt, or its tombstone."""

    nonce: str
    partition: int
    offset: int
    at_ms: int
    state: str  # "": a tombstone
    first_offset: int  # of half; -1 in a tombstone
    last_offset: int = -1
    copies: str = ""  # offsets of second copies, comma-separated
    seen: int = 0  # number of its half records
    count: int = 0  # type: ignore[assignment]  # hides tuple.count, as below
    appended_ms: int = FOREVER  # of the first half record


CUT = -1  # replaces a content's hash; Python's hashes are never -1


class ContentTrace(NamedTuple):
    """A message's content on doubt, or its tombstone."""

    nonce: str
    partition: int
    offset: int
    index: int  # type: ignore[assignment]  # hides tuple.index, as above
    content: int | None  # None: a tombstone; CUT: doubt did not take it whole, and half has it
    half_offset: int = UNBOUND  # of its half record


class QuarantineTrace(NamedTuple):
    """A half record, or an op line, that a coordinator quarantined: it is no part of the transaction that it names."""

    partition: int
    offset: int
    line: int  # -1: a half record


class ForwardTrace(NamedTuple):
    """A record of a real topic with txlayer's headers."""

    topic: str
    partition: int
    offset: int
    half_partition: int  # -1: its headers are malformed
    half_offset: int
    count: int  # type: ignore[assignment]  # hides tuple.count, as above
    content: int
    is_committed: bool  # False: its Kafka transaction is open or was aborted
    is_hidden: bool = False  # behind an open Kafka transaction: its fate is not visible yet
    index: int = 0  # type: ignore[assignment]  # hides tuple.index, as above
    born_ms: int = 0
    at_ms: int = 0
    is_append_time: bool = False  # False: the writer set `at_ms`
    key: int | None = None  # represents its key; None: it has none

    @property
    def origin(self) -> Origin:
        return Origin(self.topic, self.partition, self.offset)


@dataclass(slots=True)
class Traces:
    """All records that were read about one transaction id, in any order."""

    txn_id: str
    halves: list[HalfTrace] = field(default_factory=list)
    ops: list[OpTrace] = field(default_factory=list)
    doubts: list[DoubtTrace] = field(default_factory=list)
    contents: list[ContentTrace] = field(default_factory=list)
    forwards: list[ForwardTrace] = field(default_factory=list)
    quarantined: list[QuarantineTrace] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """The range that was read, and the other inputs of a judgement."""

    half_topic: str
    starts: Mapping[int, int]  # {half partition: first offset that was read}; older records are out of the window
    ends: Mapping[int, int]  # {half partition: first offset whose transactions are no longer judged}
    cut_ms: int  # all records older than this were read, in every topic
    grace_ms: int = 60_000  # transactions younger than this before the cut may still be in progress
    overdue_ms: int = 900_000  # the age, after the immunity, at which an undecided or held transaction is reported
    clock_error_ms: int = 0  # maximum difference between the clocks of two brokers
    unread_topics: frozenset[str] = frozenset()
    """Real topics of the transactions that were not read, or that compaction may have shortened."""
    op_from_ms: Mapping[int, int] = field(default_factory=dict)
    """{op partition: lines up to this time may be deleted}; absent: op was read from its beginning."""
    doubt_from_ms: int = 0
    """For transactions stored before this time, compaction may have removed some of their records on doubt."""
    doubt_gone_ms: int = 0  # for transactions stored before this time, it may have removed all of them, null values too
    real_from_ms: Mapping[tuple[str, int], int] = field(default_factory=dict)
    """{partition of a real topic: records up to this time may be deleted}; absent: it was read from its beginning."""
    partition_counts: Mapping[str, int] = field(default_factory=dict)
    """{real topic: its current number of partitions}; it may have had fewer."""
    is_past: bool = False  # half goes on behind what was read of it
    hiding_waits: frozenset[int] = frozenset()
    """Half partitions that hold records before the window so young that one of them may be undecided and not on doubt."""
    ended_quarantined: frozenset[tuple[int, int, int]] = frozenset()
    """Quarantined records, as `QuarantineTrace` names them, of which doubt only has the null value, which names no transaction."""


VISIBLE, HELD_BACK, UNDECIDED, ON_DOUBT, YOUNG, UNKNOWN, MISSING = range(7)
"""Roles of an order mark. All but the first two come before the visible ones of their key. ON_DOUBT: undecided, and those
that wait for it are on doubt, too. YOUNG: decided or parked a moment ago."""


class OrderMark(NamedTuple):
    """One visible message of a transaction with an ordering key, or a mark that comes before it; input of `OrderFold`."""

    key: str  # the ordering key's hash, and the half partition: one that half has got later begins anew
    origin: Origin
    decided_at: tuple[int, int] | None  # None: decisions do not order it
    half_offset: int  # of the transaction's first half record
    is_prepare: bool = False
    is_in_half_order: bool = True  # False: it may have given up its place, or this is unknown
    role: int = VISIBLE


@dataclass(frozen=True, slots=True)
class Judged:
    """The verdict on one attempt, that is, on one nonce of an id; the nonce is "" if it is unknown."""

    txn_id: str
    nonce: str
    verdict: Verdict
    origin: Origin
    detail: str = ""
    is_committed: bool = False
    is_rolled_back: bool = False
    visible_count: int = 0
    is_on_its_way: bool = False  # too young to tell whether it is lost or torn
    may_have_been_visible: bool = False
    """Not visible, and a message of it may be gone from its real topic, or the topic was not read."""
    order_marks: tuple[OrderMark, ...] = ()
    may_wait: bool = False  # `OrderFold` has to determine whether it is lost or waits for others of its key


_Fault = tuple[Verdict, Origin | None, str]
_PRECEDENCE = (
    Verdict.LEAKED,
    Verdict.DUPLICATE,
    Verdict.TORN,
    Verdict.CORRUPT,
    Verdict.OUT_OF_ORDER,
    Verdict.LOST,
    Verdict.OUT_OF_WINDOW,
)


@dataclass
class _Attempt:
    # What is cached is asked for when all half records and summaries are there, for each of any number of op lines.
    nonce: str
    partition: int
    halves: dict[int, HalfTrace] = field(default_factory=dict)  # index → first record with it
    # By partition and offset, with copies.
    offsets: dict[tuple[int, int], HalfTrace] = field(default_factory=dict)
    shown: list[tuple[int, ForwardTrace]] = field(default_factory=list)
    # Was visible, its half record is deleted.
    gone: set[tuple[int, str]] = field(default_factory=set)
    summaries: list[DoubtTrace] = field(default_factory=list)
    doubt: DoubtTrace | None = None  # the current one
    was_on_doubt: bool = False
    contents: dict[int, int] = field(default_factory=dict)
    # By index, where doubt says that a half record was, ended or not.
    kept_at: dict[int, int] = field(default_factory=dict)
    kept: dict[int, int] = field(default_factory=dict)  # and what it had first
    seen_ms: int = 0
    # Second: is it certain to count?
    lines: list[tuple[OpTrace, bool]] = field(default_factory=list)

    @property
    def is_timed(self) -> bool:
        return any(half.is_timed for half in self.halves.values())

    @property
    def first(self) -> HalfTrace:
        return next(iter(self.halves.values()))  # they are added in the order of the log

    @property
    def state(self) -> str:
        """State on doubt; "" if it is not there."""
        return self.doubt.state if self.doubt else ""

    @property
    def parked_ms(self) -> list[int]:
        """When it was parked, or may have been, as summaries that are still on doubt show."""
        may_be = (summary for summary in self.summaries if summary.state in _PARKED or summary.state not in _KNOWN)
        return [summary.at_ms for summary in may_be]

    @property
    def was_parked(self) -> bool:
        """True if a summary that is still on doubt shows it parked, or may show it."""
        return bool(self.parked_ms)

    @property
    def was_ended_without_half(self) -> bool:
        """True if it was on doubt only because of an op line, and was ended there: it was rolled back before its half records came."""
        had_half = bool(self.kept_at) or any(summary.seen for summary in self.summaries)
        return bool(self.summaries) and not had_half and self.doubt is None

    @property
    def visible(self) -> list[tuple[int, ForwardTrace]]:
        return [(index, forward) for index, forward in self.shown if forward.is_committed]

    @cached_property
    def first_copies(self) -> list[int]:
        """Offset of the first half record of each index, in the order of the log."""
        return [half.offset for half in self.halves.values()]

    @cached_property
    def places(self) -> tuple[list[int], int]:
        """Where the message of each index that is known is in half, sorted; and how many are gone before the last of them."""
        known = self.kept_at | {index: half.offset for index, half in self.halves.items()}
        # Counted: the number of messages comes from the writer and may be any number.
        return sorted(known.values()), max(known) + 1 - len(known)

    @cached_property
    def told_offsets(self) -> tuple[set[int], set[int], int]:
        """The first and the last half offsets that summaries name, and the greatest one of the latter (-1 without any)."""
        told = [summary for summary in self.summaries if summary.seen]
        lasts = {summary.last_offset for summary in told}
        return {summary.first_offset for summary in told}, lasts, max(lasts, default=-1)

    @cached_property
    def known_offsets(self) -> set[int]:
        """Offsets that a line may name once it is on doubt: the first, the last, and second copies."""
        firsts = self.first_copies
        known = {*firsts[:1], *firsts[-1:]} | ({o for _, o in self.offsets} - set(firsts))
        for summary in self.summaries:
            if summary.seen or not firsts:  # else the coordinator did not know them
                known |= {summary.first_offset, summary.last_offset}
                known |= {int(copy) for copy in summary.copies.split(",") if copy}
        return known

    @property
    def is_first_known(self) -> bool:
        """False if half may have been shortened behind its first record."""
        is_there = bool(self.summaries) or 0 in self.halves
        # A line with a time decides nothing; one that names a half record which is there may only not count.
        return is_there and all(
            is_certain or op.due_ms != UNBOUND or (op.partition, op.last_offset) in self.offsets
            for op, is_certain in self.lines
        )

    @property
    def begins_at(self) -> int:
        """Its place in half. What is not known may have been before all that is there."""
        # Without a summary on doubt, the first record that was read is the first of all.
        known = min(self.known_offsets) if self.summaries else self.first.offset
        return known if self.is_first_known else UNBOUND


@dataclass(slots=True)
class _Reading:
    """The result of half and op under one reading of the uncertain lines."""

    decision: OpTrace | None = None
    released: OpTrace | None = None  # the first commit that is complete: it may be visible from here
    seen_ms: int = 0  # of the newest record that counts
    is_abandoned: bool = False
    is_contradicted: bool = False
    released_by: dict[int, OpTrace] = field(default_factory=dict)
    """By index of a message with a time: the line from which on it may be visible."""
    times: list[int] = field(default_factory=list)  # those that are left
    faults: list[_Fault] = field(default_factory=list)
    missing: list[_Fault] = field(default_factory=list)  # unless it waits for others of its key
    verdict: Verdict = Verdict.OUT_OF_WINDOW  # without its faults
    is_on_its_way: bool = False
    is_settled: bool = False

    @property
    def is_commit(self) -> bool:
        return self.decision is not None and self.decision.said == COMMIT

    @property
    def is_broken(self) -> bool:
        return _is_broken(self.faults) or _is_broken(self.missing)

    def find(self, verdict: Verdict, origin: Origin | None, detail: str) -> None:
        self.faults.append((verdict, origin, detail))


def judge(traces: Traces, window: Window) -> list[Judged]:
    """One verdict per attempt that is a transaction of the window, and one per visible record that belongs to no attempt."""
    attempts = _attempts(traces, window)
    strangers = _give_out(traces, attempts, window)
    stored = [attempt for attempt in attempts if attempt.halves]
    readings = [_reading_of(attempt, window) for attempt in stored]
    pairs = list(zip(stored, readings, strict=True))
    is_several = sum(bool(a.visible) and not _is_cut_off(a, reading) for a, reading in pairs) > 1
    found = [
        _judged(traces.txn_id, attempt, reading, window, is_several=is_several)
        for attempt, reading in pairs
        if attempt.begins_at < window.ends.get(attempt.first.partition, 0)
    ]
    return [*found, *_strangers(traces.txn_id, strangers, window)]


# --- what belongs to an attempt ---------------------------------------------------------------------------------------


def _attempts(traces: Traces, window: Window) -> Collection[_Attempt]:
    attempts: dict[tuple[str, int], _Attempt] = {}

    def of(trace: HalfTrace | OpTrace | DoubtTrace | ContentTrace) -> _Attempt:
        # A different ordering key leads the same id and nonce to another partition: it is another transaction.
        key = (trace.nonce, trace.partition)
        found = attempts.get(key)
        if found is None:  # hot path: `setdefault` would create one for each record
            found = attempts[key] = _Attempt(*key)
        return found

    for doubt in sorted(traces.doubts, key=lambda d: d.offset):
        attempt = of(doubt)
        attempt.was_on_doubt = True
        attempt.doubt = doubt if doubt.state else None
        attempt.seen_ms = max(attempt.seen_ms, doubt.at_ms)
        if doubt.state:
            attempt.summaries.append(doubt)
    for content in sorted(traces.contents, key=lambda c: c.offset):
        attempt = of(content)
        attempt.was_on_doubt = True
        if content.content is None:
            attempt.contents.pop(content.index, None)
        else:
            attempt.contents[content.index] = content.content
            attempt.kept_at.setdefault(content.index, content.half_offset)
            attempt.kept.setdefault(content.index, content.content)
    quarantined = {(record.partition, record.offset, record.line) for record in traces.quarantined}

    def is_quarantined(partition: int, offset: int, line: int = -1) -> bool:
        place = (partition, offset, line)
        return place in quarantined or place in window.ended_quarantined

    for half in sorted(traces.halves, key=lambda h: (h.partition, h.offset)):
        if not is_quarantined(half.partition, half.offset):
            _store(of(half), half, window)
    for op in sorted(traces.ops, key=lambda line: (line.offset, line.line)):
        if not is_quarantined(op.partition, op.offset, op.line):
            _add_line(of(op), op, window)
    return attempts.values()


def _store(attempt: _Attempt, half: HalfTrace, window: Window) -> None:
    """Add a half record if its index is the next one and its count equals the first one's; any other is no part of the attempt."""
    if attempt.halves:
        # If half was shortened, its first ones may be second copies: those between are gone.
        is_late = window.starts.get(half.partition, 0) > 0 and half.index > min(attempt.halves)
        is_due = half.index in attempt.halves or half.index == max(attempt.halves) + 1 or is_late
        is_count_right = half.count == attempt.first.count
    else:
        is_due = half.index == 0 or window.starts.get(half.partition, 0) > 0
        # If half was shortened, doubt may contain the count of the first half record.
        promised = attempt.summaries[-1].count if attempt.summaries else 0
        is_count_right = half.count == (promised or half.count)
    if not is_due or not is_count_right:
        return
    # The broker may store a record twice (librdkafka #4953): the first one of an index counts.
    attempt.halves.setdefault(half.index, half)
    attempt.offsets[half.partition, half.offset] = half
    attempt.seen_ms = max(attempt.seen_ms, half.at_ms)


def _add_line(attempt: _Attempt, op: OpTrace, window: Window) -> None:
    """Add a line that counts, or may have counted."""
    if not attempt.halves or op.group != attempt.first.group:
        return
    half = attempt.offsets.get((op.partition, op.last_offset))
    if half is not None and half.at_ms > op.at_ms + window.clock_error_ms:
        is_certain = False  # the line came first: it waited for its half record
    elif half is not None:
        may_have_been_on_doubt = attempt.was_on_doubt or half.at_ms < window.doubt_gone_ms
        is_certain = not may_have_been_on_doubt or _is_kept(attempt, op.last_offset, window)
    elif op.last_offset in attempt.known_offsets:
        is_certain = _is_kept(attempt, op.last_offset, window)
    elif op.last_offset < window.starts.get(op.partition, 0):
        known = attempt.known_offsets
        if attempt.summaries and not min(known) < op.last_offset < max(known):
            return
        is_certain = False
    else:
        return
    attempt.lines.append((op, is_certain))


def _is_kept(attempt: _Attempt, offset: int, window: Window) -> bool:
    """True if doubt keeps this half offset. What was the last one is forgotten there when a further half record joins."""
    first, last = attempt.first_copies[0], attempt.first_copies[-1]
    told_firsts, told_lasts, told_last = attempt.told_offsets
    half = attempt.offsets.get((attempt.partition, offset))
    is_first = offset == first or offset in told_firsts
    is_copy = half is None or attempt.halves[half.index] is not half
    has_later = told_last > offset or (not is_copy and offset != last)
    may_have_later = has_later or (window.is_past and len(attempt.halves) < attempt.first.count)
    is_known = offset in attempt.known_offsets
    return is_known and (is_first or not may_have_later or (offset != last and offset not in told_lasts))


def _give_out(traces: Traces, attempts: Collection[_Attempt], window: Window) -> list[ForwardTrace]:
    """Assign each forwarded record to the attempt whose half record it names. Returns those that name none."""
    owners = {position: attempt for attempt in attempts for position in attempt.offsets}
    stored = {(half.partition, half.offset): half for half in traces.halves}
    strangers = []
    claims: _Claims | None = None
    for forward in sorted(traces.forwards, key=lambda f: f.origin):
        position = (forward.half_partition, forward.half_offset)
        attempt, half = owners.get(position), stored.get(position)
        if half is None or not _is_claimed(half, forward):
            claims = _Claims(attempts, window) if claims is None else claims
            attempt = claims.owner_of(forward)
        if attempt is None:
            strangers.append(forward)
        else:
            attempt.shown.append((forward.index, forward))
    return strangers


class _Claims:
    """Whose a record may be that names no half record: by what it says of its message, and by summaries, since doubt does not keep the
    half offsets between the first and the last. An id may have very many attempts, and as many such records.
    """

    def __init__(self, attempts: Collection[_Attempt], window: Window) -> None:
        self._window = window
        # Where half has lost a message, and doubt had it.
        self._by_place = defaultdict[tuple[int, ...], list[_Attempt]](list)
        self._by_claim = defaultdict[tuple[int, ...], list[_Attempt]](list)
        self._on_doubt: dict[tuple[int, ...], _OnDoubt] = {}
        self._gone: set[tuple[object, ...]] = set()
        for attempt in attempts:
            for index in attempt.kept_at.keys() - attempt.halves:
                self._by_place[attempt.partition, index, attempt.kept_at[index]].append(attempt)
                if attempt.halves:
                    claim = (attempt.first.count, attempt.first.born_ms)
                    self._by_claim[attempt.partition, index, *claim].append(attempt)
        for attempt in attempts:
            if attempt.was_on_doubt or window.starts.get(attempt.partition, 0):
                for index, half in attempt.halves.items():
                    self._by_claim[attempt.partition, index, half.count, half.born_ms].append(attempt)

    def owner_of(self, forward: ForwardTrace) -> _Attempt | None:
        place = (forward.half_partition, forward.index)
        for attempt in self._by_place.get((*place, forward.half_offset), ()):
            if not attempt.halves:
                return None
            if (attempt.first.count, attempt.first.born_ms) == (forward.count, forward.born_ms):
                return attempt
        claim = (*place, forward.count, forward.born_ms)
        attempts = self._by_claim.get(claim, [])
        if claim not in self._on_doubt:
            self._on_doubt[claim] = _OnDoubt([attempt for attempt in attempts if attempt.was_on_doubt])
        owner = self._on_doubt[claim].at(forward.half_offset)
        is_gone = forward.half_offset < self._window.starts.get(forward.half_partition, 0)
        if owner is None and is_gone and (*claim, forward.topic) not in self._gone:
            self._gone.add((*claim, forward.topic))
            for attempt in attempts:
                attempt.gone.add((forward.index, forward.topic))
        return owner


class _OnDoubt:
    """Attempts on doubt, by the half offsets that doubt names and those between them."""

    def __init__(self, attempts: Sequence[_Attempt]) -> None:
        self._named: dict[int, _Attempt] = {}
        spans = []
        for attempt in attempts:
            known = attempt.known_offsets
            low, high = min(known), max(known)
            spans.append((low, high, attempt))
            for offset in known | {*attempt.kept_at.values()}:
                if low <= offset <= high:
                    self._named.setdefault(offset, attempt)
        self._edges = sorted({edge for low, high, _ in spans for edge in (low, high + 1)})
        self._firsts: list[_Attempt | None] = []  # from each edge on
        coming = sorted(range(len(spans)), key=lambda number: spans[number][0], reverse=True)
        around: list[int] = []
        for edge in self._edges:
            while coming and spans[coming[-1]][0] <= edge:
                heappush(around, coming.pop())
            while around and spans[around[0]][1] < edge:
                heappop(around)
            self._firsts.append(spans[around[0]][2] if around else None)

    def at(self, offset: int) -> _Attempt | None:
        """Of two attempts prepared in one millisecond, that of which doubt names this half record; else the first around it."""
        found = bisect_right(self._edges, offset)
        return self._named.get(offset) or (self._firsts[found - 1] if found else None)


def _is_claimed(half: HalfTrace, forward: ForwardTrace) -> bool:
    return (half.index, half.count, half.born_ms) == (forward.index, forward.count, forward.born_ms)


# --- one attempt ------------------------------------------------------------------------------------------------------


def _reading_of(attempt: _Attempt, window: Window) -> _Reading:
    """Return the reading of its lines with the least fault: that in which all count, or of the others the first one with the least."""
    countings = _countings(attempt.lines)
    best = _read(attempt, window, next(countings))
    # What settles an attempt ends it on doubt.
    is_wrong = best.is_broken or (best.is_settled and attempt.doubt is not None)
    # If half lacks a part of it, nothing about it is certain, and no reading has less fault.
    if not is_wrong or _is_cut_off(attempt, best):
        return best
    readings = [best, *(_read(attempt, window, counting) for counting in countings)]
    best = min(readings, key=lambda reading: _rank(attempt, reading, reading.faults))
    other = min(readings, key=lambda reading: _rank(attempt, reading, reading.faults + reading.missing))
    if best.is_broken and not other.is_broken:  # unless it waits for others of its key
        best.missing = other.faults[:1] or [(other.verdict, None, "")]
    return best


def _rank(attempt: _Attempt, reading: _Reading, faults: Sequence[_Fault]) -> int:
    """0: nothing is wrong with it, 1: it is not certain, or doubt still has what is settled, 2: a fault."""
    if _is_cut_off(attempt, reading):
        return 1
    is_not_ended = reading.is_settled and attempt.doubt is not None
    return 2 if _is_broken(faults) else int(bool(faults) or is_not_ended)


def _countings(lines: Sequence[tuple[OpTrace, bool]]) -> Iterator[list[OpTrace]]:
    """Yield the lines that may have counted together; first all of them. docs/explanation/protocol.md has the rule."""
    offsets = [op.last_offset for op, is_certain in lines if not is_certain]
    for chosen in product((True, False), repeat=min(len(offsets), _UNSURE_MAX)):
        forgotten = UNBOUND  # once a line did not count: the last half record that nobody knows any more
        for offset, is_counting in zip(offsets, chosen, strict=False):
            if is_counting and offset <= forgotten:
                break
            if not is_counting:
                forgotten = max(forgotten, offset)
        else:
            choices = iter((*chosen, *chosen[-1:] * (len(offsets) - len(chosen))))
            yield [op for op, is_certain in lines if is_certain or next(choices)]


def _is_cut_off(attempt: _Attempt, reading: _Reading) -> bool:
    """True if half messages of it are older than the window: they are written in order."""
    is_incomplete = reading.released is not None and len(attempt.halves) < attempt.first.count
    return 0 not in attempt.halves or is_incomplete


def _judged(txn_id: str, attempt: _Attempt, reading: _Reading, window: Window, *, is_several: bool) -> Judged:
    _compare_visible(attempt, reading, window)
    first, visible, faults = attempt.first, attempt.visible, reading.faults
    if visible and is_several:
        faults.append((Verdict.DUPLICATE, visible[0][1].origin, "another attempt of the id is visible"))
    is_cut_off = _is_cut_off(attempt, reading)
    if is_cut_off:
        faults = [(Verdict.OUT_OF_WINDOW, None, "half messages of it are older than the window")]
    may_wait = bool(reading.missing) and not faults
    found = sorted(faults, key=lambda fault: _PRECEDENCE.index(fault[0]))
    verdict, origin, detail = next(iter(found or reading.missing), (reading.verdict, None, ""))
    return Judged(
        txn_id=txn_id,
        nonce=attempt.nonce,
        verdict=verdict,
        origin=origin or Origin(window.half_topic, first.partition, first.offset),
        detail=detail,
        is_committed=reading.is_commit,
        is_rolled_back=reading.decision is not None and not reading.is_commit,
        visible_count=len({index for index, _ in visible}),
        is_on_its_way=reading.is_on_its_way,
        may_have_been_visible=not attempt.shown
        and any(_may_be_gone(attempt, index, half.at_ms, window) for index, half in attempt.halves.items()),
        order_marks=_order_marks(attempt, reading, window, faults, is_cut_off=is_cut_off, may_wait=may_wait),
        may_wait=may_wait,
    )


def _is_broken(faults: Iterable[_Fault]) -> bool:
    return any(verdict is not Verdict.OUT_OF_WINDOW for verdict, _, _ in faults)


def _read(attempt: _Attempt, window: Window, counting: Sequence[OpTrace]) -> _Reading:
    """Fold the lines that count, in the order of op, and find the faults."""
    reading = _Reading(seen_ms=max([attempt.seen_ms, *(op.at_ms for op in counting)]))
    for op in counting:
        _apply(attempt, reading, op, window)
    lacks_some = len(attempt.halves) < attempt.first.count
    was_ended = attempt.was_on_doubt and not attempt.state
    was_decided = bool(attempt.shown) or was_ended or attempt.state not in _UNDECIDED
    if _may_lack_lines(attempt, window):
        reading.find(Verdict.OUT_OF_WINDOW, None, "op lines of it may be older than the window")
    elif reading.decision is None and was_decided and lacks_some and window.is_past:
        # A prepare that took long: then the line that decides names one of them.
        reading.find(Verdict.OUT_OF_WINDOW, None, "half messages of it may be later than the window")
    else:
        _judge_visibility(attempt, reading, window)
        reading.is_settled = _judge_fate(attempt, reading, window)
    if attempt.doubt is not None and not reading.is_settled:
        _judge_whole(attempt, attempt.doubt, reading)
    return reading


def _apply(attempt: _Attempt, reading: _Reading, op: OpTrace, window: Window) -> None:
    if op.due_ms != UNBOUND:
        _take_time(attempt, reading, op)
        return
    if reading.decision is None:
        reading.decision = op
    elif not reading.is_commit or reading.is_abandoned:
        reading.is_contradicted |= op.said == COMMIT
        return
    elif op.said == ABANDON:
        reading.is_abandoned = True
    elif op.said == ROLLBACK:
        reading.is_contradicted = True
    is_first = reading.released is None and op.said == COMMIT
    if is_first and _is_complete(attempt, op.last_offset, window):
        reading.released = op
        if attempt.is_timed:
            reading.times = sorted({half.due_ms for half in attempt.halves.values()})
            if reading.times[0] == 0:
                _release(attempt, reading, op)


def _take_time(attempt: _Attempt, reading: _Reading, op: OpTrace) -> None:
    """A line that releases messages, or gives them another time; without effect where no time is left."""
    if reading.released is None or reading.is_abandoned or not reading.times:
        return
    if op.said == RESCHEDULE:
        reading.times = [op.due_ms]
    elif op.said == COMMIT and op.due_ms == reading.times[0] and op.at_ms >= op.due_ms:
        _release(attempt, reading, op)


def _release(attempt: _Attempt, reading: _Reading, op: OpTrace) -> None:
    """Release the messages with the first time that is left; with the last time, all that are left."""
    due_ms, *reading.times = reading.times
    for index, half in attempt.halves.items():
        if half.due_ms <= due_ms or not reading.times:
            reading.released_by.setdefault(index, op)


def _is_complete(attempt: _Attempt, offset: int, window: Window) -> bool:
    """True if all half records are at or before an offset. Those that retention deleted are, unless doubt says otherwise."""
    if offset < window.starts.get(attempt.first.partition, 0):
        return all(summary.last_offset <= offset for summary in attempt.summaries if summary.seen)
    offsets, gone_count = attempt.places
    return bisect_right(offsets, offset) == attempt.first.count - gone_count


def _may_lack_lines(attempt: _Attempt, window: Window) -> bool:
    """True if op may have been shortened behind the first half record."""
    from_ms = window.op_from_ms.get(attempt.first.partition)
    if from_ms is None:
        return False
    stored_ms = min(half.at_ms for half in attempt.halves.values())
    stored_ms = min([stored_ms, *(summary.appended_ms for summary in attempt.summaries)])
    return stored_ms <= from_ms + window.clock_error_ms


def _compare_visible(attempt: _Attempt, reading: _Reading, window: Window) -> None:
    """Find duplicates, reversals and differences from the half messages, whatever the decision."""
    seen: dict[int, ForwardTrace] = {}
    highest: dict[tuple[str, int, int | None, int], int] = {}
    is_ordered = bool(attempt.first.key_hash)
    for index, forward in attempt.visible:  # in the order of topic, partition, offset
        half = attempt.halves.get(index)
        if index in seen:
            other = seen[index].origin
            detail = f"message {index} stands at {other.topic}-{other.partition}@{other.offset} too"
            reading.find(Verdict.DUPLICATE, forward.origin, detail)
        if half is None:
            if attempt.kept[index] not in (forward.content, CUT):
                reading.find(Verdict.CORRUPT, forward.origin, "differs from what doubt had")
            continue
        if difference := _difference(half, forward, window):
            where = f"half message {half.partition}:{half.offset}"
            reading.find(Verdict.CORRUPT, forward.origin, f"{difference} {where}")
        if is_ordered or forward.key is not None:
            # Messages that are due later may come behind later ones.
            lane = (forward.topic, forward.partition, None if is_ordered else forward.key, half.due_ms)
            if index not in seen and index < highest.get(lane, -1):
                why = f"message {index} behind message {highest[lane]} of its transaction"
                reading.find(Verdict.OUT_OF_ORDER, forward.origin, why)
            highest[lane] = max(highest.get(lane, -1), index)
        seen.setdefault(index, forward)


def _difference(half: HalfTrace, forward: ForwardTrace, window: Window) -> str:
    if forward.content != half.content:
        return "differs from"
    is_timed = half.wanted_ms > 0 and not forward.is_append_time
    is_cut = half.at_ms - window.clock_error_ms <= forward.at_ms < half.wanted_ms  # it was in the future
    if is_timed and forward.at_ms != half.wanted_ms and not is_cut:
        return "has another time than"
    wanted = _partitions(half, window)
    if wanted is not None and forward.partition not in wanted:
        return "is not in the partition of"
    return ""


def _partitions(half: HalfTrace, window: Window) -> set[int] | None:
    """Partitions of the real topic, which may have had fewer, that the message may be in; None: any."""
    if half.wanted_partition != UNBOUND:
        return {half.wanted_partition}
    count = window.partition_counts.get(half.topic, 0)
    if half.murmur == UNBOUND or not count:
        return None
    return {half.murmur % c for c in range(1, count + 1)}


def _possible(half: HalfTrace, window: Window) -> set[int]:
    partitions = _partitions(half, window)
    return set(range(window.partition_counts.get(half.topic, 0))) if partitions is None else partitions


def _judge_visibility(attempt: _Attempt, reading: _Reading, window: Window) -> None:
    """Find records that were in the log without a commit, or before it, aborted or not."""
    released, decision = reading.released, reading.decision
    for index, forward in attempt.shown:
        hidden = "" if forward.is_committed else "; hidden from read_committed readers alone"
        if released is None:
            why = "not decided" if decision is None else "rolled back" if not reading.is_commit else "incomplete"
            where = f" at op {decision.offset}, line {decision.line}" if decision else ""
            reading.find(Verdict.LEAKED, forward.origin, f"{why}{where}{hidden}")
            continue
        line = reading.released_by.get(index) if attempt.is_timed else released
        if line is None:
            reading.find(Verdict.LEAKED, forward.origin, f"early: its time had not come{hidden}")
        elif forward.is_append_time and forward.at_ms < line.at_ms - window.clock_error_ms:
            detail = f"before its commit at op {line.offset}, line {line.line}{hidden}"
            reading.find(Verdict.LEAKED, forward.origin, detail)


def _judge_fate(attempt: _Attempt, reading: _Reading, window: Window) -> bool:
    """Set the verdict of an attempt and find contradictions. Returns True if it is settled."""
    reading.verdict = Verdict.OPEN
    state, decision = attempt.state, reading.decision
    if decision is None:
        if attempt.was_ended_without_half:
            reading.verdict = Verdict.ROLLED_BACK
            return True
        if state in _KNOWN - _UNDECIDED:
            reading.find(Verdict.LOST, None, f"{state} on doubt, and nobody decided it")
        elif attempt.was_on_doubt and not state:
            reading.find(Verdict.LOST, None, "ended on doubt, and nobody decided it")
        reading.verdict = Verdict.PARKED if state in _PARKED else _by_age(attempt, window)
        return False
    if not reading.is_commit:
        reading.verdict = Verdict.CONFLICTING if reading.is_contradicted else Verdict.ROLLED_BACK
        return True
    seen = {
        index
        for index, forward in attempt.shown
        if index in attempt.halves
        and forward.topic == attempt.halves[index].topic
        and (forward.is_committed or forward.is_hidden)
    }
    # A count: the number of messages comes from the writer and may be any number.
    missing_count = attempt.first.count - len(seen)
    may_be_kept = _WAITS | _PARKED - {TxnState.PARKED.value}
    kept = may_be_kept if reading.released else may_be_kept - _WAITS
    is_young = reading.seen_ms >= window.cut_ms - window.grace_ms
    if reading.is_abandoned and (not seen or reading.released is None):
        reading.verdict = Verdict.CONFLICTING if reading.is_contradicted else Verdict.ROLLED_BACK
        return True
    if attempt.is_timed and reading.released and (reading.is_abandoned or reading.times or missing_count):
        return _judge_times(attempt, reading, window, seen)
    if reading.released and not missing_count:
        return _is_settled_by(attempt, reading)
    if (state in kept or state not in _KNOWN) and not seen:
        is_parked = state in _PARKED
        reading.verdict = Verdict.PARKED if is_parked else _by_age(attempt, window)
    elif is_young:
        reading.is_on_its_way = True
    else:
        _judge_missing(attempt, reading, window, seen)
    return False


def _is_settled_by(attempt: _Attempt, reading: _Reading) -> bool:
    """Set the verdict of what is there as a whole. False while an open Kafka transaction hides some of it."""
    if {index for index, forward in attempt.shown if forward.is_hidden} - {index for index, _ in attempt.visible}:
        return False
    reading.verdict = Verdict.CONFLICTING if reading.is_contradicted else Verdict.OK
    return True


def _judge_times(attempt: _Attempt, reading: _Reading, window: Window, seen: Collection[int]) -> bool:
    """As `_judge_fate`, for a committed attempt with times of which not every message is visible."""
    parts: dict[tuple[int, int], set[int]] = {}
    for index, line in reading.released_by.items():
        parts.setdefault((line.offset, line.line), set()).add(index)
    is_young = reading.seen_ms >= window.cut_ms - window.grace_ms
    in_part = [missing for part in parts.values() if (missing := part.difference(seen)) and missing != part]
    for missing in in_part if not is_young else ():
        if not any(_may_be_gone(attempt, index, reading.released_by[index].at_ms, window) for index in missing):
            origin = next((forward.origin for _, forward in attempt.shown), None)
            reading.find(Verdict.TORN, origin, f"messages {_few(sorted(missing))} are not visible")
        elif reading.is_abandoned:
            reading.find(Verdict.OUT_OF_WINDOW, None, "it may have been on its real topic")
    if reading.is_abandoned:  # what was released and is not visible at all was given up
        reading.is_on_its_way = is_young and bool(in_part)
        return not reading.is_on_its_way and _is_settled_by(attempt, reading)
    state, behind = attempt.state, reading.released_by.keys() - seen
    is_lacking = not all(_may_be_gone(attempt, i, reading.released_by[i].at_ms, window) for i in behind)
    kept = (_WAITS | {TxnState.PARKED_COMMITTED.value} if behind else set()) | (set() if is_lacking else {_SCHEDULED})
    if state in kept or state not in _KNOWN:
        is_late = bool(reading.times) and reading.times[0] < window.cut_ms - window.overdue_ms
        if state in _PARKED:
            reading.verdict = Verdict.PARKED
        elif state == _SCHEDULED:
            reading.verdict = Verdict.OVERDUE if is_late else Verdict.OPEN
            if behind:
                reading.find(Verdict.OUT_OF_WINDOW, None, "it may have been on its real topic")
        else:
            reading.verdict = _by_age(attempt, window)
    elif is_young:
        reading.is_on_its_way = True
    else:
        _judge_missing(attempt, reading, window, seen)
    return False


def _by_age(attempt: _Attempt, window: Window) -> Verdict:
    immunity_ms = min(attempt.first.immunity_ms, IMMUNITY_MS_MAX)
    age_ms = window.cut_ms - attempt.first.at_ms - immunity_ms
    return Verdict.OVERDUE if age_ms > window.overdue_ms else Verdict.OPEN


def _judge_missing(attempt: _Attempt, reading: _Reading, window: Window, seen: Collection[int]) -> None:
    """Find lost messages, unless retention or compaction may have deleted them, or the attempt waits for others of its key."""
    line = reading.released or reading.decision
    assert line is not None  # it is committed
    lost, found = [], list[_Fault]()
    for index in sorted(attempt.halves.keys() - seen):
        if reading.released and _may_be_gone(attempt, index, line.at_ms, window):
            found.append((Verdict.OUT_OF_WINDOW, None, "it may have been on its real topic"))
        else:
            lost.append(index)
    if lost and seen:
        origin = next((forward.origin for _, forward in attempt.shown), None)
        found.append((Verdict.TORN, origin, f"messages {_few(lost)} are not visible"))
    elif lost:
        where = f"op {line.partition}:{line.offset}, line {line.line}"
        found.append((Verdict.LOST, None, f"committed at {where}"))
    is_prepare = attempt.first.is_prepare and bool(attempt.first.key_hash)
    # An incomplete commit does not wait, and what was on doubt waits there until it is settled.
    if not is_prepare or seen or reading.released is not reading.decision or attempt.was_on_doubt:
        reading.faults += found
        return
    why = "it may wait for one of its ordering key that is older than the window"
    if not attempt.is_first_known:
        reading.find(Verdict.OUT_OF_WINDOW, None, why)
        return
    if attempt.first.partition in window.hiding_waits:
        found = [(Verdict.OUT_OF_WINDOW, None, why)]
    reading.missing = sorted(found, key=lambda fault: _PRECEDENCE.index(fault[0]))


def _may_be_gone(attempt: _Attempt, index: int, from_ms: int, window: Window) -> bool:
    """True if the message may have been visible since that time and retention or compaction removed it, or its topic was not read."""
    half = attempt.halves[index]
    if half.topic in window.unread_topics or (index, half.topic) in attempt.gone:
        return True
    floors = (window.real_from_ms.get((half.topic, p)) for p in _possible(half, window))
    return any(floor is not None and from_ms - window.clock_error_ms <= floor for floor in floors)


def _judge_whole(attempt: _Attempt, doubt: DoubtTrace, reading: _Reading) -> None:
    """Check that doubt contains every message of an attempt that is there, as it was stored."""
    stored = {
        index: half
        for index, half in attempt.halves.items()
        if doubt.last_offset == -1 or half.offset <= doubt.last_offset
    }
    # Of the first message half may have a second copy alone, whatever that holds.
    compared = {index: half for index, half in stored.items() if index or half.offset == doubt.first_offset}
    is_wrong = any(attempt.contents.get(index) not in (half.content, CUT) for index, half in compared.items())
    is_wrong |= any(c == CUT and index not in attempt.halves for index, c in attempt.contents.items())
    if is_wrong or len(attempt.contents) < doubt.seen:
        there = _few(sorted(attempt.contents))
        reading.find(Verdict.LOST, None, f"{doubt.state} on doubt, of its content messages {there}")


# --- order ------------------------------------------------------------------------------------------------------------


def _order_marks(
    attempt: _Attempt, reading: _Reading, window: Window, faults: Sequence[_Fault], *, is_cut_off: bool, may_wait: bool
) -> tuple[OrderMark, ...]:
    """Marks for judging P6; none without an ordering key, or if op contains too little."""
    first = attempt.first
    if not first.key_hash:
        return ()
    key, begin = f"{first.key_hash}/{first.partition}", attempt.begins_at
    before = Origin("", first.partition, begin)
    if is_cut_off or _may_lack_lines(attempt, window):
        if attempt.state == _SCHEDULED:  # it holds back no other, as below
            return ()
        return (OrderMark(key, before, None, begin, role=UNKNOWN),)
    # A parked transaction gives up its place, and compaction may have removed the summary on doubt that showed it parked.
    may_have_been_parked = attempt.was_parked or (attempt.was_on_doubt and first.at_ms < window.doubt_from_ms)
    released, decision = reading.released, reading.decision
    # As an incomplete commit gives up its place, also if doubt does not show it.
    is_incomplete = reading.is_commit and (released is not decision or attempt.is_timed)
    is_in_half_order = attempt.is_first_known and not may_have_been_parked and not is_incomplete
    # Doubt may have forgotten that it was parked. One that was parked after its commit goes on by another commit.
    is_forgotten = first.at_ms < window.doubt_gone_ms
    is_committed_again = sum(op.said == COMMIT for op, _ in attempt.lines) > 1
    may_have_left = may_have_been_parked or (is_forgotten and is_committed_again)
    is_in_turn = released is decision and not first.is_prepare and not may_have_left
    first_part = min((line.offset, line.line) for line in reading.released_by.values()) if reading.released_by else None
    goes_at = first_part if attempt.is_timed else (released.offset, released.line) if released else None
    decided_at = goes_at if is_in_turn else None
    kinds = {verdict for verdict, _, _ in faults}
    visible: dict[int, tuple[Origin, int]] = {}
    for index, forward in attempt.visible:
        line = reading.released_by.get(index)
        # A later part may have gone with an earlier one: it is held to no order.
        if not attempt.is_timed or (line is not None and (line.offset, line.line) == first_part):
            visible.setdefault(index, (forward.origin, VISIBLE))
    marked = list(visible.values())
    if released and not may_wait and attempt.state == TxnState.HELD.value and not attempt.visible:
        # It will come behind everything that is in the log.
        places = ((half.topic, p) for half in attempt.halves.values() for p in _possible(half, window))
        marked += [(Origin(*place, FOREVER), HELD_BACK) for place in dict.fromkeys(places)]
    left_ms = attempt.parked_ms[:1]
    left_ms += [] if decision is None else [decision.at_ms]
    edge_ms = window.cut_ms - window.grace_ms
    if attempt.is_first_known and any(at_ms >= edge_ms for at_ms in left_ms):
        marked.append((before, YOUNG))
    if decision is None and is_in_half_order and Verdict.OUT_OF_WINDOW not in kinds:
        is_on_doubt = attempt.doubt is not None and attempt.doubt.at_ms < edge_ms
        marked.append((before, ON_DOUBT if is_on_doubt else UNDECIDED))
    elif decision is None and not attempt.is_first_known and not may_have_been_parked:
        marked.append((before, UNKNOWN))
    elif may_wait:
        marked.append((before, MISSING))
    elif Verdict.OUT_OF_WINDOW in kinds and not (
        kinds & {Verdict.LOST, Verdict.TORN}
        or attempt.state == _SCHEDULED
        or (attempt.is_timed and reading.is_abandoned)
    ):
        marked.append((before, UNKNOWN))
    in_half_order = {VISIBLE: is_in_half_order and not is_forgotten}
    return tuple(
        OrderMark(key, origin, decided_at, begin, first.is_prepare, in_half_order.get(role, is_in_half_order), role)
        for origin, role in marked
    )


# --- records that belong to no attempt -------------------------------------------------------------------------------


def _strangers(txn_id: str, forwards: Sequence[ForwardTrace], window: Window) -> Iterable[Judged]:
    for forward in forwards:
        if 0 <= forward.half_offset < window.starts.get(forward.half_partition, 0):
            if forward.is_committed:
                why = "its half message is older than the window"
                yield Judged(txn_id, "", Verdict.OUT_OF_WINDOW, forward.origin, why)
            continue
        hidden = "" if forward.is_committed else "; hidden from read_committed readers alone"
        where = f"no half message of it at {forward.half_partition}:{forward.half_offset}{hidden}"
        if forward.half_partition < 0:
            where = f"its headers are broken{hidden}"
        yield Judged(txn_id, "", Verdict.ORPHAN, forward.origin, where)


def _few(numbers: Sequence[int]) -> str:
    shown = ", ".join(map(str, numbers[:5])) or "none"
    return f"{shown}, …" if len(numbers) > 5 else shown


@dataclass(slots=True)
class OrderFold:
    """Takes marks ordered by key, topic, partition and offset; holds the state of one key on one partition at a time."""

    _key: str = ""
    _lane: tuple[str, int] = ("", -1)
    _decided: tuple[int, int] = (-1, -1)
    _stored: int = -1
    _lowest: dict[int, int] = field(default_factory=dict)
    """{role of marks that come before the visible ones: lowest half offset}."""

    def is_late(self, mark: OrderMark) -> str:
        """Reason why this message came too late or too early; "" if it did not."""
        self._enter(mark)
        if mark.role in (UNDECIDED, ON_DOUBT, YOUNG, UNKNOWN):  # they come before the visible ones of their key
            self._note(mark.role, mark)
            return ""
        why, undecided = "", self._first(UNDECIDED, ON_DOUBT)
        is_before = mark.role == VISIBLE and undecided < mark.half_offset  # one that is held is before nobody yet
        if is_before and mark.is_prepare and mark.is_in_half_order:
            why = f"the one stored at half offset {undecided}, an earlier one of its key, is undecided"
        if mark.decided_at is not None:
            if mark.decided_at < self._decided:
                offset, line = self._decided
                why = f"behind the one decided at op {offset}, line {line}, which is a later one of its key"
            self._decided = max(self._decided, mark.decided_at)
        if mark.is_in_half_order:
            if mark.half_offset < self._stored:
                why = f"behind the one stored at half offset {self._stored}, which is a later one of its key"
            if mark.is_prepare:
                self._stored = max(self._stored, mark.half_offset)
        return why

    def verdict_of_missing(self, mark: OrderMark, verdict: Verdict) -> Verdict:
        """Verdict of a committed message in the order of half that is nowhere: it may wait for those before it."""
        self._enter(mark)
        # What waits for one on doubt is on doubt itself.
        may_wait = self._first(UNDECIDED) < mark.half_offset <= self._first(ON_DOUBT)
        if may_wait or self._first(YOUNG) < mark.half_offset:
            return Verdict.OPEN
        if self._first(UNKNOWN) < mark.half_offset:
            verdict = Verdict.OUT_OF_WINDOW
        if verdict is Verdict.OUT_OF_WINDOW:
            self._note(UNKNOWN, mark)
        elif verdict in (Verdict.OPEN, Verdict.OVERDUE):  # if its commit did not count: it is undecided
            self._note(UNDECIDED, mark)
        return verdict

    def _first(self, *roles: int) -> int:
        return min(self._lowest.get(role, FOREVER) for role in roles)

    def _note(self, role: int, mark: OrderMark) -> None:
        self._lowest[role] = min(self._first(role), mark.half_offset)

    def _enter(self, mark: OrderMark) -> None:
        if mark.key != self._key:
            self._key, self._lane = mark.key, ("", -1)
            self._lowest.clear()
        lane = (mark.origin.topic, mark.origin.partition)
        if lane != self._lane:
            self._lane, self._decided, self._stored = lane, (-1, -1), -1


_WORSE = (Verdict.LEAKED, Verdict.DUPLICATE, Verdict.TORN, Verdict.CORRUPT, Verdict.OUT_OF_ORDER)
"""Verdicts that stay even if the order of a key is wrong, too."""


class VerdictFinding(NamedTuple):
    """A transaction whose verdict is a fault or a warning."""

    verdict: Verdict
    txn_id: str
    nonce: str
    origin: Origin
    detail: str
    promises: tuple[Promise, ...]  # the promises that it refutes; empty for a warning


class PromiseStatus(NamedTuple):
    """What the window shows about one promise."""

    promise: Promise
    proved_count: int  # transactions that could have broken the promise and did not
    refuted_count: int
    undecidable_count: int
    """Transactions at the window's edges: older than what was read, too young, or perhaps gone from their real topics."""

    @property
    def word(self) -> str:
        """proved, refuted, undecidable (only transactions at the edges were found) or nothing to judge."""
        if self.refuted_count:
            return "refuted"
        if self.proved_count:
            return "proved"
        return "undecidable" if self.undecidable_count else "nothing to judge"


@dataclass(slots=True)
class Proof:
    """Collects judged attempts, one by one."""

    finding_count_max: int = 10_000  # limit of findings that are kept; further ones are counted
    verdicts: Counter[Verdict] = field(default_factory=Counter)
    findings: list[VerdictFinding] = field(default_factory=list)
    finding_count: int = 0
    _proved: Counter[Promise] = field(default_factory=Counter)
    _refuted: Counter[Promise] = field(default_factory=Counter)
    _undecidable: Counter[Promise] = field(default_factory=Counter)

    def add(self, judged: Judged) -> None:
        verdict = judged.verdict
        self.verdicts[verdict] += 1
        if verdict is Verdict.OUT_OF_WINDOW:
            self._undecidable.update(Promise)
            return  # no finding: every window has an edge
        broken = broken_promises(verdict, is_rolled_back=judged.is_rolled_back)
        self._refuted.update(broken)
        if judged.is_on_its_way:
            self._undecidable.update((Promise.P1, Promise.P5))
        if judged.may_have_been_visible:
            self._undecidable[Promise.P3] += 1
        for promise in _touched(judged):
            if promise not in broken:
                self._proved[promise] += 1
        if severity(verdict) is not Severity.GOOD:
            self._keep(VerdictFinding(verdict, judged.txn_id, judged.nonce, judged.origin, judged.detail, broken))

    def add_late(self, finding: VerdictFinding, *, before: Verdict) -> None:
        """Add an attempt that was judged `before` and whose order is wrong. The worse of the two verdicts counts."""
        if before is not Verdict.OUT_OF_ORDER:  # else it counts already: its own messages are in reverse
            counted = self._undecidable if before is Verdict.OUT_OF_WINDOW else self._proved
            counted[Promise.P6] -= 1
            self._refuted[Promise.P6] += 1
        if before not in _WORSE:
            self.verdicts[before] -= 1
            self.verdicts[Verdict.OUT_OF_ORDER] += 1
        self._keep(finding)

    def statuses(self) -> list[PromiseStatus]:
        return [PromiseStatus(p, self._proved[p], self._refuted[p], self._undecidable[p]) for p in Promise]

    @property
    def is_refuted(self) -> bool:
        return any(self._refuted.values())

    @property
    def transaction_count(self) -> int:
        return self.verdicts.total()

    def _keep(self, finding: VerdictFinding) -> None:
        self.finding_count += 1
        if len(self.findings) < self.finding_count_max:
            self.findings.append(finding)
        elif finding.promises:  # a fault replaces the newest warning
            numbers = range(len(self.findings) - 1, -1, -1)
            newest = next((n for n in numbers if not self.findings[n].promises), None)
            if newest is not None:
                self.findings[newest] = finding


def _touched(judged: Judged) -> tuple[Promise, ...]:
    """The promises that this transaction could have broken."""
    touched = [] if judged.may_have_been_visible else [Promise.P3]
    is_visible = judged.visible_count > 0
    if judged.is_committed and not judged.is_on_its_way:
        touched.append(Promise.P1)
    if is_visible:
        touched.append(Promise.P2)
        if not judged.is_on_its_way:
            touched.append(Promise.P5)
    if judged.is_committed or judged.is_rolled_back:
        touched.append(Promise.P4)
    # One that may have given up its place has no order.
    if any(m.role != YOUNG and (m.is_in_half_order or m.decided_at is not None) for m in judged.order_marks):
        touched.append(Promise.P6)
    return tuple(touched)
