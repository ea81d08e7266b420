"""One partition of the log as tests see it: half, op, doubt, stored positions and what is visible. It survives a crash.

It plays Kafka and nothing else: the coordinator's own `Publisher` writes each Kafka transaction, its `Contents`
fetches contents, its `Recovery.replay` builds a ledger again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, cast

from tests.support.core_records import PARTITION, PARTITION_COUNT, plain_record
from txlayer.adapters.connect import CoordinatorConnections
from txlayer.adapters.errors import Code
from txlayer.adapters.memory.log import MemoryRecord
from txlayer.adapters.memory.world import ClientError
from txlayer.adapters.ports import StoredOffset, TopicPartition
from txlayer.config import CoordinatorConfig
from txlayer.coordinator.contents import Contents
from txlayer.coordinator.publish import Publisher
from txlayer.coordinator.recovery import Recovery, StoredPositions, decode_stored, encode_stored
from txlayer.coordinator.refusals import Refusals
from txlayer.coordinator.targets import Targets
from txlayer.core import codec
from txlayer.core.checks import CheckPolicies, CheckPolicy
from txlayer.core.ledger.batch import Batch, Positions
from txlayer.core.ledger.doubt import DoubtFold
from txlayer.core.ledger.ledger import Ledger, LedgerSettings
from txlayer.core.ledger.transaction import FORWARD_OVERHEAD_BYTES, Target, Transaction, record_size
from txlayer.core.messages import CheckRecord, Headers, Origin, ParkReason
from txlayer.errors import RefusedRecordError
from txlayer.runtime.environment import Environment

CONFIG = CoordinatorConfig()
TOPICS = CONFIG.topics

SETTINGS = LedgerSettings(
    half_topic="txlayer.half",
    op_topic="txlayer.op",
    partition_count=PARTITION_COUNT,
    doubt_after_ms=60_000,
    held_age_max_ms=7 * 24 * 3_600_000,
    transaction_messages_max=5,
    checks=CheckPolicies(CheckPolicy(check_max=2, transaction_age_max_ms=12 * 24 * 3_600_000)),
)


class Entry(NamedTuple):
    """A record where it stands."""

    offset: int
    appended_ms: int
    record: MemoryRecord


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
    """Half, op, doubt, the stored positions, and every Kafka transaction of the coordinator.

    `limit_of` is the broker's word on the largest record of a real topic.
    """

    def __init__(
        self,
        *,
        settings: LedgerSettings = SETTINGS,
        targets: dict[str, Target] | None = None,
        limit_of: Callable[[str], int] = lambda _topic: 1 << 30,
    ) -> None:
        self.settings = settings
        self.half: list[Entry] = []
        self.op: list[Entry] = []
        self.doubt: list[Entry] = []
        self.appended: list[Appended] = []
        self.stored = Positions(0, 0, 0, 0, 0, 0, 0)
        self.now_ms = 0
        self._op_end = 0
        self._doubt_end = 0
        self._limit_of = limit_of
        self.connections = cast("CoordinatorConnections", _Connections(self))
        self._environment = Environment(clock=lambda: 0.0, wall_clock=lambda: self.now_ms / 1000)
        self.book = Targets(CONFIG, self.connections, clock=lambda: 0.0)
        if targets is not None:
            self.book.targets = targets
        self.refusals = Refusals(TOPICS, clock=lambda: 0.0)
        """What the coordinator remembers of records that the broker refused."""
        self._publisher = self._new_publisher()
        self.check_bytes_max = 1 << 30
        self.questions: list[CheckRecord] = []

    # --- writing ------------------------------------------------------------------------------------------------------

    def add_half(self, record: MemoryRecord, *, appended_ms: int) -> int:
        """A half record; its offset."""
        self.now_ms = max(self.now_ms, appended_ms)
        self.half.append(Entry(len(self.half), appended_ms, record))
        return len(self.half) - 1

    def add_op(self, value: bytes | None, *, appended_ms: int, gap: int = 0) -> int:
        """An op record, `gap` offsets behind the last (transaction markers take offsets too); its offset."""
        self.now_ms = max(self.now_ms, appended_ms)
        offset = self._op_end + gap
        self.op.append(Entry(offset, appended_ms, plain_record(value=value)))
        self._op_end = offset + 1
        return offset

    def append(self, batch: Batch, positions: Positions, *, now_ms: int) -> dict[str, int]:
        """One Kafka transaction: all of the batch, and the positions. Where the kept ones begin on doubt.

        Raises:
            RefusedRecordError: the broker refuses a record, which the error names. Nothing was appended.
        """
        self.now_ms = now_ms
        name = self._publisher.name
        offsets = encode_stored(positions, writer=name, topics=TOPICS, partition=PARTITION)
        try:
            kept = self._publish(batch, offsets)
        except RefusedRecordError:
            # The service halves the batch until one is left, and looks for the culprit then.
            self._publisher = self._new_publisher()
            kept = self._publish(batch, offsets, is_careful=True)
        return kept.get(PARTITION, {})

    def _publish(
        self, batch: Batch, offsets: dict[TopicPartition, StoredOffset], *, is_careful: bool = False
    ) -> dict[int, dict[str, int]]:
        return self._publisher.publish(
            [(PARTITION, batch)],
            offsets,
            None,
            self.refusals.precautions([PARTITION], is_watched=False, times={})._replace(is_careful=is_careful),
        )

    def _new_publisher(self) -> Publisher:
        publisher = Publisher(
            CONFIG,
            name="writer",
            make_writer=self.connections.make_writer,
            targets=self.book,
            environment=self._environment,
        )
        publisher.start()
        return publisher

    def is_refused(self, written: MemoryRecord) -> bool:
        """True when the broker finds a record too large: one in form costs as much beside the user's own as is allowed for."""
        if TOPICS.is_system(written.topic()):
            is_question = written.topic() == TOPICS.check
            return is_question and len(written) > self.check_bytes_max
        record = self._half_of(written)
        return record_size(record) + FORWARD_OVERHEAD_BYTES > self._limit_of(written.topic())

    def next_offset(self, topic: str) -> int:
        """Where the next record of a topic will stand."""
        return {TOPICS.op: self._op_end, TOPICS.doubt: self._doubt_end}.get(topic, 0)

    def committed(self, records: Sequence[MemoryRecord], offsets: Mapping[TopicPartition, StoredOffset]) -> None:
        """The broker's part of a Kafka transaction that ended."""
        messages = []
        for written in records:
            entry = Entry(written.offset(), self.now_ms, written)
            if written.topic() == TOPICS.doubt:
                self.doubt.append(entry)
                self._doubt_end = entry.offset + 1
            elif written.topic() == TOPICS.op:
                self.op.append(entry)
                self._op_end = entry.offset + 1
            elif written.topic() == TOPICS.check:
                check = codec.decode_check(written.value() or b"")
                assert isinstance(check, CheckRecord)
                self.questions.append(check)
            else:
                messages.append(self._visible(written))
        self._doubt_end += 1  # the marker
        half, op = (offsets[topic, PARTITION] for topic in (TOPICS.half, TOPICS.op))
        self.stored = decode_stored(half, op, partition=PARTITION).positions
        self.appended.append(Appended(messages, self.stored))

    def _visible(self, written: MemoryRecord) -> Visible:
        headers = dict(written.headers() or ())
        half_offset = half_offset_of(written)
        raw = codec.half_header_of(self._half_of(written).headers())
        key, _, topic, part = (raw or b"").decode().split("|")[1:5]
        index, _, count = part.partition("/")
        assert ((headers[codec.ID_HEADER] or b"").decode(), topic) == (key[:-9], written.topic())
        return Visible(key, int(index), int(count), topic, half_offset, written.key(), written.value())

    def _half_of(self, written: MemoryRecord) -> MemoryRecord:
        """The half record of a forwarded message; retention may have taken earlier ones."""
        return self.half[half_offset_of(written) - self.half[0].offset].record

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

    @property
    def kept_aside(self) -> list[Origin]:
        """Where the records and lines on doubt stood that are none of ours, in the order in which they were kept."""
        parsed = (codec.parse_quarantine_key(entry.record.key()) for entry in self.doubt)
        return [found[0] for found in parsed if found is not None]

    def on_doubt(self) -> dict[str, Transaction]:
        """What a reader of doubt finds, from the stored low-water mark on."""
        fold = DoubtFold(op_offset=self.stored.replay_offset)
        for entry in self.doubt:
            if entry.offset >= self.stored.doubt_low:
                fold.fold(entry.offset, entry.record.key(), entry.record.value(), entry.record.headers)
        return fold.all_unsettled()

    def contents_on_doubt(self, key: str) -> dict[int, MemoryRecord]:
        """The half records of a transaction as doubt holds them, by index."""
        found: dict[int, MemoryRecord] = {}
        for entry in self.doubt:
            parsed = codec.parse_doubt_key(entry.record.key())
            if parsed is not None and parsed[0] == key and parsed[1] is not None:
                if entry.record.value() is None:
                    found.pop(parsed[1], None)
                else:
                    found[parsed[1]] = _from_doubt(entry.record)
        return found

    def fill(self, ledger: Ledger) -> None:
        """Fetch the content that the batch needs and that is not in memory."""
        Contents(CONFIG, self.connections).fill([(PARTITION, ledger.batch)], {PARTITION: ledger})

    # --- restart ------------------------------------------------------------------------------------------------------

    def rebuild(self, *, targets: Mapping[str, Target], refusals: Mapping[str, ParkReason]) -> Ledger:
        """A ledger at the stored positions, as recovery builds it."""
        self._publisher = self._new_publisher()
        ledger = Ledger(PARTITION, settings=self.settings, targets=targets, refusals=refusals)
        recovery = Recovery(CONFIG, self.connections, is_still_ours=lambda: None, environment=self._environment)
        recovery.replay({PARTITION: ledger}, {PARTITION: StoredPositions(self.stored, "writer")})
        ledger.end_replay(self.stored)
        return ledger

    def entries(self, topic: str) -> tuple[Sequence[Entry], int]:
        """What stands in a topic, and where it ends."""
        return {
            TOPICS.half: (self.half, len(self.half)),
            TOPICS.op: (self.op, self._op_end),
            TOPICS.doubt: (self.doubt, self._doubt_end),
        }[topic]


def fold_half(ledger: Ledger, entry: Entry) -> None:
    """Give a half record to the ledger as the service does."""
    header = codec.half_header_of(entry.record.headers())
    ledger.fold_half(entry.offset, entry.appended_ms, header, entry.record)


def _from_doubt(record: MemoryRecord) -> MemoryRecord:
    key, value, headers = codec.decode_content(value=record.value(), headers=record.headers())
    return plain_record(key=key, value=value, headers=headers)


def half_offset_of(written: MemoryRecord) -> int:
    """Where the half record of a forwarded message stands."""
    origin = dict(written.headers() or ())[codec.ORIGIN_HEADER] or b""
    return int(origin.decode().partition("|")[0].partition(":")[2])


class _Writer:
    """A `TransactionalWriter` whose Kafka transactions end in the log."""

    def __init__(self, log: PartitionLog, transactional_id: str, batch_bytes_max: int) -> None:
        self.transactional_id, self.batch_bytes_max = transactional_id, batch_bytes_max
        self._log = log
        self._records: list[MemoryRecord] = []
        self._counts: Counter[str] = Counter()
        self._reports: list[tuple[Any, MemoryRecord]] = []
        self._offsets: Mapping[TopicPartition, StoredOffset] = {}
        self._refused = ""

    def initialise(self, *, timeout_s: float) -> None:
        """Nobody held the id before."""

    def begin(self) -> None:
        self._records, self._counts, self._reports, self._refused = [], Counter(), [], ""

    def produce(
        self,
        topic: str,
        value: bytes | None = None,
        key: bytes | None = None,
        partition: int = -1,
        callback: Any = None,
        on_delivery: Any = None,
        timestamp: int = 0,
        headers: Headers | None = None,
    ) -> None:
        assert partition in (-1, PARTITION) or not TOPICS.is_system(topic)
        del timestamp
        # The client takes text as well, and writes it in UTF-8.
        sent: list[tuple[str, Any]] = list(headers or ())
        encoded = [(name, head.encode() if isinstance(head, str) else head) for name, head in sent]
        place = self._log.next_offset(topic) + self._counts[topic]
        self._counts[topic] += 1
        record = plain_record(key=key, value=value, headers=encoded, topic=topic, offset=place)
        self._records.append(record)
        self._reports.append((callback or on_delivery, record))

    def flush(self, *, timeout_s: float) -> int:
        del timeout_s
        for report, record in self._reports:
            is_refused = self._log.is_refused(record)
            if is_refused:
                self._refused = record.topic()
            if report is not None:
                report("too large" if is_refused else None, record)
        self._reports.clear()
        return 0

    def poll(self) -> None:
        """There is always room."""

    def failure(self, exc: Exception) -> Exception:
        raise exc

    def refusal(self, error: Any, *, topic: str, txn_key: str) -> RefusedRecordError:
        return RefusedRecordError(str(error), reason="MSG_SIZE_TOO_LARGE", topic=topic, txn_key=txn_key or None)

    def send_offsets(self, offsets: Mapping[TopicPartition, StoredOffset], member: Any, *, timeout_s: float) -> None:
        del member, timeout_s
        self._offsets = offsets

    def commit(self, *, timeout_s: float) -> None:
        del timeout_s
        if self._refused:
            raise RefusedRecordError("too large", topic=self._refused)
        self._log.committed(self._records, self._offsets)

    def close(self) -> None:
        """Nothing is open."""


class _Connections:
    """As much of a coordinator's connections as these parts of it need."""

    def __init__(self, log: PartitionLog) -> None:
        self._log = log

    def make_writer(self, transactional_id: str, *, batch_bytes_max: int) -> _Writer:
        return _Writer(self._log, transactional_id, batch_bytes_max)

    def make_reader(self, isolation: str, *, is_sparing: bool = False) -> _Reader:
        del is_sparing
        assert "read_committed" == isolation
        return _Reader(self._log)

    def start_offsets(self, places: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
        return dict.fromkeys(places, 0)

    def end_offsets(self, places: Sequence[TopicPartition], *, is_committed: bool = True) -> dict[TopicPartition, int]:
        del is_committed
        return {place: self._log.entries(place[0])[1] for place in places}


class _Reader:
    """A `LogReader` over the entries of half, op and doubt."""

    def __init__(self, log: PartitionLog) -> None:
        self._log = log
        self._positions: dict[TopicPartition, int] = {}

    def assign(self, positions: Mapping[TopicPartition, int]) -> None:
        self._positions = dict(positions)

    def read(self, *, record_count_max: int, timeout_s: float) -> Sequence[Any]:  # noqa: ARG002 - the port's
        """Everything from the positions on, and where it ends."""
        assert self._positions, "all was given, and something is still waited for"
        found: list[Any] = []
        for place, start in self._positions.items():
            entries, end = self._log.entries(place[0])
            found += [_placed(place[0], e) for e in entries if e.offset >= start]
            found.append(
                MemoryRecord(*place, None, None, None, log_offset=end, error=ClientError(Code.LOCAL_PARTITION_EOF))
            )
        self._positions = {}
        return found

    def pause(self, partition: TopicPartition) -> None:
        """Everything was given at once."""

    def watermarks(self, partition: TopicPartition, *, timeout_s: float = 0) -> tuple[int, int]:
        del timeout_s
        entries, end = self._log.entries(partition[0])
        return (entries[0].offset if entries else end), end

    def close(self) -> None:
        """Nothing is open."""


def _placed(topic: str, entry: Entry) -> MemoryRecord:
    record = entry.record
    return plain_record(
        key=record.key(),
        value=record.value(),
        headers=record.headers(),
        topic=topic,
        offset=entry.offset,
        appended_ms=entry.appended_ms,
    )
