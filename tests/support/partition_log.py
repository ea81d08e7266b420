"""One partition of the log as tests see it: half, op, doubt, stored positions and what is visible. It survives a crash.

It plays Kafka and the few lines of the service that stand between Kafka and the ledger: an append is atomic, doubt
records are written as coordinator/publish.py writes them, content comes back as coordinator/ranges.py reads it, and a
ledger is rebuilt step by step as coordinator/recovery.py does it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from tests.support.fake_records import PARTITION, PARTITION_COUNT, FakeRecord
from txlayer.core import codec
from txlayer.core.batch import Batch, Positions
from txlayer.core.checks import CheckPolicies, CheckPolicy
from txlayer.core.doubt_fold import DoubtFold
from txlayer.core.ledger import NEVER, Ledger
from txlayer.core.messages import HalfHeader, Origin, ParkReason
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
            key = codec.kept_aside_key(aside.origin)
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
        fold = DoubtFold()
        for entry in self.doubt:
            if entry.offset >= self.stored.doubt_low:
                fold.fold(entry.offset, entry.record.key(), entry.record.value())
        return fold, self._doubt_end

    def fill(self, ledger: Ledger) -> None:
        """Fetch the content that the batch needs and that is not in memory."""
        batch = ledger.batch
        for txn in (*batch.forwards, *(k.txn for k in batch.keeps.values() if k.is_whole)):
            joined = (txn.more.joined if txn.more is not None else None) or []
            if txn.content is None or joined:
                count = txn.seen - len(joined)
                found = self._fetch_doubt(txn, count) if txn.is_in_doubt else self._fetch_half(txn)
                assert list(range(count)) == [content.index for content in found]
                ledger.filled(txn, [*found, *joined])

    def _fetch_half(self, txn: Transaction) -> list[Content]:
        found: list[Content] = []
        for entry in self.half[txn.first_offset : txn.last_offset + 1]:
            header = _header(entry.record)
            # Second copies and records with another count stand there too; they are no part of it.
            if header is not None and (header.key, header.index, header.count) == (
                txn.key, len(found), txn.count,
            ):  # fmt: skip
                found.append(_content(header, entry.record, offset=entry.offset))
        return found

    def _fetch_doubt(self, txn: Transaction, count: int) -> list[Content]:
        start = txn.extra().doubt_offset
        found: list[Content] = []
        for entry in self.doubt:
            if start <= entry.offset < start + count and entry.record.value() is not None:
                held = _from_doubt(entry.record)
                origin = codec.decode_origin(
                    dict(entry.record.headers())[codec.ORIGIN_HEADER] or b""
                )
                header = _header(held)
                assert header is not None
                assert isinstance(origin, tuple)
                found.append(_content(header, held, offset=origin[1]))
        return found

    # --- restart ------------------------------------------------------------------------------------------------------

    def rebuild(
        self, *, targets: Mapping[str, Target], refusals: Mapping[str, ParkReason]
    ) -> Ledger:
        """A ledger at the stored positions, as recovery builds it."""
        ledger = Ledger(PARTITION, settings=self.settings, targets=targets, refusals=refusals)
        p = self.stored
        fold, end = self._read_doubt()
        ledger.start_replay(p, fold, doubt_next=end)
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
    value, headers = codec.encode_content(
        key=record.key(), value=record.value(), headers=record.headers()
    )
    if all(name != codec.ORIGIN_HEADER for name, _ in headers):
        origin = codec.encode_origin(
            partition=PARTITION, offset=content.offset, index=content.index, count=txn.count,
            born_ms=int(content.born),
        )  # fmt: skip
        headers.append((codec.ORIGIN_HEADER, origin.encode()))
    return FakeRecord(value=value, headers=headers)


def _from_doubt(record: FakeRecord) -> FakeRecord:
    key, value, headers = codec.decode_content(value=record.value(), headers=record.headers())
    return FakeRecord(key=key, value=value, headers=headers)


def _header(record: FakeRecord) -> HalfHeader | None:
    raw = codec.half_header_of(record.headers())
    header = None if raw is None else codec.decode_half_header(raw)
    return header if isinstance(header, HalfHeader) else None


def _content(header: HalfHeader, record: FakeRecord, *, offset: int) -> Content:
    return Content(header.index, header.topic, offset, header.options, str(header.born_ms), record)
