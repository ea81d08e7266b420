"""Drives one ledger over a `PartitionLog` as the coordinator's loop drives it, with a crash wherever a test wants one.

What happened since the last append is kept as a list of facts (`Applied`, `Tick`, …) and given to `on_append` when the
append is in the log: whoever judges the ledger sees the history that counts, whatever was tried and lost in between.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple, cast

from tests.support.core_records import GROUP, PARTITION, half_header, half_record, op_line
from tests.support.partition_log import SETTINGS, TOPICS, Appended, Entry, PartitionLog, fold_half
from txlayer.adapters.ports import GroupReader, TopicPartition
from txlayer.coordinator.shard import LogTime, Shard, latest_ms
from txlayer.core import codec
from txlayer.core.ledger.batch import Batch, Report, ReportKind
from txlayer.core.ledger.ledger import LedgerSettings
from txlayer.core.ledger.transaction import OpPosition, Target, accepting_target
from txlayer.core.ledger.transitions import TxnState
from txlayer.core.messages import NO_OPTIONS, HalfOptions, ParkReason
from txlayer.errors import RefusedRecordError

ACCEPTS = accepting_target(10_000)
MISSING = Target(0, refusal=ParkReason.TOPIC_MISSING)
FORBIDDEN = Target(0, refusal=ParkReason.FORBIDDEN_TOPIC, is_for_good=True)
MANY = 1 << 40


class _NoMarkers:
    """As much of a `GroupReader` as tells where reading stands: no marker is at an end."""

    def read_to(self, partition: TopicPartition) -> int:
        del partition
        return -1


_NO_MARKERS = cast("GroupReader", _NoMarkers())


class Applied(NamedTuple):
    """The op lines from one position to another were applied, with these targets and refusals.

    Some were given up: half ended before the places that they name.
    """

    start: OpPosition
    end: OpPosition
    given_up: frozenset[OpPosition]
    half_end: int
    targets: Mapping[str, Target]
    refusals: Mapping[str, ParkReason]


class Mended(NamedTuple):
    """These topics accept again."""

    topics: tuple[str, ...]
    targets: Mapping[str, Target]
    refusals: Mapping[str, ParkReason]


class Tick(NamedTuple):
    """Time passed; these were held too long, those were open too long, these were asked about."""

    expired: tuple[str, ...]
    too_old: tuple[str, ...]
    asked: tuple[str, ...]
    targets: Mapping[str, Target]
    refusals: Mapping[str, ParkReason]


class Kept(NamedTuple):
    """These stand on doubt, whole, since this append."""

    keys: tuple[str, ...]


Fact = Applied | Mended | Tick | Kept


class PartitionDriver:
    """Producers, one coordinator and its crashes, on one partition."""

    def __init__(
        self,
        *,
        settings: LedgerSettings = SETTINGS,
        targets: Mapping[str, Target] | None = None,
        on_append: Callable[[list[Fact], Appended], None] = lambda _facts, _appended: None,
    ) -> None:
        self.now_ms = 1_800_000_000_000
        self.op_behind_ms = 0  # how far the clock of the broker that has op is behind
        self.truth: dict[str, Target] = {"orders": ACCEPTS} if targets is None else dict(targets)
        self.book: dict[str, Target] = {}  # what the coordinator knows of it
        self.log = PartitionLog(
            settings=settings, targets=self.book, limit_of=lambda topic: self.truth[topic].message_bytes_max
        )
        self._refusals = self.log.refusals
        self.reports: list[Report] = []
        self.ledger = self.log.rebuild(targets=self.book, refusals=self.refusals)
        self.crash_count = 0
        self._on_append = on_append
        self._facts: list[Fact] = []
        self._half_read = 0
        self._op_read = 0

    @property
    def refusals(self) -> dict[str, ParkReason]:
        """Transactions that the broker is known to refuse."""
        return self._refusals.reasons

    # --- producers ----------------------------------------------------------------------------------------------------

    def half(
        self,
        key: str,
        *,
        index: int = 0,
        count: int = 1,
        topic: str = "orders",
        group: str = GROUP,
        options: HalfOptions = NO_OPTIONS,
        value: bytes | None = b"v",
    ) -> int:
        """Write a half record; its offset."""
        raw = half_header(key, group=group, topic=topic, index=index, count=count, options=options)
        return self.half_raw(raw, value=value)

    def half_raw(self, raw: bytes | None, *, value: bytes | None = b"v") -> int:
        """Write a half record with this header; its offset."""
        return self.log.add_half(half_record(raw, value=value), appended_ms=self.now_ms)

    def op(self, resolution: str, key: str, last_offset: int) -> int:
        """Write an op record of one line; its offset."""
        return self.op_lines(op_line(resolution, key, last_offset))

    def op_lines(self, *lines: str, gap: int = 0) -> int:
        """Write an op record; its offset."""
        value = "\n".join(lines).encode()
        return self.log.add_op(value, appended_ms=self.now_ms, gap=gap)

    # --- coordinator --------------------------------------------------------------------------------------------------

    def read(self, *, half: int | None = None, op: int | None = None) -> None:
        """Read up to so many records of half and op (None: all) and fold them."""
        self.ledger.times.believe_until(latest_ms(lambda: self.now_ms / 1000))
        for entry in self._next(self.log.half, self._half_read, half):
            fold_half(self.ledger, entry)
            self._half_read = entry.offset + 1
        for entry in self._next(self.log.op, self._op_read, op):
            self.ledger.add_ops(entry.offset, entry.appended_ms, entry.record.value(), entry.record)
            self._op_read = entry.offset + 1

    @staticmethod
    def _next(entries: list[Entry], start: int, count: int | None) -> list[Entry]:
        waiting = [entry for entry in entries if entry.offset >= start]
        return waiting if count is None else waiting[:count]

    def advance(self, *, lines: int = MANY, byte_count: int = MANY) -> Batch:
        """Apply op lines into the ledger's batch; nothing is appended yet."""
        for topic in self.ledger.unknown_topics:
            self.book[topic] = self.truth.get(topic, MISSING)
        self.ledger.unknown_topics.clear()
        start, quarantined_count = self.ledger.op_next, len(self.ledger.batch.quarantined)
        batch = self.ledger.advance(line_count_max=lines, byte_count_max=byte_count)
        given_up = frozenset(
            (aside.origin.offset, aside.number)
            for aside in batch.quarantined[quarantined_count:]
            if aside.line is not None and aside.why.reason is ParkReason.MISPLACED
        )
        self._facts.append(
            Applied(start, self.ledger.op_next, given_up, self._half_read, dict(self.book), dict(self.refusals))
        )
        return batch

    def tick(self, *, after_ms: int = 0, moves: int = 100, is_present: bool = False) -> None:
        """Time passes; what is due follows, when the loop would ask for it. `is_present`: somebody answers."""
        self.now_ms += after_ms
        now_ms: int | None = self.now_ms
        if not self._shard().is_read_to_the_ends(_NO_MARKERS, TOPICS):
            now_ms = self._shard().peak_ms()
        if now_ms is None:
            return
        before = len(self.ledger.batch.reports)
        present = {GROUP} if is_present else frozenset[str]()
        self.ledger.let_time_pass(now_ms=min(now_ms, self.now_ms), move_count_max=moves, present=present)
        news = self.ledger.batch.reports[before:]
        expired, too_old = (
            tuple(r.key for r in news if (r.kind, r.detail) == (ReportKind.PARKED, reason.value))
            for reason in (ParkReason.HELD_TOO_LONG, ParkReason.TOO_OLD)
        )
        asked = tuple(r.key for r in news if r.kind is ReportKind.CHECKED)
        self._facts.append(Tick(expired, too_old, asked, dict(self.book), dict(self.refusals)))

    def set_target(self, topic: str, target: Target, *, is_told: bool = True) -> None:
        """A topic is mended or broken; `is_told`: the ledger hears at once that it accepts again."""
        if target.is_for_good and not self.ledger.batch.is_empty:
            self.publish()  # what is forbidden is a setting: it never changes in the middle of a batch
        self.truth[topic] = target
        if topic in self.book:
            self.book[topic] = target
        if target.refusal is None and is_told:
            self.ledger.mended([topic])
            self._facts.append(Mended((topic,), dict(self.book), dict(self.refusals)))

    def give_up(self) -> None:
        """The op lines at hand that name places beyond half's end have waited long enough."""
        shard = self._shard()
        shard.lines_ahead.read_to(self.ledger.ops.read_to(self.ledger.op_next), 0.0)
        is_waiting = self.ledger.waits_for_half is not None
        shard.give_up_misplaced_lines(TOPICS, connections=self.log.connections, now=1.0, patience_s=1.0)
        if is_waiting and self._half_read == len(self.log.half):
            self.advance()

    def _shard(self) -> Shard:
        return Shard(self.ledger, self.log.stored, half_end=0, op_end=0, time=LogTime(lambda: 0.0))

    def publish(self, *, is_answered: bool = True) -> None:
        """Append what follows, with the positions; without an answer the coordinator rebuilds from what is stored."""
        ledger = self.ledger
        self.log.fill(ledger)
        positions, batch = ledger.positions(), ledger.batch
        try:
            kept = self.log.append(batch, positions, now_ms=self.now_ms - self.op_behind_ms)
        except RefusedRecordError as exc:
            self._refusals.learn(exc, {PARTITION: batch}, self.log.book)
            self.crash()
            return
        self._refusals.passed(PARTITION, batch)
        self.reports.extend(ledger.batch.reports)
        facts = [*self._facts, Kept(tuple(kept))]
        self._facts.clear()
        if is_answered:
            ledger.published(kept)
        else:
            self.crash()
        self._on_append(facts, self.log.appended[-1])

    def crash(self, *, is_new_process: bool = False) -> None:
        """All that is not in the log is lost (a new process knows no topics either); build it again."""
        self.crash_count += 1
        self._facts.clear()
        if is_new_process:
            self.book.clear()
            self.refusals.clear()
        self.ledger = self.log.rebuild(targets=self.book, refusals=self.refusals)
        self._half_read, self._op_read = self.ledger.half_next, self.ledger.op_next[0]

    def turn(self, *, lines: int = MANY, byte_count: int = MANY, is_answered: bool = True) -> None:
        """Read all, apply and append it: one turn of the loop."""
        self.read()
        self.advance(lines=lines, byte_count=byte_count)
        self.publish(is_answered=is_answered)

    def say(self, resolution: str, key: str, last_offset: int) -> None:
        """Write an op record of one line, and take a turn."""
        self.op(resolution, key, last_offset)
        self.turn()

    def pass_time(self, *, after_ms: int = 0, moves: int = 100, is_present: bool = False) -> None:
        """Time passes, and what is due is appended."""
        self.tick(after_ms=after_ms, moves=moves, is_present=is_present)
        self.publish()

    def move_to_doubt(self, *keys: str) -> None:
        """Prepare these, and let them become old."""
        for key in keys:
            self.half(key)
        self.turn()
        self.tick(after_ms=self.log.settings.doubt_after_ms)
        self.publish()

    # --- looking in ---------------------------------------------------------------------------------------------------

    def state(self, key: str) -> TxnState | None:
        """Where an unsettled transaction stands."""
        txn = self.ledger.find(key)
        return None if txn is None else txn.state

    def reasons(self) -> dict[str, str]:
        """Why transactions stand on doubt."""
        return {key: txn.summary().reason for key, txn in self.log.on_doubt().items()}

    def reported(self, kind: ReportKind) -> list[str]:
        """The transactions that were reported so, in order."""
        return [report.key for report in self.reports if report.kind is kind]


def lines_between(log: PartitionLog, start: OpPosition, end: OpPosition) -> Iterable[tuple[OpPosition, str]]:
    """The op lines with start <= position < end."""
    for entry in log.op:
        if start[0] <= entry.offset <= end[0]:
            lines = codec.split_ops(entry.record.value())
            for number, line in enumerate(lines if isinstance(lines, list) else []):
                if start <= (entry.offset, number) < end:
                    yield (entry.offset, number), line
