"""One Kafka transaction: produce, flush, timed send_offsets and commit; replace a producer that may have stale requests.

Two writers take turns. A Kafka transaction begins only after the one before it was answered with success; while the
broker still writes the markers of the last, the other writer's is under way. The ledgers choose the content.

When a writer is replaced: txlayer/runtime/kafka_transactions.py.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import Any, NamedTuple

from txlayer.adapters.errors import is_unknown
from txlayer.adapters.ports import DeliveryReport, StoredOffset, TopicPartition, TransactionalWriter
from txlayer.adapters.telemetry import Log
from txlayer.config import CoordinatorConfig, SystemTopics
from txlayer.coordinator.contents import is_cut
from txlayer.coordinator.metrics import CoordinatorSpans, PublishStats
from txlayer.coordinator.targets import BATCH_OVERHEAD_BYTES, Targets
from txlayer.core import codec
from txlayer.core.ledger.batch import NO_LIMIT, Batch, LinesOfRecord, RecordToQuarantine
from txlayer.core.ledger.transaction import (
    FORWARD_OVERHEAD_BYTES,
    Content,
    Transaction,
    contents_of,
    due_contents,
    held_bytes,
)
from txlayer.core.messages import HEADERS_READ_MAX, NONCE_LENGTH, txn_id_of, user_headers
from txlayer.core.partitions import target_partition
from txlayer.errors import (
    BrokerUnavailableError,
    FencedError,
    ForbiddenTopicError,
    MemberFencedError,
    RefusedRecordError,
    RetriableError,
    TxLayerError,
)
from txlayer.runtime.environment import REAL, Environment, Running
from txlayer.runtime.kafka_transactions import (
    ANY_PARTITION,
    CLIENT_CLOCK,
    close_in_background,
    close_quietly,
    commit,
    error_replaces_producer,
    may_have_stale_requests,
    produce,
    raise_if_unacknowledged,
)

logger = Log("txlayer.coordinator")


SLOW_BYTES_MIN = 1 << 20  # a smaller transaction is not to blame when a Kafka transaction takes too long
LINES_OF_RECORD_MAX = 100
"""The coordinator's own op lines in one record, if it is not known how large a one op takes."""
TOO_SLOW = "too-slow"
"""Reason of a refusal: the first records of a transaction were acknowledged, and the time-out was over before all were."""


class Precautions(NamedTuple):
    """What earlier failures require of a Kafka transaction (coordinator/refusals.py)."""

    is_careful: bool = False
    """Each transaction, record of doubt and question is acknowledged before the next, so that a refusal names it."""
    is_watched: bool = False  # the topics that leave records without an answer are known afterwards: `unanswered`
    cut_keys: Collection[bytes] = ()  # keys of doubt records of which only origin, reason and size are kept
    question_bytes_max: int = NO_LIMIT
    """A larger question or notice loses, until it fits: what it carries of its transaction, the names of its topics, its trace. One that
    still does not fit is not sent."""
    sure_question_bytes_max: int = NO_LIMIT
    """A larger one is acknowledged before anything else is written, so that a refusal names it."""
    are_lines_sure: bool = False
    """The coordinator's own op lines are acknowledged before anything else is written, so that a refusal names op."""
    stamps_ms: Mapping[int, int] = MappingProxyType({})
    """The time of each partition, where this machine's clock is not trusted: no record for the partition has a later timestamp."""


NO_PRECAUTIONS = Precautions()


class _Filled(NamedTuple):
    """A Kafka transaction before its commit, and what took how long."""

    records: _Records
    written: float
    started: float  # to send offsets
    sent: float
    offsets_s: float  # how long the longest request for offsets took


class Publisher:
    """The two writers of one assignment. One thread uses it."""

    def __init__(
        self,
        config: CoordinatorConfig,
        *,
        name: str,
        make_writer: Callable[..., TransactionalWriter],
        targets: Targets,
        environment: Environment = REAL,
        stats: PublishStats | None = None,
        doubt_bytes_max: int | None = None,
        op_bytes_max: int | None = None,
        observer: CoordinatorSpans | None = None,
    ) -> None:
        self.name = name
        self._observer = observer
        self._doubt_bytes_max, self._op_bytes_max = doubt_bytes_max, op_bytes_max
        self._clock = environment.clock
        self._wall_clock = environment.wall_clock
        self._background = environment.background
        self._targets = targets
        self.stats = stats or PublishStats()
        self._config = config
        self._make_writer = make_writer
        self._timeout_s = config.kafka_transaction_timeout.total_seconds()
        self._recycle_after_s = config.recycle_after.total_seconds()
        self._writers: list[TransactionalWriter] = []
        self._used_at = [0.0, 0.0]  # when each was last made, or its Kafka transaction ended
        self._turn = 0
        self._records: _Records | None = None  # of the last Kafka transaction
        self._successors: list[Running[TransactionalWriter] | None] = [None, None]

    def start(self) -> None:
        """Make and initialise both writers; TxLayerError: the broker refused; nothing was written."""
        for letter in "ab":
            writer = self._new_writer(f"{self.name}.{letter}")
            self._writers.append(writer)
            writer.initialise(timeout_s=self._timeout_s)
        self._used_at = [self._clock()] * 2

    def publish(
        self,
        batches: Sequence[tuple[int, Batch]],
        offsets: Mapping[TopicPartition, StoredOffset],
        member: Any,
        precautions: Precautions = NO_PRECAUTIONS,
    ) -> dict[int, dict[str, int]]:
        """Append the batches and the offsets as one Kafka transaction.

        Returns, per partition, {transaction: offset of the first record on doubt that was written of it}, where contents were.

        Raises:
            TxLayerError: it is not known whether it happened. Neither writer may go on: `abandon` and rebuild from the
                stored offsets, which show it.
        """
        writer = self._next_writer()
        idle_s = self._clock() - self._used_at[self._turn]
        try:
            filled = self._fill(writer, batches, offsets, member, precautions)
        except FencedError as exc:
            # Its commit was not asked for yet: nothing of it counts.
            if not error_replaces_producer(exc, idle_s=idle_s, timeout_s=self._timeout_s):
                raise
            # It was fenced while it was idle: no sign of a second owner, which the group would know.
            writer = self._replace(self._turn, self._successor_of(writer))
            filled = self._fill(writer, batches, offsets, member, precautions, is_member_asked_first=True)
        records, written, started, sent, offsets_s = filled
        self._commit(writer)
        ended = self._used_at[self._turn] = self._clock()
        if self.may_have_stale_requests(offsets_s=offsets_s, commit_s=ended - sent):
            self._replace_in_background(self._turn)
        self.stats.took(records.began, written, started, sent, ended)
        forwarded_count = sum(len(batch.forwards) for _, batch in batches)
        self.stats.forwarded_count += forwarded_count
        self.stats.forwarded_record_count += forwarded_count + records.further_count
        self._turn = 1 - self._turn
        if self._observer is not None:
            self._observer.published(batches)
        return records.doubt_offsets

    def _commit(self, writer: TransactionalWriter) -> None:
        commit(writer, timeout_s=self._timeout_s, clock=self._clock)

    def _fill(
        self,
        writer: TransactionalWriter,
        batches: Sequence[tuple[int, Batch]],
        offsets: Mapping[TopicPartition, StoredOffset],
        member: Any,
        precautions: Precautions,
        *,
        is_member_asked_first: bool = False,
    ) -> _Filled:
        """A Kafka transaction up to its commit; with `is_member_asked_first` the group may refuse before anything is written."""
        records = self._records = self._records_of(writer, precautions)
        if self._observer is not None:
            self._observer.begun()
        writer.begin()
        if is_member_asked_first:
            writer.send_offsets(offsets, member, timeout_s=self._timeout_s)
        asked_s = self._clock() - records.began
        try:
            for partition, batch in batches:
                records.write(partition, batch)
        except TxLayerError:
            raise
        except Exception as exc:
            raise writer.failure(exc) from exc
        written = self._clock()
        records.flush()
        if any(None in of_partition.values() for of_partition in records.doubt_offsets.values()):
            # It is stored, and its Kafka transaction would commit. But its ledger must know the offset.
            raise RetriableError("the broker did not say at which doubt offset a transaction is stored")
        started = self._clock()
        writer.send_offsets(offsets, member, timeout_s=self._timeout_s)
        sent = self._clock()
        return _Filled(records, written, started, sent, max(asked_s, sent - started))

    def _records_of(self, writer: TransactionalWriter, precautions: Precautions) -> _Records:
        return _Records(
            writer,
            self._config.topics,
            self._targets,
            precautions,
            doubt_bytes_max=self._doubt_bytes_max,
            op_bytes_max=self._op_bytes_max,
            observer=self._observer,
            timeout_s=self._timeout_s,
            clock=self._clock,
            wall_clock=self._wall_clock,
        )

    @property
    def record_of_lines(self) -> LinesOfRecord:
        return _lines_of_record(self._op_bytes_max)

    @property
    def unanswered(self) -> set[str]:
        """Topics that left records of the last Kafka transaction without an answer, if it was watched."""
        return {topic for topic, count in self._unacknowledged.items() if count > 0}

    @property
    def watched(self) -> Collection[str]:
        """Topics of the last Kafka transaction, if it was watched."""
        return self._unacknowledged.keys()

    @property
    def _unacknowledged(self) -> Mapping[str, int]:
        return {} if self._records is None else self._records.unacknowledged

    def _replace(self, turn: int, successor: TransactionalWriter) -> TransactionalWriter:
        self._writers[turn] = successor
        self.stats.replaced_count += 1
        logger.info("producer.replaced", extra={"transactional_id": successor.transactional_id})
        return successor

    def may_have_stale_requests(self, *, offsets_s: float, commit_s: float) -> bool:
        """True when the producer must be replaced before it begins again."""
        return may_have_stale_requests(offsets_s=offsets_s, commit_s=commit_s, recycle_after_s=self._recycle_after_s)

    def abandon(self) -> None:
        """Give both writers up; what they left open is ended by the next one to initialise their ids."""
        # A close after a fatal error may hang (librdkafka #4674): it must not hang the coordinator.
        self._background.start(self.close, name="txlayer-close")

    def close(self) -> None:
        for turn, successor in enumerate(self._successors):
            if successor is not None and successor.exception() is None:
                self._writers[turn] = successor.result()
        for writer in self._writers:
            close_quietly(writer)

    def _new_writer(self, transactional_id: str) -> TransactionalWriter:
        return self._make_writer(transactional_id, batch_bytes_max=self._targets.batch_bytes_max)

    def _replace_in_background(self, turn: int) -> None:
        """Make the successor of a writer that may have stale requests while the other one works (it takes 3 to 550 ms)."""
        self._successors[turn] = self._background.start(
            partial(self._successor_of, self._writers[turn]), name="txlayer-successor"
        )

    def _successor_of(self, old: TransactionalWriter) -> TransactionalWriter:
        successor = self._new_writer(old.transactional_id)
        successor.initialise(timeout_s=self._timeout_s)  # from now on every stale request of the old one is fenced
        close_in_background(old, self._background)
        return successor

    def _next_writer(self) -> TransactionalWriter:
        turn = self._turn
        if self._writers[turn].batch_bytes_max != self._targets.batch_bytes_max and self._successors[turn] is None:
            self._replace_in_background(turn)
        successor, self._successors[turn] = self._successors[turn], None
        return self._writers[turn] if successor is None else self._replace(turn, successor.result())


class _Records:
    """The records of one Kafka transaction: forwarded messages, doubt, questions, and what is resolved by policy.

    Attributes:
        began: when it was made, of the monotonic clock.
        doubt_offsets: per partition, {transaction: offset of the first record on doubt that was written of it}, where contents were.
        further_count: messages beyond the first of each transaction.
        unacknowledged: number of records without an acknowledgement so far, by topic, if it is watched.
    """

    def __init__(
        self,
        writer: TransactionalWriter,
        topics: SystemTopics,
        targets: Targets,
        precautions: Precautions,
        *,
        doubt_bytes_max: int | None,
        op_bytes_max: int | None,
        observer: CoordinatorSpans | None,
        timeout_s: float,
        clock: Callable[[], float],
        wall_clock: Callable[[], float],
    ) -> None:
        self._writer = writer
        self._topics = topics
        self._targets = targets
        self._precautions = precautions
        self._is_careful = precautions.is_careful
        self._is_watched = precautions.is_watched or precautions.is_careful
        self._doubt_bytes_max = doubt_bytes_max  # None: not known; the broker refuses what is more
        self._op_bytes_max = op_bytes_max  # the same
        self._observer = observer
        self._timeout_s = timeout_s
        self._clock = clock
        self._wall_clock = wall_clock
        self._partition = -1  # the one in turn
        self._stamp_ms = CLIENT_CLOCK  # of that partition
        self.began = clock()
        self.doubt_offsets: dict[int, dict[str, int]] = {}
        self.further_count = 0
        self.unacknowledged: Counter[str] = Counter()

    def write(self, partition: int, batch: Batch) -> None:
        self._partition = partition
        self._stamp_ms = self._precautions.stamps_ms.get(partition, CLIENT_CLOCK)
        if self._is_careful:
            self._forward_carefully(batch.forwards)
        else:
            self._forward_all(batch.forwards)
        self._write_doubt(batch, self.doubt_offsets.setdefault(partition, {}))
        self._write_questions_and_policy_lines(batch)

    def flush(self) -> None:
        """Wait until all are acknowledged; TxLayerError: one was refused, or not acknowledged in time."""
        raise_if_unacknowledged(self._writer.flush(timeout_s=self._timeout_s), waited_s=self._timeout_s)

    def _answered(self, error: Any, record: Any) -> None:
        if error is None:
            self.unacknowledged[record.topic()] -= 1

    def _write_doubt(self, batch: Batch, doubt_offsets: dict[str, int]) -> None:
        for keep in batch.to_doubt.values():
            contents = contents_of(keep.txn) if keep.is_whole else keep.txn.joined
            on_report = partial(_note_offset, doubt_offsets, keep.txn.key) if contents or keep.is_whole else None
            size = keep.txn.size if keep.is_whole else sum(held_bytes(content.record) for content in contents)
            if contents and self._may_be_too_slow(size):
                self._put_content(keep.txn, contents[0], None, is_origin_alone=True)
            for content in contents:
                try:
                    self._put_content(keep.txn, content, on_report)
                except (BrokerUnavailableError, FencedError) as exc:
                    self._raise_if_too_slow(exc, size, txn_key=keep.txn.key)
                    raise
                on_report = None  # only the first record says where it begins
            if keep.has_summary:
                key, summary = keep.txn.key.encode("ascii"), keep.txn.summary()
                value = codec.encode_summary(summary)
                if self._is_cut(key, value, ()):  # the contents tell the topics as well
                    value = codec.encode_summary(summary._replace(topics=()))
                self._put_doubt(key, value, on_report=on_report)
        for txn in batch.ends:
            for index in range(txn.seen):
                self._put_doubt(codec.content_key(txn.key, index), None)
            self._put_doubt(
                txn.key.encode("ascii"),
                None,
                codec.abandoned_headers(0 if txn.due is None else txn.due.sent_to) if txn.is_abandoned else None,
            )
        for quarantined in batch.quarantined:
            self._put_quarantined(quarantined)

    def _write_questions_and_policy_lines(self, batch: Batch) -> None:
        """Questions and notices to producer groups, and what the coordinator resolves by policy."""
        topic, observer, bytes_max = self._topics.check, self._observer, self._precautions.question_bytes_max
        sure_bytes_max = self._precautions.sure_question_bytes_max
        answered = self._answered if self._is_watched or sure_bytes_max < NO_LIMIT else None
        for name, check in batch.checks.items():
            line, short = codec.encode_check(check), codec.encode_check(check._replace(text=""))
            if len(short) > bytes_max:
                continue  # the question cannot be asked: the transaction grows old as one without an answer
            headers: list[tuple[str, Any]] | None = None
            if observer is not None:
                keep = batch.to_doubt.get(check.key)
                headers = observer.asked(self._partition, check, None if keep is None else keep.txn)
            if details := batch.details.get(name):
                whole = [*details, *(headers or ())]
                headers = whole if _size(line, whole) <= bytes_max else headers
            if _size(line, headers or ()) > bytes_max:
                line = short
            if _size(line, headers or ()) > bytes_max:
                headers = None  # the question matters more than its trace
            key, size_bytes = codec.check_key(check), _size(line, headers or ())
            self.unacknowledged[topic] += answered is not None
            if self._is_careful or size_bytes > sure_bytes_max:
                self._put_carefully(topic, line, key, ANY_PARTITION, headers, answered, size_bytes=size_bytes)
                sure_bytes_max = max(sure_bytes_max, size_bytes)
            else:
                produce(self._writer, topic, line, key, report=answered, stamp_ms=self._stamp_ms, headers=headers)
        self._write_policy_lines(list(batch.policy_lines.values()))

    def _write_policy_lines(self, lines: list[str]) -> None:
        """What the coordinator decides or releases itself."""
        topic = self._topics.op
        answered = self._answered if self._is_watched or self._precautions.are_lines_sure else None
        for value in map(codec.encode_ops, self._lines_by_record(lines)):
            self.unacknowledged[topic] += answered is not None
            if self._is_careful or self._precautions.are_lines_sure:
                self._put_carefully(topic, value, None, self._partition, on_report=answered)
            else:
                produce(self._writer, topic, value, None, self._partition, report=answered)

    def _lines_by_record(self, lines: list[str]) -> Iterator[list[str]]:
        """Fill each record with as many lines as op takes, at least one: all lines of a record have one append time."""
        bytes_max, count_max = _lines_of_record(self._op_bytes_max)
        packed: list[str] = []
        size = 0
        for line in lines:
            size += len(line) + 1
            if packed and (len(packed) >= count_max or size > bytes_max):
                yield packed
                packed, size = [], len(line) + 1
            packed.append(line)
        if packed:
            yield packed

    def _forward_all(self, transactions: Sequence[Transaction]) -> None:
        send, origin = self._writer.produce, f"{self._partition}:"
        id_header, origin_header, end = codec.ID_HEADER, codec.ORIGIN_HEADER, -1 - NONCE_LENGTH
        allowed, is_watched, stamp_ms = None, self._is_watched, self._stamp_ms
        answered = self._answered if is_watched else None
        for txn in transactions:
            record = txn.content
            if type(record) is list or is_watched:
                contents = due_contents(txn)
                self.further_count += len(contents) - 1
                for content in contents:
                    self._forward(txn, content, answered)
                continue
            if txn.topic is not allowed:
                self._targets.check_allowed(txn.topic, txn_key=txn.key)
                allowed = txn.topic
            headers: list[tuple[str, Any]] = [
                (id_header, txn.key[:end]),
                (origin_header, f"{origin}{txn.last_offset}|0/1|{txn.born}"),
            ]
            half_headers = record.headers()
            if len(half_headers) > 1:  # with one there is none of the user's: it is our own
                headers[:0] = user_headers(half_headers)
            try:
                send(txn.topic, record.value(), record.key(), -1, None, None, stamp_ms, headers)
            except BufferError:
                value, key = record.value(), record.key()
                produce(self._writer, txn.topic, value, key, stamp_ms=stamp_ms, headers=headers)

    def _forward_carefully(self, transactions: Sequence[Transaction]) -> None:
        """One transaction at a time, so that a refusal names the one that it is about."""
        for txn in transactions:
            report, topics = _FirstError(self._answered), set[str]()
            contents = due_contents(txn)
            self.further_count += len(contents) - 1
            for content in contents:
                is_first = content.topic not in topics
                if is_first and topics:
                    self._raise_refusal(report, txn)
                topics.add(content.topic)
                try:
                    self._forward(txn, content, report)
                except Exception as exc:
                    raise _named(self._writer.failure(exc), txn, content.topic) from exc
                if is_first:  # a topic that may not be written ruins the records of all others as well
                    self._raise_refusal(report, txn, content.topic)
            self._raise_refusal(report, txn)

    def _raise_refusal(self, report: _FirstError, txn: Transaction, topic: str = "") -> None:
        """Wait for what is written. Without `topic`, the first record for each topic is acknowledged already."""
        try:
            waiting = self._writer.flush(timeout_s=self._timeout_s)
            if report.error is not None:
                raise _refusal(self._writer, report, topic=topic or report.topic, txn_key=txn.key)
            raise_if_unacknowledged(waiting, waited_s=self._timeout_s)
        except (BrokerUnavailableError, FencedError) as exc:
            if not topic:
                self._raise_if_too_slow(exc, txn.size, txn_key=txn.key)
            raise

    def _may_be_too_slow(self, size_bytes: int) -> bool:
        """True if a small record of the same key must go first: a time-out of the large one alone does not say whether doubt accepts."""
        return self._is_careful and size_bytes >= SLOW_BYTES_MIN

    def _raise_if_too_slow(self, error: TxLayerError, size_bytes: int, **named: Any) -> None:
        """Refuse what takes longer than a Kafka transaction may. Its topics accept: they acknowledged a part of it."""
        took_s = self._clock() - self.began
        is_its_fault = self._may_be_too_slow(size_bytes) and not isinstance(error, MemberFencedError)
        if is_its_fault and took_s >= self._timeout_s / 2:
            detail = f"{size_bytes} bytes take longer than a Kafka transaction may ({took_s:.0f} s): {error}"
            raise RefusedRecordError(detail, reason=TOO_SLOW, **named) from error

    def _forward(self, txn: Transaction, content: Content, report: DeliveryReport | None = None) -> None:
        record, options = content.record, content.options
        self._targets.check_allowed(content.topic, txn_key=txn.key)
        if report is not None:
            self.unacknowledged[content.topic] += 1
        headers = [
            *user_headers(record.headers()),
            *([(codec.GROUP_HEADER, txn.group)] if options.is_group_named else ()),
            (codec.ID_HEADER, txn_id_of(txn.key)),
            (codec.ORIGIN_HEADER, _origin_of(self._partition, txn, content)),
        ]
        stamp_ms = self._stamp_ms
        if options.timestamp_ms:  # 0 is the time of forwarding
            # A time in the future would be refused by the topic (log.message.timestamp.after.max.ms). What was there when half
            # was appended is none, whatever this machine's clock says.
            now_ms = max(int(self._wall_clock() * 1000), txn.appended_ms)
            stamp_ms = min(options.timestamp_ms, stamp_ms or now_ms)
        partition = target_partition(options, content.topic, self._targets.partition_count_of)
        value, key = record.value(), record.key()
        produce(self._writer, content.topic, value, key, partition, report=report, stamp_ms=stamp_ms, headers=headers)

    def _put_content(
        self, txn: Transaction, content: Content, on_report: DeliveryReport | None, *, is_origin_alone: bool = False
    ) -> None:
        record = content.record
        value, headers = codec.encode_content(
            key=record.key(),
            value=record.value(),
            headers=record.headers(),
            origin=_origin_of(self._partition, txn, content),
        )
        key = codec.content_key(txn.key, content.index)
        if is_cut(record):
            value, headers = b"", list(record.headers())  # as it stood on doubt before
        elif is_origin_alone or self._is_cut(key, value, headers):
            value, headers = codec.cut_content(value=value, headers=headers)
        self._put_doubt(key, value, headers, on_report=on_report)

    def _put_quarantined(self, quarantined: RecordToQuarantine) -> None:
        number, why = None if quarantined.line is None else quarantined.number, quarantined.why
        key = codec.quarantine_key(quarantined.origin, number)
        if quarantined.line is not None:
            value: bytes = quarantined.line.encode()
            headers: list[tuple[str, bytes | None]] = []
        else:
            value, headers = codec.encode_content(
                key=quarantined.record.key(), value=quarantined.record.value(), headers=quarantined.record.headers()
            )
        size = _size(value, headers)
        why_alone: list[tuple[str, bytes | None]] = [
            (codec.WHY_HEADER, codec.encode_why(codec.cut_why(why, size=size)))
        ]
        if self._is_cut(key, value, headers):
            self._put_doubt(key, b"", why_alone)
            return
        if self._may_be_too_slow(size):
            self._put_doubt(key, b"", why_alone)
        try:
            self._put_doubt(key, value, [*headers, (codec.WHY_HEADER, codec.encode_why(why))])
        except (BrokerUnavailableError, FencedError) as exc:
            self._raise_if_too_slow(exc, size, doubt_key=key)
            raise

    def _is_cut(self, key: bytes, value: bytes, headers: Sequence[tuple[str, bytes | None]]) -> bool:
        """True when doubt refused this record before or takes none of its size, or when no client could read it there."""
        limit = self._doubt_bytes_max
        return (
            key in self._precautions.cut_keys
            or len(headers) >= HEADERS_READ_MAX  # one more says why a record was quarantined
            or (limit is not None and len(key) + _size(value, headers) + FORWARD_OVERHEAD_BYTES > limit)
        )

    def _put_doubt(
        self,
        key: bytes,
        value: bytes | None,
        headers: list[tuple[str, bytes | None]] | None = None,
        *,
        on_report: DeliveryReport | None = None,
    ) -> None:
        topic, partition = self._topics.doubt, self._partition
        if self._is_careful:
            self._put_carefully(topic, value, key, partition, headers, on_report, doubt_key=key)
        else:
            produce(self._writer, topic, value, key, partition, report=on_report, headers=headers)

    def _put_carefully(
        self,
        topic: str,
        value: bytes | None,
        key: bytes | None,
        partition: int,
        headers: list[tuple[str, bytes | None]] | None = None,
        on_report: DeliveryReport | None = None,
        **named: Any,
    ) -> None:
        """Produce and wait; when the broker refuses the record, the error has the fields `named`."""
        report, writer = _FirstError(on_report), self._writer
        try:
            produce(writer, topic, value, key, partition, report=report, stamp_ms=self._stamp_ms, headers=headers)
            self.flush()
            error = report.error and _refusal(writer, report, topic=topic, txn_key="")
        except TxLayerError as exc:
            error = exc
        except Exception as exc:  # noqa: BLE001 - `failure` raises what is none of the client's
            error = self._writer.failure(exc)
        if isinstance(error, RefusedRecordError):
            error = RefusedRecordError(error.detail, reason=error.reason, topic=topic, **named)
        if error is not None:
            raise error


def _note_offset(doubt_offsets: dict[str, int], key: str, error: Any, record: Any) -> None:
    """Learn where a transaction begins on doubt.

    Not from where it ends: a marker of the other writer may land between its batches, and takes an offset.
    """
    if error is None:
        doubt_offsets[key] = record.offset()  # None: stored, at an unknown offset


def _lines_of_record(op_bytes_max: int | None) -> LinesOfRecord:
    if op_bytes_max is None:
        return LinesOfRecord(NO_LIMIT, LINES_OF_RECORD_MAX)
    return LinesOfRecord(op_bytes_max - BATCH_OVERHEAD_BYTES, NO_LIMIT)


class _FirstError:
    """Remembers the first record that was refused; hands every report on to `on_report`."""

    __slots__ = ("_on_report", "error", "topic")

    def __init__(self, on_report: DeliveryReport | None = None) -> None:
        self.error: Any = None
        self.topic = ""
        self._on_report = on_report

    def __call__(self, error: Any, record: Any) -> None:
        if self._on_report is not None:
            self._on_report(error, record)
        if error is not None and self.error is None:
            self.error, self.topic = error, record.topic()


def _refusal(writer: TransactionalWriter, report: _FirstError, *, topic: str, txn_key: str) -> Exception:
    """What the report of a careful try says; an unknown code is about the record, and may pass."""
    error = writer.refusal(report.error, topic=topic, txn_key=txn_key)
    if type(error) is TxLayerError and is_unknown(report.error.code()):
        reason = report.error.name()
        return RefusedRecordError(error.detail, topic=topic, reason=reason, txn_key=txn_key)
    return error


def _named(error: TxLayerError, txn: Transaction, topic: str) -> TxLayerError:
    """The refusal of a careful try, with what it is about."""
    if isinstance(error, RefusedRecordError):
        return RefusedRecordError(error.detail, topic=topic, reason=error.reason, txn_key=txn.key)
    if isinstance(error, ForbiddenTopicError):
        return ForbiddenTopicError(error.detail, topic=topic, reason=error.reason)
    return error


def _size(value: bytes, headers: Sequence[tuple[str, bytes | None]]) -> int:
    """Bytes of a record of ours, less its key; a header costs some for its lengths."""
    return len(value) + sum(len(name) + len(head or b"") + 10 for name, head in headers)


def _origin_of(partition: int, txn: Transaction, content: Content) -> str:
    return codec.encode_origin(
        partition=partition, offset=content.offset, index=content.index, count=txn.count, born_ms=content.born
    )
