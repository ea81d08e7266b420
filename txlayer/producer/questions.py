"""Decides about each record of the check topic: call the handler, answer, or skip. It has no thread, wait or client.

Not thread-safe; the time is an argument.
"""

from collections import Counter, deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

from txlayer.adapters.ports import Record
from txlayer.adapters.readers import CheckRequestsRead
from txlayer.adapters.telemetry import trace_context_of
from txlayer.core import codec
from txlayer.core.messages import (
    UNKNOWN,
    CheckKind,
    CheckRecord,
    Headers,
    OpMessage,
    Resolution,
    Source,
    Undecodable,
    nonce_of,
    txn_id_of,
)
from txlayer.errors import OpenTransactionLimitError, TxLayerError
from txlayer.producer.check_handlers import (
    TIMED_OUT,
    AnswerVerdict,
    Call,
    CallOutcome,
    CheckRequest,
    Handling,
    told_cause,
)

LIMIT_KEPT_S = 30.0  # a coordinator repeats `on` every 10 s; a limit of one that is gone must expire

ON = "on"


class OpenLimit(NamedTuple):
    """The limit that applies because the group has too many open transactions."""

    partitions: tuple[int, ...]  # half partitions at the limit
    open_count: int  # in the fullest of them

    def error(self, group: str) -> OpenTransactionLimitError:
        return OpenTransactionLimitError(
            "the group has too many open transactions: settle some, or wait. Nothing was sent",
            producer_group=group,
            partitions=self.partitions,
            open_count=self.open_count,
        )


class OpenLimits:
    """The reported limits, by half partition. Not thread-safe."""

    def __init__(self) -> None:
        self._on: dict[int, tuple[int, float]] = {}

    def hear(self, record: CheckRecord, now: float) -> None:
        """Process a record that switches a limit on, repeats it, or switches it off."""
        if record.text == ON:
            self._on[record.partition] = (record.number, now + LIMIT_KEPT_S)
        else:
            self._on.pop(record.partition, None)

    def current(self, now: float) -> OpenLimit | None:
        """The current limit; None without one."""
        for partition in [p for p, (_, until) in self._on.items() if until <= now]:
            del self._on[partition]
        if not self._on:
            return None
        return OpenLimit(tuple(sorted(self._on)), max(count for count, _ in self._on.values()))


STALE_AFTER_S = 30.0  # a check-back that waited this long is dropped: by then it is asked again, with a new number
WAITING_COUNT_MAX = 50_000  # check-backs that wait for a call; at the limit reading pauses
CAUSE_COUNT_MAX = 50
"""Causes that are counted separately: the names come from users' exceptions, whose number has no bound."""

OTHER_CAUSE = "other"


class Skip(Enum):
    """Why a record of the check topic led to no answer here."""

    OTHER_GROUP = "other-group"  #: it is for another producer group
    OTHER_INSTANCE = "other-instance"  #: another instance of the group answers this partition
    UNDECODABLE = "undecodable"  #: not a valid check record
    DUPLICATE = "duplicate"  #: the same check-back is being answered
    STALE = "stale"  #: it waited too long for a worker, and is asked again
    CLOSED = "closed"  #: the responder ended first


class RefusedResolution(NamedTuple):
    """A resolution of the group that came too late: the contrary decision is final."""

    txn_id: str
    nonce: str
    group: str
    partition: int  # of half and op
    text: str  # which resolution, and from which writer
    trace_id: str = ""  # if the coordinator traces


class ParkedTransaction(NamedTuple):
    """A transaction of the group that stayed without an answer; it is kept whole, and a commit or rollback settles it."""

    txn_id: str
    nonce: str
    group: str
    reason: str  # checks-exhausted or too-old
    number: int  # of this notice; it comes again while the transaction stays parked
    born_ms: int  # when its producer prepared it, by that clock
    trace_id: str = ""  # if the coordinator traces


@dataclass(frozen=True, slots=True)
class ResponderStats:
    """The counts of a responder since its start."""

    asked: int  # check-backs that this instance had to answer
    answered: Mapping[Resolution, int]
    unknown: Mapping[str, int]  # answers UNKNOWN, by cause
    skipped: Mapping[str, int]  # records that led to no answer, by reason
    late: int  # results that came after their time-out, dropped
    stored: int  # answers that the broker acknowledged
    lost: int  # answers that may not be stored; they are asked again
    refused: int  # refused resolutions
    own_partitions: tuple[int, ...]  # of the check topic; empty: none is assigned to this instance
    is_member: bool  # of the check group
    failure: TxLayerError | None  # why it currently receives nothing; it retries
    turned_at: float | None = None  # monotonic seconds of its loop's last turn; None before the first


@dataclass(slots=True)
class _Asked:
    question: CheckRecord
    heard_at: float
    headers: Headers | None
    is_begun: bool = False


@dataclass(slots=True)
class QuestionCounts:
    """Counts that only grow."""

    asked: int = 0
    late: int = 0
    refused: int = 0
    answered: Counter[Resolution] = field(default_factory=Counter)
    unknown: Counter[str] = field(default_factory=Counter)
    skipped: Counter[Skip] = field(default_factory=Counter)


class Questions:
    """The check-backs that one instance was asked and has not answered.

    Args:
        handling: how check-backs are passed to the handler, and how many per call.
        check_timeout_s: longest time of a call.
        on_answer: receives the half partition and the answer.
        on_refused: receives refused resolutions.
        on_parked: receives parked transactions, and the record to `settle` them with.
    """

    def __init__(
        self,
        *,
        group: str,
        handling: Handling,
        check_timeout_s: float,
        on_answer: Callable[[int, OpMessage], None],
        on_refused: Callable[[RefusedResolution], None],
        on_parked: Callable[[ParkedTransaction, CheckRecord], None] | None = None,
    ) -> None:
        self._group = group
        self._mark = f"|{group}|".encode("ascii")
        self._handling = handling
        self._check_timeout_s = check_timeout_s
        self._on_answer = on_answer
        self._on_refused = on_refused
        self._on_parked = on_parked
        self._asked: dict[str, _Asked] = {}
        self._waiting: deque[str] = deque()
        self._calls: dict[Call, list[str]] = {}
        self.limits = OpenLimits()
        self.tally = QuestionCounts()

    @property
    def open_count(self) -> int:
        """Check-backs that are not answered."""
        return len(self._asked)

    @property
    def call_count(self) -> int:
        return len(self._calls)

    @property
    def is_full(self) -> bool:
        """True if no further check-backs should be read."""
        return len(self._waiting) >= WAITING_COUNT_MAX

    # --- what was heard -----------------------------------------------------------------------------------------------

    def hear(self, heard: CheckRequestsRead, now: float) -> None:
        for record in heard.records:
            skip = self._hear_one(record, heard.own_partitions, now)
            if skip is not None:
                self.tally.skipped[skip] += 1

    def _hear_one(self, record: Record, own: frozenset[int], now: float) -> Skip | None:
        value = record.value()
        if value is None or self._mark not in value:
            # Nearly all records of a shared topic belong to other groups: skip them without decoding.
            return Skip.OTHER_GROUP
        check = codec.decode_check(value)
        if isinstance(check, Undecodable):
            return Skip.UNDECODABLE
        if check.producer_group != self._group:
            return Skip.OTHER_GROUP
        if check.kind is CheckKind.LIMIT:
            self.limits.hear(check, now)
            return None
        if check.kind is CheckKind.REFUSED:
            self.tally.refused += 1
            trace_id = _trace_of(record.headers())[3:35]
            self._on_refused(RefusedResolution(*self._ids_of(check), check.partition, check.text, trace_id))
            return None
        if record.partition() not in own:
            return Skip.OTHER_INSTANCE
        if check.kind is CheckKind.PARKED:
            self._hear_parking(check, record.headers())
            return None
        return self._ask(check, record.headers(), now)

    def _hear_parking(self, check: CheckRecord, headers: Headers | None) -> None:
        if self._on_parked is not None:
            trace_id = _trace_of(headers)[3:35]
            ids, number = self._ids_of(check), check.number
            self._on_parked(ParkedTransaction(*ids, check.text, number, check.born_ms, trace_id), check)

    def _ids_of(self, check: CheckRecord) -> tuple[str, str, str]:
        return txn_id_of(check.key), nonce_of(check.key), self._group

    def settle(self, parked: CheckRecord, resolution: Resolution) -> None:
        """Write what the application says of a parked transaction."""
        where = (parked.key, self._group, parked.last_offset, parked.born_ms)
        self._on_answer(parked.partition, OpMessage(resolution, *where, Source.CHECK))

    def _ask(self, question: CheckRecord, headers: Headers | None, now: float) -> Skip | None:
        asked = self._asked.get(question.key)
        if asked is None:
            self._asked[question.key] = _Asked(question, now, headers)
            self._waiting.append(question.key)
        elif asked.is_begun or question.number <= asked.question.number:
            return Skip.DUPLICATE
        else:
            # Asked again before its turn: give one answer, to the newer check-back.
            asked.question, asked.heard_at, asked.headers = question, now, headers
            self.tally.skipped[Skip.DUPLICATE] += 1
        self.tally.asked += 1
        return None

    # --- calls --------------------------------------------------------------------------------------------------------

    def next_call(self, now: float) -> Call | None:
        """The next call to begin; None if there is none, or enough are in flight."""
        if len(self._calls) >= self._handling.ahead_count_max:
            return None
        keys: list[str] = []
        stale_at = now + STALE_AFTER_S
        while self._waiting and len(keys) < self._handling.request_count_max:
            key = self._waiting.popleft()
            asked = self._asked[key]
            if now - asked.heard_at > STALE_AFTER_S:
                self._drop(key, Skip.STALE)
                continue
            asked.is_begun = True
            stale_at = min(stale_at, asked.heard_at + STALE_AFTER_S)
            keys.append(key)
        if not keys:
            return None
        requests = [_request(self._asked[key]) for key in keys]
        call = Call(requests, stale_at=stale_at)
        self._calls[call] = keys
        return call

    def overdue(self, now: float) -> list[Call]:
        limit = now - self._check_timeout_s
        return [c for c in self._calls if c.started_at is not None and c.started_at < limit]

    def time_out(self, call: Call) -> None:
        """Answer UNKNOWN for a call that was given up."""
        self._answer(call, [AnswerVerdict(UNKNOWN, TIMED_OUT)] * len(call.requests))

    def take(self, outcome: CallOutcome) -> None:
        """Process the outcome of a call; the outcome of one that was given up is dropped."""
        call = outcome.call
        if call not in self._calls:
            self.tally.late += 1
            return
        if outcome.is_stale:
            self._drop_call(call, Skip.STALE)
        else:
            self._answer(call, outcome.verdicts())

    def drop_waiting(self) -> None:
        while self._waiting:
            self._drop(self._waiting.popleft(), Skip.CLOSED)

    def drop_unstarted(self) -> list[Call]:
        """Drop calls that no worker has begun; returns the others."""
        for call in [c for c in self._calls if c.started_at is None]:
            self._drop_call(call, Skip.CLOSED)
        return list(self._calls)

    def _answer(self, call: Call, found: list[AnswerVerdict]) -> None:
        for key, verdict in zip(self._calls.pop(call), found, strict=True):
            question = self._asked.pop(key).question
            self.tally.answered[verdict.resolution] += 1
            reason = ""
            if verdict.resolution is UNKNOWN:
                counted, cause = self.tally.unknown, verdict.cause
                is_beyond = cause not in counted and len(counted) >= CAUSE_COUNT_MAX
                counted[OTHER_CAUSE if is_beyond else cause] += 1
                reason = told_cause(self._handling.source, verdict.cause)
            of_half = (self._group, question.last_offset, question.born_ms)
            said_by = (self._handling.source, question.number)
            answer = OpMessage(verdict.resolution, key, *of_half, *said_by, reason=reason)
            self._on_answer(question.partition, answer)

    def _drop_call(self, call: Call, skip: Skip) -> None:
        for key in self._calls.pop(call):
            self._drop(key, skip)

    def _drop(self, key: str, skip: Skip) -> None:
        del self._asked[key]
        self.tally.skipped[skip] += 1


def _request(asked: _Asked) -> CheckRequest:
    question, details, trace = asked.question, codec.decode_details(asked.headers), _trace_of(asked.headers)
    key, topics = question.key, tuple(question.text.split(",")) if question.text else ()
    return CheckRequest(
        txn_id_of(key),
        nonce_of(key),
        question.producer_group,
        question.born_ms,
        question.number,
        topics,
        trace,
        *details,
    )


def _trace_of(headers: Headers | None) -> str:
    found = trace_context_of(headers)
    return "" if found is None else found.traceparent.decode("ascii")
