"""A request to settle transactions: its op lines are written in bounded steps, and each line names the request.

The op log is all that keeps a request. Coordinators work its lines off, and what became of each is read from the logs. A
program that ends in between loses nothing: `read_requests` finds the request again, and `work_off` writes the lines that are missing.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import islice, zip_longest
from typing import Any, NamedTuple
from urllib.parse import parse_qsl, urlencode

from txlayer.adapters.connect import CoordinatorConnections
from txlayer.adapters.ports import TopicPartition
from txlayer.adapters.readers import Range
from txlayer.coordinator.recovery import count_partitions
from txlayer.core import codec
from txlayer.core.history import split_operator_reason
from txlayer.core.ledger.transitions import TxnState
from txlayer.core.messages import OpMessage, Resolution, Source, txn_id_of
from txlayer.errors import RetriableError, UsageError
from txlayer.operate.audit import shorten
from txlayer.operate.live import LiveView
from txlayer.operate.operators import REASON_LENGTH_MAX, signature_of
from txlayer.operate.rows import UNREADABLE, Wanted
from txlayer.operate.settle import (
    GOOD,
    LOOK_AGAIN_S,
    ManualSettlement,
    OperatorAction,
    RecordedLine,
    SettlementOutcome,
    SettlementResult,
    Snapshot,
    WrittenLine,
    known_before,
    line_of,
    lines_of,
    settled_by,
)
from txlayer.operate.unsettled import Filter, UnsettledTransaction, committed_records, read_stored

REQUEST_COUNT_MAX = 100_000  # lines of one request
SELECTED_COUNT_MAX = 100  # transactions that a request may name one by one: a page of the list
STEP_COUNT = 1_000  # lines that are written at once; the next ones are written when coordinators have carried these out
PATIENCE_S = 10.0  # how long coordinators may stand still before a request is stopped
SHOWN_COUNT_MAX = 100  # outcomes that are kept for a person; all are counted
SCANNED_MAX = 1_000_000  # op records that a search for a request reads: some seconds
NAMED_MAX = 1_000  # half records that are looked up, to see which lines count
REQUESTS_MAX = 200  # requests that a search finds, the newest
MARGIN_MS = 60_000  # brokers' clocks may be so far behind ours

Edge = Mapping[int, int]
"""{partition: first half offset of the last transaction there that the person saw}. What came later may have an earlier time, by another broker."""
_EDGE = re.compile(r"(\d{1,9})\.(-?\d{1,18})", re.ASCII)


@dataclass(frozen=True, slots=True)
class SettlementRequest:
    """What a person asked for. Either `keys` names the transactions, or they are those of `wanted` prepared until `until_ms`."""

    id: str
    action: OperatorAction
    operator: str
    reason: str
    count: int  # how many the person saw and confirmed: there will be no more lines than this
    keys: tuple[str, ...] = ()  # "id/nonce"
    wanted: Wanted = field(default_factory=Wanted)
    until_ms: int = 0
    time_ms: int | None = None  # of a reschedule
    edge: Edge | None = None
    """None: the op log, where the request was found again, does not name it. Then what is a minute older than `until_ms` is meant."""

    def __post_init__(self) -> None:
        begun_ms_of(self.id)
        if not 0 < self.count <= (REQUEST_COUNT_MAX if self.is_filter else SELECTED_COUNT_MAX):
            raise UsageError(f"a request takes 1 to {REQUEST_COUNT_MAX:,} transactions, {SELECTED_COUNT_MAX} by name")
        if not self.is_filter and len(self.keys) != self.count:
            raise UsageError("the number is not that of the transactions that are named")
        self.signature()

    @property
    def is_filter(self) -> bool:
        """True if a filter chooses: what is missing can be found again from the op log alone."""
        return not self.keys

    @property
    def begun_ms(self) -> int:
        """When the person saw what would happen, or earlier (`LogHistoryReader.now_ms`); its lines are younger."""
        return begun_ms_of(self.id)

    def signature(self) -> str:
        """The reason of its op lines, with the name of the person and that of the request."""
        mark = self._mark(self.edge)
        if REASON_LENGTH_MAX - len(mark) < max(len(self.reason), 100):
            mark = self._mark(None)
        room = REASON_LENGTH_MAX - len(mark)
        if room < 100:
            raise UsageError("the filter is too long for a request")
        if len(self.reason) > room:
            raise UsageError(f"a reason takes at most {room:,} characters here")
        is_question = self.action is OperatorAction.CHECK_NOW
        signature = signature_of("settle", operator=self.operator, reason=self.reason, may_be_silent=is_question)
        return signature + mark

    def _mark(self, edge: Edge | None) -> str:
        which = f": {_query_of(self, edge)}" if self.is_filter else ""
        return f" [request {self.id} of {self.count}{which}]"


_ID = re.compile(r"[0-9a-f]{11}-[0-9a-f]{8}")
_MARK = re.compile(rf"(.*) \[request ({_ID.pattern}) of (\d{{1,6}})(?:: (\S+))?\]", re.DOTALL)


def request_id_of(now_ms: int, draw: int) -> str:
    """The id of a request that a person begins now; `draw` is any number that others do not draw."""
    return f"{now_ms:011x}-{draw & 0xFFFFFFFF:08x}"


def begun_ms_of(request_id: str) -> int:
    """When the person saw what would happen, or earlier; UsageError: it is not the id of a request."""
    if _ID.fullmatch(request_id) is None:
        raise UsageError("no such request")
    return int(request_id.partition("-")[0], 16)


def _query_of(request: SettlementRequest, edge: Edge | None) -> str:
    # Its lines are those of an abandon, which may also give up what is not scheduled.
    action = request.action.value if request.action is OperatorAction.CANCEL else None
    key_hash = request.wanted.key_hash
    more = {"key": key_hash, "until": request.until_ms, "action": action, "edge": edge_text(edge or {})}
    return urlencode(request.wanted.filter.fields() | {name: value for name, value in more.items() if value})


def request_of(op_line: RecordedLine) -> SettlementRequest | None:
    """The request that an op line names; None: it names none, or one that this release cannot read."""
    op = op_line.op
    found = _MARK.fullmatch(op.reason) if op.source is Source.OPERATOR else None
    if found is None:
        return None
    operator, reason = split_operator_reason(found[1])
    fields = dict(parse_qsl(found[4] or "", max_num_fields=20))
    try:
        return SettlementRequest(
            found[2],
            OperatorAction.CANCEL if fields.get("action") == OperatorAction.CANCEL.value else _action_of(op_line),
            operator,
            reason,
            int(found[3]),
            () if found[4] else (op.key,) * min(int(found[3]), SELECTED_COUNT_MAX),  # the others are in other lines
            Wanted(Filter.of_fields(fields), key_hash=fields.get("key")),
            int(fields.get("until", "0")),
            op.time_ms,
            edge_of_text(fields.get("edge", "")) or None,
        )
    except (ValueError, UsageError):
        return None


def _action_of(line: RecordedLine) -> OperatorAction:
    if line.op.is_abandon:
        return OperatorAction.ABANDON
    if line.op.is_reschedule:
        return OperatorAction.RESCHEDULE
    actions = {Resolution.COMMIT: OperatorAction.COMMIT, Resolution.ROLLBACK: OperatorAction.ROLLBACK}
    return actions.get(line.op.resolution, OperatorAction.CHECK_NOW)


# --- what would happen ------------------------------------------------------------------------------------------------


def is_able(action: OperatorAction, state: str) -> bool:
    """True if a line with this action says something about a transaction in this state."""
    return state != UNREADABLE and known_before(action, state) is None


def actions_for(state: str) -> list[OperatorAction]:
    return [action for action in OperatorAction if is_able(action, state)]


def rows_of(view: LiveView, keys: Iterable[str], *, now_ms: int) -> dict[str, UnsettledTransaction]:
    """Those of these "id/nonce" that are not settled."""
    wanted, found = dict.fromkeys(keys), {}
    for txn_id in dict.fromkeys(map(txn_id_of, wanted)):
        attempts = view.rows.page(Wanted(txn_id=txn_id, limit=REQUEST_COUNT_MAX), now_ms=now_ms).rows
        found.update({row.txn.key: row for row in attempts if row.txn.key in wanted})
    return found


def edge_text(edge: Edge) -> str:
    """As a form and an op line name it, in characters that neither changes."""
    return "~".join(f"{partition}.{offset}" for partition, offset in sorted(edge.items()))


def edge_of_text(text: str) -> Edge:
    """UsageError: it is none."""
    found = [_EDGE.fullmatch(each) for each in text.split("~") if text]
    if not all(found):
        raise UsageError("the form does not say what was seen; look again at what would happen")
    return {int(each[1]): int(each[2]) for each in found if each is not None}


def _was_seen(row: UnsettledTransaction, request: SettlementRequest) -> bool:
    if request.edge is None:
        return row.txn.appended_ms < request.until_ms - MARGIN_MS
    return row.txn.first_offset <= request.edge.get(row.partition, -2)


def _pages(
    view: LiveView, request: SettlementRequest, now_ms: Callable[[], int]
) -> Iterator[list[UnsettledTransaction]]:
    """What the request is about, the oldest first, in parts; each part as it is when it is asked for."""
    if not request.is_filter:
        yield list(rows_of(view, request.keys, now_ms=now_ms()).values())
        return
    after = ""
    while True:
        at_ms = now_ms()
        f, key_hash = request.wanted.filter, request.wanted.key_hash
        until = replace(f, older_ms=at_ms - request.until_ms)
        page = view.rows.page(Wanted(until, key_hash=key_hash, after=after, limit=STEP_COUNT), now_ms=at_ms)
        yield [row for row in page.rows if _was_seen(row, request)]
        after = page.after
        if not after:
            return


# --- working it off ---------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class RequestState:
    """How far a request is: what the logs say of the lines that were written, never what was asked for."""

    request: SettlementRequest
    earlier_count: int = 0  # transactions for which others wrote a line: before, or beside this one
    written_count: int = 0
    skipped_count: int = 0  # the action says nothing about what is in their state
    results: Counter[SettlementResult] = field(default_factory=Counter)
    good: list[SettlementOutcome] = field(default_factory=list)
    others: list[SettlementOutcome] = field(default_factory=list)
    stopped: str = ""  # why it ended before its end

    @property
    def line_count(self) -> int:
        return self.earlier_count + self.written_count

    def copy(self) -> RequestState:
        """As it is now, for another thread."""
        return replace(self, results=Counter(self.results), good=list(self.good), others=list(self.others))

    def add(self, outcomes: Iterable[SettlementOutcome]) -> None:
        """Count them, and keep the first."""
        for outcome in outcomes:
            self.results[outcome.result] += 1
            kept = self.good if outcome.result in GOOD else self.others
            if len(kept) < SHOWN_COUNT_MAX:
                kept.append(outcome)


def work_off(
    request: SettlementRequest,
    view: LiveView,
    settlement: ManualSettlement,
    *,
    now_ms: Callable[[], int],
    should_stop: Callable[[], bool],
    on_step: Callable[[RequestState], None] = lambda _state: None,
    is_resumed: bool = False,
) -> RequestState:
    """Write the lines of a request that are missing, in steps; after each step wait for the coordinators.

    It may be called any number of times, and by two at once: before each step it reads which lines the others have written. Those
    that write a step at the same moment choose the same transactions, and a second line for one changes nothing. It ends early when
    `should_stop`, and when the coordinators do not carry out a step for `PATIENCE_S`.

    Raises:
        BrokerUnavailableError, OutcomeUnknownError, NotAuthorisedError, RetriableError: some lines are stored. Call it again.
    """
    if not view.state.is_ready or view.state.problem:
        raise RetriableError("the picture of the transactions is not that of now; nothing was written; try again")
    state = RequestState(request)
    on_step(state.copy())
    done: set[str] = set()
    own: set[str] = set()
    signature = request.signature()
    snapshot = _snapshot(view)
    op_next = {(settlement.topics.op, p): end for p, end in snapshot.op_ends.items()}
    if is_resumed:
        before = _ranges_since(settlement.connections, settlement.topics.op, since_ms=request.begun_ms)
        starts = {tp: start for tp, (start, _) in before.items()}
        op_next = _read_keys(request, settlement.connections, starts, done)
    seen: set[str] = set()
    for rows in _pages(view, request, now_ms):
        if request.is_filter:
            op_next = _read_keys(request, settlement.connections, op_next, done)
        state.earlier_count = len(done - own)
        seen.update(row.txn.key for row in rows if not request.is_filter)
        able = [row for row in rows if row.txn.key not in done and is_able(request.action, row.state)]
        known = [row for row in rows if row.txn.key not in done and not is_able(request.action, row.state)]
        state.skipped_count += len(known)
        if not request.is_filter:
            state.add(
                settlement.known(row, result)
                for row in known
                if row.state != UNREADABLE and (result := known_before(request.action, row.state)) is not None
            )
        left_count = max(request.count - state.line_count, 0)
        lines = [line_of(request.action, row, signature, request.time_ms) for row in able[:left_count]]
        if lines:
            written = settlement.write(lines)
            own.update(each.found.txn.key for each in written)
            done |= own
            state.written_count = len(own)
            on_step(state.copy())
            reached = settlement.wait(written, patience_s=PATIENCE_S)
            now = _wait_for_view(view, settlement, written, reached, now_ms=now_ms)
            state.add(settlement.outcomes(request.action, written, snapshot, reached=reached, now=now))
            on_step(state.copy())
            if any(each.found.partition not in reached for each in written):
                state.stopped = "no coordinator carries its lines out now; they take effect when one does"
        if should_stop():
            state.stopped = state.stopped or "it was stopped"
        if state.stopped or state.line_count >= request.count:
            break
        snapshot = _snapshot(view)
    gone = [key for key in request.keys if key not in seen and key not in done]
    state.add(_gone(request, gone, settlement.connections))
    return state


def _read_keys(
    request: SettlementRequest, connections: CoordinatorConnections, starts: dict[TopicPartition, int], keys: set[str]
) -> dict[TopicPartition, int]:
    """Add the transactions that lines of the request name since these op offsets; where the next call begins."""
    ends = connections.end_offsets(list(starts))
    ranges = {tp: (start, ends[tp]) for tp, start in starts.items()}
    for _, line in _lines_with(request.id.encode(), committed_records(connections, ranges)):
        match = _MARK.fullmatch(line.op.reason)
        if match is not None and match[2] == request.id:
            keys.add(line.op.key)
    return ends


def _snapshot(view: LiveView) -> Snapshot:
    """Before the rows are read: they show at least what the logs say up to here."""
    partitions = view.state.partitions
    return Snapshot([], {p.partition: p.op_end for p in partitions}, {p.partition: p.doubt_end for p in partitions})


def _wait_for_view(
    view: LiveView,
    settlement: ManualSettlement,
    written: Iterable[WrittenLine],
    reached: set[int],
    *,
    now_ms: Callable[[], int],
) -> dict[str, UnsettledTransaction] | None:
    """Those of them that are not settled, once the view shows this moment; None: it does not in time."""
    keys = [each.found.txn.key for each in written if each.found.partition in reached]
    environment = settlement.environment
    asked_ms, give_up_at = now_ms(), environment.clock() + PATIENCE_S
    while any(p.true_ms <= asked_ms for p in view.state.partitions if p.partition in reached):
        if environment.clock() >= give_up_at:
            return None
        environment.sleep(LOOK_AGAIN_S)
    return rows_of(view, keys, now_ms=asked_ms)


def _gone(
    request: SettlementRequest, keys: list[str], connections: CoordinatorConnections
) -> Iterator[SettlementOutcome]:
    """What was settled between the look at it and the request: by which line, where that is known."""
    if not keys:
        return
    decided = _endings(connections, request, set(keys))
    for key in keys:
        partition, line = decided.get(key, (None, None))
        if line is None:
            yield SettlementOutcome(key, "", None, None, SettlementResult.NOT_FOUND)
            continue
        state = TxnState.ROLLED_BACK if line.op.resolution is Resolution.ROLLBACK else TxnState.COMMITTED
        yield settled_by(request.action, key, partition, state.value, line)


# --- finding it again -------------------------------------------------------------------------------------------------


class FoundLine(NamedTuple):
    """A line of a request, as the op log has it."""

    partition: int
    line: RecordedLine
    is_carried_out: bool  # coordinators have gone past it
    first: RecordedLine | None = None  # what came before it and says the contrary; None: nothing did


@dataclass(slots=True)
class FoundRequest:
    """A request, as the op log has it."""

    request: SettlementRequest
    first_ms: int
    last_ms: int
    line_count: int = 0
    carried_out_count: int = 0
    keys: set[str] = field(default_factory=set)  # only of a request that was looked for
    lines: list[FoundLine] = field(default_factory=list)  # the first ones


class FoundRequests(NamedTuple):
    """What a search for requests found."""

    requests: list[FoundRequest]  # the newest first
    has_more: bool  # the op log has more records than were read: of these there may be more, and others


def read_requests(
    connections: CoordinatorConnections, *, since_ms: int, request_id: str | None = None
) -> FoundRequests:
    """The requests in the op log since then, in the newest of too many records; or the one of this id, in the oldest."""
    count = count_partitions(connections, connections.config.topics)
    stored = {p: s.positions for p, s in read_stored(connections, range(count)).items()}
    found: dict[str, FoundRequest] = {}
    mark = (request_id or "%5Brequest ").encode()  # as the codec writes it
    ranges = _ranges_since(connections, connections.config.topics.op, since_ms=since_ms)
    has_more = sum(end - start for start, end in ranges.values()) > SCANNED_MAX
    if request_id is None:
        shorten(ranges, SCANNED_MAX)
    for partition, line in _lines_with(mark, islice(committed_records(connections, ranges), SCANNED_MAX)):
        match = _MARK.fullmatch(line.op.reason)
        if match is None or request_id not in (None, match[2]):
            continue
        each = found.get(match[2])
        if each is None:
            request = request_of(line)
            if request is None:
                continue
            each = found[match[2]] = FoundRequest(request, line.appended_ms, line.appended_ms)
            if len(found) > REQUESTS_MAX:
                del found[min(found)]  # an id begins with its time
                has_more = True
        if line.op.key in each.keys:
            continue
        each.first_ms, each.last_ms = min(each.first_ms, line.appended_ms), max(each.last_ms, line.appended_ms)
        is_carried_out = line.position < (stored[partition].op_offset, stored[partition].op_line)
        each.line_count += 1
        each.carried_out_count += is_carried_out
        if request_id is not None and len(each.keys) < REQUEST_COUNT_MAX:
            each.keys.add(line.op.key)
        if len(each.lines) < SHOWN_COUNT_MAX:
            each.lines.append(FoundLine(partition, line, is_carried_out))
    return FoundRequests(sorted(found.values(), key=lambda each: each.first_ms, reverse=True), has_more)


def with_contrary_decisions(found: FoundRequest, connections: CoordinatorConnections) -> list[FoundLine]:
    """Its first lines, each with the contrary decision that came before it, as far back as the moment at which the request began."""
    own = {each.line.op.key for each in found.lines}
    endings = _endings(connections, found.request, own)
    lines = []
    for each in found.lines:
        _, line = endings.get(each.line.op.key, (0, each.line))
        is_late = line.position < each.line.position and _is_contrary(each.line.op, line.op)
        lines.append(each._replace(first=line) if is_late else each)
    return lines


def _is_contrary(said: OpMessage, decision: OpMessage) -> bool:
    """True if what was said can have no effect after that decision; a commit tries again what is held, and a new time needs one."""
    is_rolled_back = decision.resolution is Resolution.ROLLBACK
    if said.resolution is Resolution.ROLLBACK:
        return not is_rolled_back
    return is_rolled_back or (said.resolution is Resolution.UNKNOWN and not said.is_reschedule)


def _endings(
    connections: CoordinatorConnections, request: SettlementRequest, keys: Collection[str]
) -> dict[str, tuple[int, RecordedLine]]:
    """{key: (partition, the line that decides it)}, of what was said since the request began: the first commit or rollback, or an abandon after it."""
    named: dict[tuple[str, int, int, str, bool], RecordedLine] = {}
    for partition, line in _lines_with(b"", _records_since(connections, connections.config.topics.op, request)):
        op = line.op
        if op.is_decision and op.key in keys and len(named) < NAMED_MAX:
            named.setdefault((op.key, partition, op.last_offset, op.producer_group, op.is_abandon), line)
    counted = _that_count(connections, [(partition, line) for (_, partition, *_), line in named.items()])
    said: defaultdict[str, list[tuple[int, RecordedLine, bool]]] = defaultdict(list)
    for each in sorted(counted, key=lambda each: each[1].position):
        said[each[1].op.key].append(each)
    abandoned = _abandoned(connections, request, said)
    return {key: _ending(lines, is_abandoned=key in abandoned) for key, lines in said.items()}


def _ending(lines: Iterable[tuple[int, RecordedLine, bool]], *, is_abandoned: bool) -> tuple[int, RecordedLine]:
    """(partition, line) that decides; an abandon also after a commit, if that was not complete, or if doubt says that it acted."""
    first, is_over = None, False
    for partition, line, is_whole in lines:
        if line.op.is_abandon and (not is_over or is_abandoned):
            return partition, line
        first = first or (partition, line)
        is_over |= is_whole if line.op.resolution is Resolution.COMMIT else line is first[1]
    assert first is not None
    return first


def _abandoned(connections: CoordinatorConnections, request: SettlementRequest, keys: Collection[str]) -> set[str]:
    """Those of which doubt says since the request began that they were abandoned after their commit."""
    found = set()
    doubts = _records_since(connections, connections.config.topics.doubt, request) if keys else ()
    for record in doubts:
        key, index = codec.parse_doubt_key(record.key()) or ("", None)
        if index is None and key in keys and codec.is_abandoned(record.value(), record.headers()):
            found.add(key)
    return found


def _that_count(
    connections: CoordinatorConnections, lines: Iterable[tuple[int, RecordedLine]]
) -> Iterator[tuple[int, RecordedLine, bool]]:
    """(partition, line, whether it names the last half record) of those that name one of their transaction, or one that retention removed, and its group."""
    topic = connections.config.topics.half
    named: defaultdict[TopicPartition, defaultdict[int, list[RecordedLine]]] = defaultdict(lambda: defaultdict(list))
    for partition, line in lines:
        named[topic, partition][line.op.last_offset].append(line)
    starts, ends = connections.start_offsets(list(named)), connections.end_offsets(list(named))
    for tp, by_offset in named.items():
        yield from ((tp[1], line, True) for offset, each in by_offset.items() if offset < starts[tp] for line in each)
    there = ([o for o in sorted(by_offset) if starts[tp] <= o < ends[tp]] for tp, by_offset in named.items())
    for turn in zip_longest(*there):
        ranges = {tp: (offset, offset + 1) for tp, offset in zip(named, turn, strict=True) if offset is not None}
        for record in committed_records(connections, ranges):
            half = codec.half_of(record.headers())
            for line in named[topic, record.partition()][record.offset()]:
                if half is not None and half[:2] == (line.op.key, line.op.producer_group):
                    yield record.partition(), line, half.index + 1 == half.count


def _ranges_since(connections: CoordinatorConnections, topic: str, *, since_ms: int) -> dict[TopicPartition, Range]:
    tps = [(topic, p) for p in range(count_partitions(connections, connections.config.topics))]
    starts = connections.offsets_at(tps, at_ms=since_ms - MARGIN_MS)
    return {tp: (starts[tp], end) for tp, end in connections.end_offsets(tps).items()}


def _records_since(connections: CoordinatorConnections, topic: str, request: SettlementRequest) -> Iterator[Any]:
    """Those since it began; at most so many."""
    ranges = _ranges_since(connections, topic, since_ms=request.begun_ms)
    return islice(committed_records(connections, ranges), SCANNED_MAX)


def _lines_with(mark: bytes, records: Iterable[Any]) -> Iterator[tuple[int, RecordedLine]]:
    for record in records:
        if mark in (record.value() or b""):
            for line in lines_of(record):
                yield record.partition(), line
