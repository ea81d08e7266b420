"""Records of half, op, doubt and the real topics → traces on a shelf; what is none of ours is passed over and counted."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from typing import Any

from txlayer.adapters.ports import Record, TopicPartition
from txlayer.adapters.trace_shelf import CONTENT, DOUBT, FORWARD, HALF, OP, TraceShelf
from txlayer.config import SystemTopics
from txlayer.core import codec
from txlayer.core.dead_letters import REPLAY_HEADER
from txlayer.core.fields import WHOLE_LENGTH_MAX
from txlayer.core.judging import ABANDON, COMMIT, CUT, ROLLBACK
from txlayer.core.messages import (
    Headers,
    OrderMode,
    Resolution,
    Undecodable,
    nonce_of,
    txn_id_of,
    user_headers,
)
from txlayer.core.partitions import half_partition, partition_of_key_hash


class TraceRecords:
    """Knows of a window what telling its records apart takes; for one thread."""

    def __init__(self, shelf: TraceShelf, topics: SystemTopics, *, partition_count: int) -> None:
        self._shelf = shelf
        self._topics = topics
        self._partition_count = partition_count
        self.named_topics: set[str] = set()
        """Real topics that the half messages name."""
        self.earliest_ms: dict[str, int] = {}
        """{real topic: the earliest time that a producer gave to a message of it}."""
        self.strange_count = 0
        self.half_starts: Mapping[int, int] = {}
        self.half_ends: Mapping[int, int] = {}
        """Between them half was read."""
        self.since_ms = 0
        self._seen: defaultdict[TopicPartition, set[int]] = defaultdict(set)

    def half(self, record: Record) -> None:
        """A record of the half topic."""
        headers = record.headers()
        raw = codec.half_header_of(headers)
        head = None if raw is None else codec.decode_half_header(raw)
        partition = record.partition()
        if head is None or isinstance(head, Undecodable):
            self.strange_count += 1
            return
        options, txn_id = head.options, txn_id_of(head.key)
        count = self._partition_count
        home = (
            half_partition(ordering_key=None, txn_id=txn_id, partition_count=count)
            if options.key_hash is None
            else partition_of_key_hash(options.key_hash, partition_count=count)
        )
        if home != partition:
            self.strange_count += 1
            return
        if not self._topics.is_system(head.topic):
            self.named_topics.add(head.topic)
            if options.timestamp_ms is not None:
                known = self.earliest_ms.get(head.topic, options.timestamp_ms)
                self.earliest_ms[head.topic] = min(known, options.timestamp_ms)
        content = content_of(head.topic, head.index, record.key(), record.value(), headers)
        self._shelf.keep(
            txn_id, HALF,
            (
                nonce_of(head.key), partition, record.offset(), head.index, head.count, head.topic, content,
                record.timestamp()[1], options.key_hash or "", options.order is OrderMode.PREPARE,
                options.immunity_ms or 0,
            ),
        )  # fmt: skip

    def op(self, record: Record) -> None:
        """A record of the op topic."""
        lines = codec.split_ops(record.value())
        if isinstance(lines, Undecodable):
            self.strange_count += 1
            return
        partition, offset, at_ms = record.partition(), record.offset(), record.timestamp()[1]
        first, end = self.half_starts.get(partition, 0), self.half_ends.get(partition, 1 << 62)
        for number, line in enumerate(lines):
            # A line counts only where it names a half record: most lines of a long op log name one outside the window.
            fields = line.split("|", 5)
            if len(fields) > 5 and _is_offset(fields[4]) and not first <= int(fields[4]) < end:
                continue
            op = codec.decode_op(line)
            if isinstance(op, Undecodable):
                self.strange_count += 1
            elif op.resolution is not Resolution.UNKNOWN:
                said = COMMIT if op.resolution is Resolution.COMMIT else ROLLBACK
                trace = (
                    nonce_of(op.key), partition, offset, number, at_ms,
                    ABANDON if op.is_abandon else said, op.last_offset,
                )  # fmt: skip
                self._shelf.keep(txn_id_of(op.key), OP, trace)

    def doubt(self, record: Record) -> None:
        """A record of the doubt topic; those that coordinators kept aside are no transactions."""
        parsed = codec.parse_doubt_key(record.key())
        if parsed is None:
            return
        key, index = parsed
        txn_id, nonce, offset = txn_id_of(key), nonce_of(key), record.offset()
        value = record.value()
        if index is not None:
            content = None if value is None else self._content_on_doubt(record, index)
            self._shelf.keep(txn_id, CONTENT, (nonce, offset, index, content))
            return
        summary = None if value is None else codec.decode_summary(key, value)
        if isinstance(summary, Undecodable):
            self.strange_count += 1
            return
        state, first = ("", -1) if summary is None else (summary.state, summary.first_offset)
        trace = (nonce, record.partition(), offset, record.timestamp()[1], state, first)
        self._shelf.keep(txn_id, DOUBT, trace)

    def begin_slice(self) -> None:
        """Forget which committed records were seen: another slice of offsets begins."""
        self._seen.clear()

    def committed(self, record: Record) -> None:
        """A record of a real topic that every reader sees."""
        self._seen[record.topic(), record.partition()].add(record.offset())
        self._forward(record, is_committed=True)

    def uncommitted(self, record: Record) -> None:
        """A record of a real topic; those that were seen committed are passed over."""
        if record.offset() not in self._seen[record.topic(), record.partition()]:
            self._forward(record, is_committed=False)

    def _forward(self, record: Record, *, is_committed: bool) -> None:
        headers = record.headers()
        raw_id, raw_origin = None, None
        for name, value in headers or ():
            if name == codec.ID_HEADER:
                raw_id = value
            elif name == codec.ORIGIN_HEADER:
                raw_origin = value
            elif name == REPLAY_HEADER:
                return  # a dead letter, published again because somebody asked for it
        origin = None if raw_origin is None else codec.decode_origin(raw_origin)
        if raw_id is None or origin is None or isinstance(origin, Undecodable):
            return  # somebody else's
        partition, offset, index, count, _ = origin
        if offset >= self.half_ends.get(partition, 1 << 62):
            return  # of a transaction behind the window
        is_older = offset < self.half_starts.get(partition, 0)
        if is_older and record.timestamp()[1] < self.since_ms:
            return  # stored and visible before the window
        topic = record.topic()
        content = content_of(topic, index, record.key(), record.value(), headers)
        trace = (
            topic, record.partition(), record.offset(), partition, offset, count, content, is_committed,
        )  # fmt: skip
        self._shelf.keep(raw_id.decode("utf-8", "replace"), FORWARD, trace)

    def _content_on_doubt(self, record: Record, index: int) -> int:
        if codec.is_cut(record.headers()):
            return CUT
        key, value, headers = codec.decode_content(value=record.value(), headers=record.headers())
        raw = codec.half_header_of(headers)
        head = None if raw is None else codec.decode_half_header(raw)
        topic = "" if head is None or isinstance(head, Undecodable) else head.topic
        return content_of(topic, index, key, value, headers)


def content_of(
    topic: str, index: int, key: bytes | None, value: bytes | None, headers: Headers | None
) -> int:
    """64 bits that stand for what must be the same in a half message, on doubt, and in what is forwarded of it.

    They are Python's own hash, of which nobody outside can know the seed: they are compared within one process alone.
    """
    ours: Any = tuple(user_headers(headers))
    return hash((topic, index, key, value, ours))


def _is_offset(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= WHOLE_LENGTH_MAX
