"""What the topics say about one transaction id → a verdict per attempt. Pure: a fold of its own, not the ledger's.

Which op line decides is the ledger's rule (docs/decisions/002): the first commit or rollback that names one of the
attempt's half records. Never here: the order of an ordering key, which needs more than one id (`core/judging_order.py`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from txlayer.core.messages import Origin
from txlayer.core.transitions import TxnState
from txlayer.core.verdicts import Verdict

COMMIT, ROLLBACK, ABANDON = "C", "R", "A"
"""What an op line that counts says; UNKNOWN lines decide nothing and are left out."""

_PARKED = frozenset({TxnState.PARKED.value, TxnState.PARKED_COMMITTED.value})
_WAITS = frozenset({TxnState.HELD.value, TxnState.WAITING.value})


class HalfTrace(NamedTuple):
    """A half record."""

    nonce: str
    partition: int
    offset: int
    index: int  # type: ignore[assignment]  # of the message; hides tuple.index, which nobody needs
    count: int  # type: ignore[assignment]  # likewise
    topic: str  # the real topic
    content: int  # stands for topic, index, key, value and user headers
    at_ms: int
    key_hash: str  # of the ordering key; "" without one
    is_prepare: bool  # order="prepare"
    immunity_ms: int


class OpTrace(NamedTuple):
    """A commit, rollback or abandon line."""

    nonce: str
    partition: int
    offset: int
    line: int
    at_ms: int
    said: str  # COMMIT, ROLLBACK or ABANDON
    last_offset: int


class DoubtTrace(NamedTuple):
    """A summary on doubt, or its end."""

    nonce: str
    partition: int
    offset: int
    at_ms: int
    state: str  # "": it ended
    first_offset: int  # of half; -1 where it ended


CUT = -1
"""Stands for what a content says; no hash of Python's is -1."""


class ContentTrace(NamedTuple):
    """A message's content on doubt, or its end."""

    nonce: str
    offset: int
    index: int  # type: ignore[assignment]  # hides tuple.index, as above
    content: int | None  # None: it ended; CUT: doubt did not take it whole, and half has it


class ForwardTrace(NamedTuple):
    """A record of a real topic with our headers."""

    topic: str
    partition: int
    offset: int
    half_partition: int
    half_offset: int
    count: int  # type: ignore[assignment]  # hides tuple.count, as above
    content: int
    is_committed: bool  # False: of a Kafka transaction that is open or was aborted

    @property
    def place(self) -> Origin:
        """Where it stands."""
        return Origin(self.topic, self.partition, self.offset)


@dataclass(slots=True)
class Traces:
    """Everything that was read about one transaction id, in any order."""

    txn_id: str
    halves: list[HalfTrace] = field(default_factory=list)
    ops: list[OpTrace] = field(default_factory=list)
    doubts: list[DoubtTrace] = field(default_factory=list)
    contents: list[ContentTrace] = field(default_factory=list)
    forwards: list[ForwardTrace] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """What was read, and what a judgement depends on beside the records."""

    half_topic: str
    starts: Mapping[int, int]
    """{half partition: first offset that was read}; what is older is out of the window."""
    ends: Mapping[int, int]
    """{half partition: the first offset whose transactions are not judged any more}."""
    cut_ms: int
    """Everything older than this was read, wherever it stands."""
    grace_ms: int = 60_000
    """What is younger than this before the cut may still be on its way."""
    overdue_ms: int = 900_000
    """An age, after the immunity, at which an undecided or held transaction is worth a look."""
    unread_topics: frozenset[str] = frozenset()
    """Real topics of the transactions that nobody read."""


class OrderMark(NamedTuple):
    """One visible message of a transaction with an ordering key, for `core/judging_order.py`."""

    key_hash: str
    place: Origin
    decided_at: tuple[int, int] | None  # None: order="prepare"
    half_offset: int  # of the transaction's first half record


@dataclass(frozen=True, slots=True)
class Judged:
    """One attempt, that is one nonce of an id; "" where nobody knows the nonce."""

    txn_id: str
    nonce: str
    verdict: Verdict
    place: Origin
    detail: str = ""
    is_committed: bool = False
    is_rolled_back: bool = False
    visible_count: int = 0
    is_on_its_way: bool = False
    """Too young to say whether it is lost or torn."""
    order_marks: tuple[OrderMark, ...] = ()


@dataclass(slots=True)
class _Attempt:
    nonce: str
    halves: dict[int, HalfTrace] = field(default_factory=dict)  # index → first record with it
    offsets: dict[tuple[int, int], int] = field(default_factory=dict)  # (partition, offset) → index
    visible: list[tuple[int, ForwardTrace]] = field(default_factory=list)
    visible_indices: set[int] = field(default_factory=set)
    unseen: list[ForwardTrace] = field(default_factory=list)
    state: str = ""
    was_parked: bool = False
    contents: dict[int, int] = field(default_factory=dict)
    seen_ms: int = 0
    decision: str = ""
    decided_at: tuple[int, int] = (-1, -1)
    commit_count: int = 0
    is_abandoned: bool = False
    is_contradicted: bool = False

    @property
    def first(self) -> HalfTrace:
        return next(iter(self.halves.values()))  # they are taken in the order of the log

    @property
    def is_stored_whole(self) -> bool:
        return len(self.halves) == self.first.count

    @property
    def is_whole(self) -> bool:
        return len(self.visible_indices) == self.first.count


def judge(traces: Traces, window: Window) -> list[Judged]:
    """One verdict per attempt that is a transaction of the window, and one for what is visible and belongs to none."""
    attempts = _attempts(traces)
    strangers = _give_out(traces.forwards, attempts)
    stored = [attempt for attempt in attempts.values() if attempt.halves]
    is_several = sum(1 for attempt in stored if attempt.visible) > 1
    found = [
        _judged(traces.txn_id, attempt, window, is_several=is_several)
        for attempt in stored
        if attempt.first.offset < window.ends.get(attempt.first.partition, 0)
    ]
    return [*found, *_strangers(traces.txn_id, strangers, window)]


def _attempts(traces: Traces) -> dict[str, _Attempt]:
    attempts: dict[str, _Attempt] = {}

    def of(nonce: str) -> _Attempt:
        found = attempts.get(nonce)
        if found is None:  # hot path: `setdefault` would make one for each record
            found = attempts[nonce] = _Attempt(nonce)
        return found

    for half in sorted(traces.halves, key=lambda h: (h.partition, h.offset)):
        attempt = of(half.nonce)
        # The broker may keep a record twice (librdkafka #4953): the first one of an index counts.
        attempt.halves.setdefault(half.index, half)
        attempt.offsets[half.partition, half.offset] = half.index
        attempt.seen_ms = max(attempt.seen_ms, half.at_ms)
    for op in sorted(traces.ops, key=lambda line: (line.offset, line.line)):
        _apply(of(op.nonce), op)
    for doubt in sorted(traces.doubts, key=lambda d: d.offset):
        attempt = of(doubt.nonce)
        attempt.state = doubt.state
        attempt.was_parked = attempt.was_parked or doubt.state in _PARKED
        attempt.seen_ms = max(attempt.seen_ms, doubt.at_ms)
    for content in sorted(traces.contents, key=lambda c: c.offset):
        if content.content is None:
            of(content.nonce).contents.pop(content.index, None)
        else:
            of(content.nonce).contents[content.index] = content.content
    return attempts


def _apply(attempt: _Attempt, op: OpTrace) -> None:
    if (op.partition, op.last_offset) not in attempt.offsets:
        return
    attempt.seen_ms = max(attempt.seen_ms, op.at_ms)
    attempt.commit_count += op.said == COMMIT
    said = COMMIT if op.said == COMMIT else ROLLBACK
    if not attempt.decision:
        attempt.decision, attempt.decided_at = said, (op.offset, op.line)
    elif attempt.decision == COMMIT and op.said == ABANDON:
        attempt.is_abandoned = True
    elif attempt.decision != said:
        attempt.is_contradicted = True


def _give_out(
    forwards: Iterable[ForwardTrace], attempts: Mapping[str, _Attempt]
) -> list[ForwardTrace]:
    """Each forwarded record to the attempt whose half record it names; those that name none are given back."""
    owners = {place: attempt for attempt in attempts.values() for place in attempt.offsets}
    strangers = []
    for forward in sorted(forwards, key=lambda f: f.place):
        place = (forward.half_partition, forward.half_offset)
        attempt = owners.get(place)
        if attempt is None:
            strangers.append(forward)
        elif forward.is_committed:
            index = attempt.offsets[place]
            attempt.visible.append((index, forward))
            attempt.visible_indices.add(index)
        else:
            attempt.unseen.append(forward)
    return strangers


# --- one attempt ------------------------------------------------------------------------------------------------------


def _judged(txn_id: str, attempt: _Attempt, window: Window, *, is_several: bool) -> Judged:
    first = attempt.first
    is_committed = attempt.decision == COMMIT
    is_young = attempt.seen_ms >= window.cut_ms - window.grace_ms
    is_owed = is_committed and not attempt.is_abandoned and attempt.state not in _WAITS | _PARKED
    verdict, place, detail = _verdict(
        attempt, window, is_several=is_several, is_owed=is_owed, is_young=is_young
    )
    return Judged(
        txn_id=txn_id,
        nonce=attempt.nonce,
        verdict=verdict,
        place=place or Origin(window.half_topic, first.partition, first.offset),
        detail=detail,
        is_committed=is_committed,
        is_rolled_back=attempt.decision == ROLLBACK,
        visible_count=len(attempt.visible_indices),
        is_on_its_way=is_owed and is_young and not attempt.is_whole,
        order_marks=_order_marks(attempt),
    )


def _verdict(  # the verdicts in their order of precedence, one after the other
    attempt: _Attempt, window: Window, *, is_several: bool, is_owed: bool, is_young: bool
) -> tuple[Verdict, Origin | None, str]:
    visible, is_committed = attempt.visible, attempt.decision == COMMIT
    missing = is_owed and not is_young and not attempt.is_whole
    is_unread = bool(window.unread_topics & {h.topic for h in attempt.halves.values()})
    if _is_cut_off(attempt):
        return Verdict.OUT_OF_WINDOW, None, "its first half message is older than the window"
    if missing and is_unread:
        return Verdict.OUT_OF_WINDOW, None, "a topic of it was not read"
    if visible and not is_committed:
        return Verdict.LEAKED, visible[0][1].place, _undecided(attempt)
    if attempt.unseen and not is_committed:
        detail = f"{_undecided(attempt)}; hidden from read_committed readers alone"
        return Verdict.LEAKED, attempt.unseen[0].place, detail
    if len(visible) > len(attempt.visible_indices) or (visible and is_several):
        return _duplicate(attempt)
    if visible and missing:
        gone = sorted(set(range(attempt.first.count)) - attempt.visible_indices)
        return Verdict.TORN, visible[0][1].place, f"messages {_few(gone)} are not visible"
    for index, forward in visible:
        if forward.content != attempt.halves[index].content:
            half = attempt.halves[index]
            detail = f"differs from half message {half.partition}:{half.offset}"
            return Verdict.CORRUPT, forward.place, detail
    if not visible and attempt.state and not is_young and not _is_kept_whole(attempt):
        there = _few(sorted(attempt.contents))
        return Verdict.LOST, None, f"{attempt.state} on doubt, of its content messages {there}"
    if not visible and attempt.state in _PARKED:
        return Verdict.PARKED, None, ""
    if not visible and missing:
        offset, line = attempt.decided_at
        return (
            Verdict.LOST,
            None,
            f"committed at op {attempt.first.partition}:{offset}, line {line}",
        )
    return _settled_or_not(attempt, window), None, ""


def _settled_or_not(attempt: _Attempt, window: Window) -> Verdict:
    is_committed, is_rolled_back = attempt.decision == COMMIT, attempt.decision == ROLLBACK
    is_whole = bool(attempt.visible) and attempt.is_whole
    if attempt.is_contradicted and (is_rolled_back or is_whole):
        return Verdict.CONFLICTING
    if not attempt.visible and (is_rolled_back or attempt.is_abandoned):
        return Verdict.ROLLED_BACK
    if is_committed and is_whole:
        return Verdict.OK
    age_ms = window.cut_ms - attempt.first.at_ms - attempt.first.immunity_ms
    waits = attempt.state in _WAITS
    if (not attempt.decision or waits) and age_ms > window.overdue_ms:
        return Verdict.OVERDUE
    return Verdict.OPEN


def _is_cut_off(attempt: _Attempt) -> bool:
    # Half messages are written in their order: without the first one, that was before the window.
    return not attempt.is_stored_whole and 0 not in attempt.halves


def _is_kept_whole(attempt: _Attempt) -> bool:
    return attempt.halves.keys() == attempt.contents.keys() and all(
        attempt.contents[index] in (half.content, CUT) for index, half in attempt.halves.items()
    )


def _duplicate(attempt: _Attempt) -> tuple[Verdict, Origin, str]:
    seen: dict[int, ForwardTrace] = {}
    for index, forward in attempt.visible:
        if index in seen:
            other = seen[index].place
            detail = f"message {index} stands at {other.topic}-{other.partition}@{other.offset} too"
            return Verdict.DUPLICATE, forward.place, detail
        seen[index] = forward
    return Verdict.DUPLICATE, attempt.visible[0][1].place, "another attempt of the id is visible"


def _undecided(attempt: _Attempt) -> str:
    offset, line = attempt.decided_at
    return f"rolled back at op {offset}, line {line}" if attempt.decision else "not decided"


def _order_marks(attempt: _Attempt) -> tuple[OrderMark, ...]:
    """Nothing where its place is another one: released by a second commit, or parked, so that nobody waited for it."""
    first = attempt.first
    is_simple = attempt.decision == COMMIT and attempt.commit_count == 1
    if not first.key_hash or not is_simple or attempt.was_parked or attempt.is_abandoned:
        return ()
    decided_at = None if first.is_prepare else attempt.decided_at
    return tuple(
        OrderMark(first.key_hash, forward.place, decided_at, first.offset)
        for _, forward in attempt.visible
    )


def _strangers(txn_id: str, forwards: Sequence[ForwardTrace], window: Window) -> Iterable[Judged]:
    for forward in forwards:
        is_older = forward.half_offset < window.starts.get(forward.half_partition, 0)
        if is_older:
            if forward.is_committed:
                detail = "its half message is older than the window"
                yield Judged(txn_id, "", Verdict.OUT_OF_WINDOW, forward.place, detail)
            continue
        hidden = "" if forward.is_committed else "; hidden from read_committed readers alone"
        where = f"no half message of it at {forward.half_partition}:{forward.half_offset}{hidden}"
        yield Judged(txn_id, "", Verdict.ORPHAN, forward.place, where)


def _few(numbers: Sequence[int]) -> str:
    shown = ", ".join(map(str, numbers[:5])) or "none"
    return f"{shown}, …" if len(numbers) > 5 else shown
