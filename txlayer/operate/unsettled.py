"""What is not settled in a namespace, read with the coordinator's own fold without taking part in its work. And which of these transactions
are meant, how many there are of each kind, and who answers for their groups.

Nothing is fenced, stored or written, and no group is joined, so any number may look at any time.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from typing import Any, NamedTuple, Self

from txlayer.adapters.connect import CoordinatorConnections
from txlayer.adapters.ports import GroupMember, LogReader, TopicPartition
from txlayer.adapters.readers import Range, records_of
from txlayer.coordinator.recovery import Recovery, StoredPositions, count_partitions, decode_stored, ledger_settings
from txlayer.core import codec
from txlayer.core.ledger.batch import NO_LIMIT
from txlayer.core.ledger.doubt import DoubtFold, HeadersOf, QuarantinedRecord, QuarantineFold
from txlayer.core.ledger.ledger import Ledger, LedgerSettings
from txlayer.core.ledger.transaction import Target, Transaction, accepting_target
from txlayer.core.ledger.transitions import COMMITTING, SETTLED, TxnState
from txlayer.core.messages import HalfOptions, ParkReason, nonce_of, txn_id_of
from txlayer.errors import NotAuthorisedError, UsageError
from txlayer.operate import Json
from txlayer.runtime.kafka_transactions import STABLE_PATIENCE_S

SLICE_MAX = 100_000
"""Records of one partition read at once behind the stored positions: op must not run far ahead of half."""


def read_stored(connections: CoordinatorConnections, partitions: Iterable[int]) -> dict[int, StoredPositions]:
    """{partition: what the coordinators have stored}, without waiting for pending offsets: under load some always are."""
    topics, numbers = connections.config.topics, list(partitions)
    answer = connections.stored_offsets(
        topics.coordinator_group, [(topic, p) for p in numbers for topic in (topics.half, topics.op)], is_stable=False
    )
    return {p: decode_stored(answer[topics.half, p], answer[topics.op, p], partition=p) for p in numbers}


def committed_records(connections: CoordinatorConnections, ranges: Mapping[TopicPartition, Range]) -> Iterator[Any]:
    """Every committed record of the ranges, in offset order per partition; some may be given before an error."""
    with closing(connections.make_reader("read_committed")) as reader:
        yield from records_of(reader, ranges, patience_s=STABLE_PATIENCE_S)


def read_quarantined(
    connections: CoordinatorConnections, partitions: Iterable[int] | None = None
) -> list[QuarantinedRecord]:
    """Every quarantined record of these partitions (None: of all), the oldest first in each.

    Doubt is read from its beginning: no transaction waits for such a record, so no low-water mark holds it back.
    """
    topics = connections.config.topics
    count = count_partitions(connections, topics)
    tps = [(topics.doubt, p) for p in (range(count) if partitions is None else partitions) if p < count]
    starts, ends, fold = connections.start_offsets(tps), connections.end_offsets(tps), QuarantineFold()
    for record in committed_records(connections, {tp: (starts[tp], ends[tp]) for tp in tps}):
        fold.fold(record)
    return fold.quarantined()


class UnsettledTransaction(NamedTuple):
    """One transaction that is not settled."""

    partition: int
    state: str  # a TxnState's value, or COMMITTING
    txn: Transaction  # without content
    query_id: str | None = None  # the user's own id


class QueryFold(DoubtFold):
    """Folds doubt, and remembers the users' own ids of transactions."""

    def __init__(self, *, op_offset: int) -> None:
        super().__init__(op_offset=op_offset)
        self.query_ids: dict[str, str] = {}

    def fold(self, offset: int, raw_key: bytes | None, value: bytes | None, headers: HeadersOf = lambda: None) -> None:
        super().fold(offset, raw_key, value, headers)
        if value is not None and (named := query_id_on_doubt(raw_key, headers)) is not None:
            self.query_ids[named[0]] = named[1]


def query_id_on_doubt(raw_key: bytes | None, headers: HeadersOf) -> tuple[str, str] | None:
    """("id/nonce", the user's own id) if this is the first content of a transaction that has one."""
    if raw_key is None or not raw_key.endswith(b"/0"):
        return None
    query_id = codec.asked_options_of(headers()).query_id
    parsed = None if query_id is None else codec.parse_doubt_key(raw_key)
    return None if parsed is None or query_id is None else (parsed[0], query_id)


class Overview:
    """Reads what is open. Memory: what a coordinator needs for the same transactions, without their content."""

    def __init__(self, connections: CoordinatorConnections) -> None:
        self._config = connections.config
        self._connections = connections
        self.op_ends: dict[int, int] = {}
        """{partition: op offset before which every line was looked at}; whole once `unsettled` is exhausted."""
        self.unreadable: list[str] = []
        """Keys of transactions on doubt that only a later release can read, and that are not among the unsettled; likewise whole then."""

    def unsettled(self) -> Iterator[UnsettledTransaction]:
        """Every transaction that is not settled, in no promised order: stored positions first, then what came behind.

        It is a picture of a moving thing: a transaction that a coordinator is just carrying out may show the step before.
        """
        partition_count = count_partitions(self._connections, self._config.topics)
        settings = ledger_settings(self._config, partition_count=partition_count)
        # Before doubt is read: what leaves half meanwhile is found on doubt, and what is found on both counts once.
        stored = read_stored(self._connections, range(partition_count))
        ledgers: dict[int, Ledger] = {p: ContentlessLedger(p, settings) for p in stored}
        # No group gave these partitions, so none can take them away.
        folds: dict[int, QueryFold] = {}

        def make_fold(partition: int, op_offset: int) -> QueryFold:
            return folds.setdefault(partition, QueryFold(op_offset=op_offset))

        recovery = Recovery(self._config, self._connections, is_still_ours=lambda: None, make_fold=make_fold)
        recovery.replay(ledgers, stored)
        self.unreadable = [key for fold in folds.values() for key in fold.unreadable]
        for partition, ledger in ledgers.items():
            ledger.end_replay(stored[partition].positions)
        yield from self._read_on(ledgers, stored)
        for partition, ledger in ledgers.items():
            for txn in ledger.all_unsettled():
                query_id = txn.options.query_id or folds[partition].query_ids.get(txn.key)
                yield UnsettledTransaction(partition, txn.state.value, txn, query_id)

    def _read_on(
        self, ledgers: dict[int, Ledger], stored: dict[int, StoredPositions]
    ) -> Iterator[UnsettledTransaction]:
        """Fold what lies behind the stored positions; those that it commits."""
        topics = self._config.topics
        with closing(self._connections.make_reader("read_committed")) as reader:
            # op's ends first: then every line that is read names a half record that is there.
            op_left = self._left(topics.op, {p: s.positions.op_offset for p, s in stored.items()})
            self.op_ends = {p: op_left[p][1] if p in op_left else s.positions.op_offset for p, s in stored.items()}
            halves = [(topics.half, p) for p in stored]
            written = self._connections.end_offsets(halves, is_committed=False)
            hidden = {p for (t, p), end in self._connections.end_offsets(halves).items() if end < written[t, p]}
            half_left = self._left(topics.half, {p: s.positions.half_next for p, s in stored.items()})
            while half_left or op_left:
                slices: dict[TopicPartition, Range] = {}
                for p, ledger in ledgers.items():
                    if p in op_left and (ledger.waits_for_half is None or p not in half_left):
                        slices[topics.op, p] = self._next_slice(op_left, p)
                    elif p in half_left:
                        slices[topics.half, p] = self._next_slice(half_left, p)
                self._fold(reader, ledgers, slices)
                for p, ledger in ledgers.items():
                    yield from _advance(p, ledger, is_half_read=p not in half_left and p not in hidden)
                    if p in hidden and p not in half_left and ledger.waits_for_half is not None:
                        # Coordinators wait, too, until the Kafka transaction ends that may hide the half record.
                        op_left.pop(p, None)
                        self.op_ends[p] = ledger.op_next[0]

    def _next_slice(self, left: dict[int, Range], partition: int) -> Range:
        start, end = left.pop(partition)
        middle = min(start + SLICE_MAX, end)
        if middle < end:
            left[partition] = (middle, end)
        return start, middle

    def _left(self, topic: str, positions: Mapping[int, int]) -> dict[int, Range]:
        ends = self._connections.end_offsets([(topic, p) for p in positions])
        return {p: (start, ends[topic, p]) for p, start in positions.items() if start < ends[topic, p]}

    def _fold(self, reader: LogReader, ledgers: dict[int, Ledger], slices: Mapping[TopicPartition, Range]) -> None:
        half_topic = self._config.topics.half
        for record in records_of(reader, slices, patience_s=STABLE_PATIENCE_S):
            ledger = ledgers[record.partition()]
            offset, appended_ms = record.offset(), record.timestamp()[1]
            if record.topic() == half_topic:
                ledger.fold_half(offset, appended_ms, codec.half_header_of(record.headers()), record)
            else:
                ledger.add_ops(offset, appended_ms, record.value(), record)


def _advance(partition: int, ledger: Ledger, *, is_half_read: bool) -> Iterator[UnsettledTransaction]:
    while True:
        batch = ledger.advance(line_count_max=NO_LIMIT, byte_count_max=NO_LIMIT)
        for txn in batch.forwards:
            if txn.state in SETTLED:  # else it is a part, and the transaction goes on
                yield UnsettledTransaction(partition, COMMITTING, txn, txn.options.query_id)
        ledger.forget_batch()
        if ledger.has_more:
            continue
        if ledger.waits_for_half is None or not is_half_read:
            return
        ledger.give_up_waiting_for_half(before=ledger.ops.read_to(ledger.op_next), half_end=ledger.half_next)


class _NoContent:
    """Replaces the content of every half record: an overview has no use for it."""

    def key(self) -> None:
        return None

    def headers(self) -> tuple[()]:
        return ()

    def __len__(self) -> int:
        return 0


_NO_CONTENT = _NoContent()


class ContentlessLedger(Ledger):
    """The ledger without content, for targets that all accept: only a coordinator finds out whether they do."""

    def __init__(self, partition: int, settings: LedgerSettings) -> None:
        super().__init__(partition, settings=settings, targets=_EveryTopicAccepts())

    def fold_half(self, offset: int, appended_ms: int, header: bytes | None, record: Any) -> None:  # noqa: ARG002 - the content stays away
        super().fold_half(offset, appended_ms, header, _NO_CONTENT)

    def _continue_moves(self) -> None:
        self._move_before = 0  # nothing is stored here, so no restart meets the second copy

    def _has_room_for_key(self, txn: Transaction | None) -> bool:  # noqa: ARG002 - as for any other
        return True  # a batch of this ledger is never written, so it has no limit


class _EveryTopicAccepts(Mapping[str, Target]):
    def __getitem__(self, topic: str) -> Target:
        return _ACCEPTS

    def __iter__(self) -> Iterator[str]:
        return iter(())

    def __len__(self) -> int:
        return 0


_ACCEPTS = accepting_target(NO_LIMIT)


# --- which are meant, and who answers for them ------------------------------------------------------------------------

NAMED_MAX = 20
"""Groups that are asked about one by one, and whose members are named. The others are looked for in the cluster's list of groups."""


class GroupResponders(NamedTuple):
    """Those that answer for one producer group: producers with a check handler or a barrier, and responders alone."""

    producer_group: str
    is_answered: bool | None  # None: these credentials may not know
    members: tuple[GroupMember, ...]  # empty, too, where they were not asked for
    seen_ms: int


def read_responders(
    connections: CoordinatorConnections, groups: Iterable[str], *, now_ms: int
) -> tuple[GroupResponders, ...]:
    """Whether each group has a responder, in the order of `groups`.

    A coordinator asks the same before it sends a question: the responders of a producer group are the members of its check
    group, which share the partitions of the check topic.
    """
    names = {connections.config.topics.check_group(group): group for group in groups}
    found = []
    for name in list(names)[:NAMED_MAX]:
        try:
            members = connections.group(name).members
        except NotAuthorisedError:
            found.append(GroupResponders(names.pop(name), None, (), now_ms))
        else:
            found.append(GroupResponders(names.pop(name), bool(members), members, now_ms))
    present = connections.groups_with_members(names) if names else frozenset()
    # The list leaves out groups that these credentials may not describe: absence says nothing then.
    may_know_all = all(each.is_answered is not None for each in found)
    found += [
        GroupResponders(group, True if name in present else False if may_know_all else None, (), now_ms)
        for name, group in names.items()
    ]
    return tuple(found)


PARKED = frozenset({TxnState.PARKED.value, TxnState.PARKED_COMMITTED.value})
"""What `--parked` means, and what many at once are when no state is named."""


@dataclass(frozen=True, slots=True)
class Filter:
    """What a transaction must be like; the default lets every one through."""

    group: str | None = None
    topic: str | None = None
    states: frozenset[str] = frozenset()
    reasons: frozenset[ParkReason] = frozenset()
    older_ms: int | None = None
    query_id: str | None = None

    @property
    def is_empty(self) -> bool:
        return self == Filter()

    def fields(self) -> dict[str, str]:
        """It as an address and an op line name it, without ages; what is not asked for is left out."""
        reasons = sorted(reason.value for reason in self.reasons)
        named = {
            "group": self.group,
            "topic": self.topic,
            "state": sorted(self.states),
            "reason": reasons,
            "query": self.query_id,
        }
        return {name: value if isinstance(value, str) else ",".join(value) for name, value in named.items() if value}

    @classmethod
    def of_fields(cls, fields: Mapping[str, str], *, older_ms: int | None = None) -> Self:
        """The filter that `fields` named; UsageError: no reason is called so."""
        states, reasons = (frozenset(filter(None, fields.get(name, "").split(","))) for name in ("state", "reason"))
        if unknown := sorted(reasons - {reason.value for reason in ParkReason}):
            raise UsageError(f"no reason is called {unknown[0][:40]!r}")
        known = frozenset(map(ParkReason, reasons))
        group, topic, query_id = (fields.get(name) or None for name in ("group", "topic", "query"))
        return cls(group, topic, states, known, older_ms, query_id=query_id)

    def lets_through(self, found: UnsettledTransaction, *, now_ms: int) -> bool:
        """True for a transaction that is meant; ages count from the append time of its first half message."""
        txn, age_ms = found.txn, now_ms - found.txn.appended_ms
        reason = None if txn.extras is None else txn.extras.reason
        return (
            (self.group is None or txn.group == self.group)
            and (self.query_id is None or found.query_id == self.query_id)
            and (self.topic is None or self.topic in txn.topics)
            and (not self.states or found.state in self.states)
            and (not self.reasons or reason in self.reasons)
            and (self.older_ms is None or age_ms >= self.older_ms)
        )


def oldest(found: Iterable[UnsettledTransaction], limit: int | None) -> list[UnsettledTransaction]:
    """The oldest of them, the oldest first; None: all."""
    return sorted(found, key=lambda each: (each.txn.appended_ms, each.partition, each.txn.first_offset))[:limit]


def unsettled_json(found: UnsettledTransaction, *, now_ms: int) -> Json:
    txn, more = found.txn, found.txn.extras
    return {
        "txn_id": txn_id_of(txn.key),
        "nonce": nonce_of(txn.key),
        "query_id": found.query_id,
        "producer_group": txn.group,
        "state": found.state,
        "reason": more.reason.value if more is not None and more.reason is not None else None,
        "appended_ms": txn.appended_ms,
        "age_ms": max(now_ms - txn.appended_ms, 0),
        "seen_count": txn.seen,
        "message_count": txn.count,
        "topics": [topic for topic in txn.topics if topic],
        "partition": found.partition,
        "first_half_offset": txn.first_offset if txn.first_offset >= 0 else None,
        "last_half_offset": txn.last_offset if txn.last_offset >= 0 else None,
        "stands_in": "doubt" if txn.is_in_doubt else "half",
        "checked_count": more.checked_count if more is not None else 0,
        "answered_count": more.answered_count if more is not None else 0,
        "asked_ms": (more.asked_ms or None) if more is not None else None,
        "due_ms": next(iter(txn.due.left), None)
        if txn.due is not None and found.state == TxnState.SCHEDULED.value
        else None,
        **options_json(txn.options),
    }


def stats_json(connections: CoordinatorConnections, *, now_ms: int) -> Json:
    """What `tx stats --json` prints; `responders` says of each group with undecided transactions who answers check-backs."""
    ages_ms: defaultdict[tuple[str, str], list[int]] = defaultdict(list)  # by producer group and state
    for found in Overview(connections).unsettled():
        ages_ms[found.txn.group, found.state].append(max(now_ms - found.txn.appended_ms, 0))
    asked = sorted({group for group, state in ages_ms if state == TxnState.OPEN.value})
    return {
        "namespace": connections.config.namespace,
        "transaction_count": sum(map(len, ages_ms.values())),
        "oldest_age_ms": max(map(max, ages_ms.values()), default=None),
        "kept_aside_count": len(read_quarantined(connections)),
        "states": [
            {"producer_group": group, "state": state, "count": len(ages), "oldest_age_ms": max(ages)}
            for (group, state), ages in sorted(ages_ms.items())
        ],
        "responders": [
            found._asdict() | {"members": [member._asdict() for member in found.members]}
            for found in read_responders(connections, asked, now_ms=now_ms)
        ],
    }


def options_json(options: HalfOptions) -> Json:
    return {
        "key_hash": options.key_hash,
        "order": options.order.value,
        "immunity_ms": options.immunity_ms,
        "unresolved": None if options.unresolved is None else options.unresolved.value,
    }


KEPT_ASIDE = "kept-aside"  # where a transaction's JSON has its state


def quarantined_json(found: QuarantinedRecord, *, now_ms: int) -> Json:
    """One object of `tx list --kept-aside --json`; `name` is what `tx show` finds it by."""
    origin = found.origin
    name = codec.quarantine_key(origin, found.line).decode("ascii")
    return {
        "state": KEPT_ASIDE,
        "name": name,
        "topic": origin.topic,
        "partition": origin.partition,
        "offset": origin.offset,
        "line": found.line,
        "reason": found.reason or None,
        "why": found.why,
        "txn_id": txn_id_of(found.key) or None,
        "nonce": nonce_of(found.key) or None,
        "producer_group": found.producer_group or None,
        "kept_ms": found.kept_ms,
        "age_ms": max(now_ms - found.kept_ms, 0),
        "key_bytes": found.key_bytes,
        "value_bytes": found.value_bytes,
        "header_names": list(found.header_names),
        "doubt_partition": found.doubt_origin.partition,
        "doubt_offset": found.doubt_origin.offset,
    }
