"""One partition of the log as tests see it: half, op, doubt, stored positions and what is visible. It survives a crash.

It plays Kafka and the few lines of the service that stand between Kafka and the ledger: an append is atomic, doubt
records are written as coordinator/publish.py writes them, content comes back through the coordinator's own
`fill_contents`, and a ledger is rebuilt step by step as coordinator/recovery.py does it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any, NamedTuple, cast

from tests.support.fake_records import PARTITION, PARTITION_COUNT, FakeRecord
from txlayer.adapters.ports import CoordinatorConnections, TopicPartition
from txlayer.config import CoordinatorConfig
from txlayer.coordinator.log_time import LogTime
from txlayer.coordinator.shard import Shard, fill_contents
from txlayer.core import codec
from txlayer.core.batch import Batch, Positions
from txlayer.core.checks import CheckPolicies, CheckPolicy
from txlayer.core.doubt_fold import DoubtFold
from txlayer.core.ledger import NEVER, Ledger
from txlayer.core.messages import Origin, ParkReason
from txlayer.core.settling import LedgerSettings
from txlayer.core.target import Target
from txlayer.core.transaction import Content, Transaction

SETTINGS = LedgerSettings(
    half_topic="txlayer.half",
    op_topic="txlayer.op",
    partition_count=PARTITION_COUNT,
    doubt_after_ms=60_000,
    held_age_max_ms=7 * 24 * 3_600_000,
    transaction_messages_max=5,
    checks=CheckPolicies(CheckPolicy(answered_max=2, age_max_ms=12 * 24 * 3_600_000)),
)


class Entry(NamedTuple):
    """A record where it stands."""

    offset: int
    appended_ms: int
    record: FakeRecord


class Visible(NamedTuple):
    """A message that a `read_committed` reader sees."""

    txn_key: str
    index: int  # type: ignore[assignment]  # hides tuple.index, which nobody needs
    count: int  # type: ignore[assignment]  # likewise
    topic: str
    half_offset: int
    key: bytes | None
    value: bytes | None


class Appended(NamedTuple):
    """One Kafka transaction of the coordinator."""

    messages: list[Visible]
    positions: Positions


class PartitionLog:
    """Half, op, doubt, the stored positions, and every Kafka transaction of the coordinator."""

    def __init__(self, *, settings: LedgerSettings = SETTINGS) -> None:
        self.settings = settings
        self.half: list[Entry] = []
        self.op: list[Entry] = []
        self.doubt: list[Entry] = []
        self.appended: list[Appended] = []
        self.kept_aside: list[Origin] = []
        self.stored = Positions(0, 0, 0, 0, 0, 0, 0)
        self._op_end = 0
        self._doubt_end = 0

    # --- writing ------------------------------------------------------------------------------------------------------

    def add_half(self, record: FakeRecord, *, appended_ms: int) -> int:
        """A half record; its offset."""
        self.half.append(Entry(len(self.half), appended_ms, record))
        return len(self.half) - 1

    def add_op(self, value: bytes | None, *, appended_ms: int, gap: int = 0) -> int:
        """An op record, `gap` offsets behind the last (transaction markers take offsets too); its offset."""
        offset = self._op_end + gap
        self.op.append(Entry(offset, appended_ms, FakeRecord(value=value)))
        self._op_end = offset + 1
        return offset

    def append(self, batch: Batch, positions: Positions, *, now_ms: int) -> dict[str, int]:
        """One Kafka transaction: all of the batch, and the positions. Where the kept ones begin on doubt."""
        kept: dict[str, int] = {}
        for keep in batch.keeps.values():
            if keep.is_whole:
                kept[keep.txn.key] = self._doubt_end
                for content in contents_of(keep.txn):
                    key = codec.content_key(keep.txn.key, content.index)
                    self._add_doubt(key, _doubt_content(keep.txn, content), now_ms)
            summary = FakeRecord(value=codec.encode_summary(keep.txn.summary()))
            self._add_doubt(keep.txn.key.encode(), summary, now_ms)
        for txn in batch.ends:
            for key in (
                *(codec.content_key(txn.key, i) for i in range(txn.seen)),
                txn.key.encode(),
            ):
                self._add_doubt(key, FakeRecord(value=None), now_ms)
        for aside in batch.asides:
            key = codec.kept_aside_key(aside.origin, None if aside.line is None else aside.number)
            self._add_doubt(key, FakeRecord(value=b""), now_ms)
            self.kept_aside.append(aside.origin)
        self._doubt_end += 1  # the marker
        messages = [
            Visible(
                txn.key, c.index, txn.count, c.topic, c.offset, c.record.key(), c.record.value()
            )
            for txn in batch.forwards
            for c in contents_of(txn)
        ]
        self.appended.append(Appended(messages, positions))
        self.stored = positions
        return kept

    def _add_doubt(self, key: bytes, record: FakeRecord, now_ms: int) -> None:
        stored = FakeRecord(key=key, value=record.value(), headers=record.headers())
        self.doubt.append(Entry(self._doubt_end, now_ms, stored))
        self._doubt_end += 1

    def compact_doubt(self) -> None:
        """What the broker's cleaner does: of every key the newest record stays."""
        newest = {entry.record.key(): entry.offset for entry in self.doubt}
        self.doubt = [e for e in self.doubt if newest[e.record.key()] == e.offset]

    # --- reading ------------------------------------------------------------------------------------------------------

    @property
    def visible(self) -> list[Visible]:
        """Every message that was forwarded, in log order."""
        return [message for appended in self.appended for message in appended.messages]

    @property
    def forwarded(self) -> list[str]:
        """Every transaction that was forwarded, in log order."""
        return list(dict.fromkeys(message.txn_key for message in self.visible))

    def on_doubt(self) -> dict[str, Transaction]:
        """What a reader of doubt finds, from the stored low-water mark on."""
        fold, _ = self._read_doubt()
        return fold.everybody()

    def contents_on_doubt(self, key: str) -> dict[int, FakeRecord]:
        """The half records of a transaction as doubt holds them, by index."""
        found: dict[int, FakeRecord] = {}
        for entry in self.doubt:
            parsed = codec.parse_doubt_key(entry.record.key())
            if parsed is not None and parsed[0] == key and parsed[1] is not None:
                if entry.record.value() is None:
                    found.pop(parsed[1], None)
                else:
                    found[parsed[1]] = _from_doubt(entry.record)
        return found

    def _read_doubt(self) -> tuple[DoubtFold, int]:
        fold = DoubtFold(op_offset=self.stored.replay_offset)
        for entry in self.doubt:
            if entry.offset >= self.stored.doubt_low:
                fold.fold(entry.offset, entry.record.key(), entry.record.value())
        return fold, self._doubt_end

    def fill(self, ledger: Ledger) -> None:
        """Fetch the content that the batch needs and that is not in memory."""
        shard = Shard(ledger, self.stored, half_end=0, op_end=0, time=LogTime(lambda: 0.0))
        connections = cast("CoordinatorConnections", _Connections(self))
        fill_contents(
            [(PARTITION, ledger.batch)], {PARTITION: shard}, config=CoordinatorConfig(), connections=connections
        )  # fmt: skip

    # --- restart ------------------------------------------------------------------------------------------------------

    def rebuild(
        self, *, targets: Mapping[str, Target], refusals: Mapping[str, ParkReason]
    ) -> Ledger:
        """A ledger at the stored positions, as recovery builds it."""
        ledger = Ledger(PARTITION, settings=self.settings, targets=targets, refusals=refusals)
        p = self.stored
        fold, end = self._read_doubt()
        ledger.start_replay(p, fold, doubt_next=end)
        for entry in self.half[p.copies_from : p.low_water]:
            ledger.recall_half(codec.half_header_of(entry.record.headers()), entry.record)
        for entry in self.half[p.low_water : p.half_next]:
            fold_half(ledger, entry)
        op_end = p.op_offset + (1 if p.op_line else 0)
        for entry in self.op:
            if p.replay_offset <= entry.offset < op_end:
                value = entry.record.value()
                if entry.offset == p.op_offset:
                    value = b"\n".join((value or b"").split(b"\n")[: p.op_line])
                ledger.add_ops(entry.offset, entry.appended_ms, value, entry.record)
                ledger.advance(line_count_max=NEVER, byte_count_max=NEVER)
                ledger.forget_batch()
        ledger.end_replay(p)
        return ledger


def fold_half(ledger: Ledger, entry: Entry) -> None:
    """Give a half record to the ledger as the service does."""
    header = codec.half_header_of(entry.record.headers())
    ledger.fold_half(entry.offset, entry.appended_ms, header, entry.record)


def contents_of(txn: Transaction) -> Sequence[Content]:
    """The messages of a transaction whose content is in memory."""
    assert txn.content is not None
    if isinstance(txn.content, list):
        return txn.content
    return [Content(0, txn.topic, txn.first_offset, txn.options, txn.born, txn.content)]


def _doubt_content(txn: Transaction, content: Content) -> FakeRecord:
    record: Any = content.record
    origin = codec.encode_origin(
        partition=PARTITION, offset=content.offset, index=content.index, count=txn.count,
        born_ms=int(content.born),
    )  # fmt: skip
    value, headers = codec.encode_content(
        key=record.key(), value=record.value(), headers=record.headers(), origin=origin
    )
    return FakeRecord(value=value, headers=headers)


def _from_doubt(record: FakeRecord) -> FakeRecord:
    key, value, headers = codec.decode_content(value=record.value(), headers=record.headers())
    return FakeRecord(key=key, value=value, headers=headers)


class _Connections:
    """As much of a coordinator's connections as fetching contents needs."""

    def __init__(self, log: PartitionLog) -> None:
        self._log = log

    def make_reader(self, isolation: str) -> _Reader:
        assert "read_committed" == isolation
        return _Reader({"txlayer.half": self._log.half, "txlayer.doubt": self._log.doubt})


class _Reader:
    """A `LogReader` over the entries of half and doubt."""

    def __init__(self, entries: Mapping[str, Sequence[Entry]]) -> None:
        self._entries = entries
        self._positions: dict[TopicPartition, int] = {}

    def assign(self, positions: Mapping[TopicPartition, int]) -> None:
        self._positions = dict(positions)

    def read(self, *, record_count_max: int, timeout_s: float) -> Sequence[Any]:  # noqa: ARG002 - the port's
        """Everything from the positions on, and where it ends."""
        found: list[Any] = []
        for place, start in self._positions.items():
            entries = self._entries[place[0]]
            found += [_Placed(place[0], e.offset, e.record) for e in entries if e.offset >= start]
            found.append(_Placed(place[0], self.watermarks(place)[1], FakeRecord(), is_end=True))
        self._positions = {}
        return found

    def pause(self, partition: TopicPartition) -> None:
        """Everything was given at once."""

    def watermarks(self, partition: TopicPartition, *, timeout_s: float = 0) -> tuple[int, int]:
        del timeout_s
        entries = self._entries[partition[0]]
        return 0, entries[-1].offset + 1 if entries else 0

    def close(self) -> None:
        """Nothing is open."""


class _Placed(FakeRecord):
    """A record as a reader gives it; or the end of a partition."""

    __slots__ = ("_is_end", "_offset", "_topic")

    def __init__(
        self, topic: str, offset: int, record: FakeRecord, *, is_end: bool = False
    ) -> None:
        super().__init__(key=record.key(), value=record.value(), headers=record.headers())
        self._topic, self._offset, self._is_end = topic, offset, is_end

    def topic(self) -> str:
        return self._topic

    def partition(self) -> int:
        return PARTITION

    def offset(self) -> int:
        return self._offset

    def error(self) -> Any:
        return SimpleNamespace(name=lambda: "_PARTITION_EOF") if self._is_end else None
