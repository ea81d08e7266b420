"""Records of half, op, doubt and the real topics → traces on a shelf; what is none of ours is passed over and counted."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from typing import Any

from txlayer.adapters.append_time import append_time_of
from txlayer.adapters.ports import Record, TopicPartition
from txlayer.adapters.trace_shelf import ASIDE, CONTENT, DOUBT, FORWARD, HALF, OP, TraceShelf
from txlayer.config import SystemTopics
from txlayer.core import codec
from txlayer.core.dead_letters import DLQ_HEADER, REPLAY_HEADER
from txlayer.core.fields import WHOLE_LENGTH_MAX
from txlayer.core.judging import ABANDON, COMMIT, CUT, ROLLBACK, UNBOUND
from txlayer.core.messages import (
    Headers,
    OrderMode,
    Resolution,
    Undecodable,
    nonce_of,
    txn_id_of,
    user_headers,
)
from txlayer.core.partitions import half_partition, murmur2, partition_of_key_hash

EDGE_COUNT = 20_000
"""A second copy of a half record lies at most so far behind the first (docs/explanation/protocol.md, "Stored offsets")."""


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
        self.is_past = False
        """Whether half goes on behind what was read of it."""
        self.stable_ends: Mapping[TopicPartition, int] = {}
        """Of the real topics: behind it nobody sees yet what becomes of a record."""
        self.op_firsts: dict[TopicPartition, int] = {}
        """{op partition: the append time of the first record that was read}."""
        self.real_first_ms: dict[TopicPartition, int] = {}
        """{partition of a real topic: the earliest append time there, where the broker keeps append times}."""
        self._edge: set[str] = (
            set()
        )  # transactions whose first half record may lie before the window
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
        if record.offset() < self.half_starts.get(partition, 0) + EDGE_COUNT:
            self._edge.add(head.key)
        key = record.key()
        content = content_of(head.topic, head.index, key, record.value(), headers)
        self._shelf.keep(
            txn_id, HALF,
            (
                nonce_of(head.key), partition, record.offset(), head.index, head.count, head.topic, content,
                record.timestamp()[1], options.key_hash or "", options.order is OrderMode.PREPARE,
                options.immunity_ms or 0, head.producer_group, head.born_ms,
                _or_unbound(options.timestamp_ms), _or_unbound(options.partition),
                _or_unbound(options.key_murmur) if key is None else murmur2(key),
            ),
        )  # fmt: skip

    def op(self, record: Record) -> None:
        """A record of the op topic."""
        partition, offset, at_ms = record.partition(), record.offset(), record.timestamp()[1]
        self.op_firsts.setdefault((record.topic(), partition), at_ms)
        lines = codec.split_ops(record.value())
        if isinstance(lines, Undecodable):
            self.strange_count += 1
            return
        first, end = self.half_starts.get(partition, 0), self.half_ends.get(partition, 1 << 62)
        for number, line in enumerate(lines):
            # A line counts only where it names a half record: most lines of a long op log name one outside the window.
            fields = line.split("|", 5)
            if len(fields) > 5 and _is_offset(fields[4]) and not first <= int(fields[4]) < end:
                # At the window's edge a second copy may be in it whose first one, which the line names, is not.
                is_at_edge = int(fields[4]) < first and fields[2] in self._edge
                if not is_at_edge:
                    continue
            op = codec.decode_op(line)
            if isinstance(op, Undecodable):
                self.strange_count += 1
            elif op.resolution is not Resolution.UNKNOWN:
                said = COMMIT if op.resolution is Resolution.COMMIT else ROLLBACK
                trace = (
                    nonce_of(op.key), partition, offset, number, at_ms,
                    ABANDON if op.is_abandon else said, op.last_offset, op.producer_group,
                )  # fmt: skip
                self._shelf.keep(txn_id_of(op.key), OP, trace)

    def doubt(self, record: Record) -> None:
        """A record of the doubt topic."""
        parsed = codec.parse_doubt_key(record.key())
        if parsed is None:
            self._aside(record)
            return
        key, index = parsed
        txn_id, nonce, offset = txn_id_of(key), nonce_of(key), record.offset()
        value = record.value()
        if index is not None:
            content = None if value is None else self._content_on_doubt(record, index)
            self._shelf.keep(txn_id, CONTENT, (nonce, record.partition(), offset, index, content))
            return
        summary = None if value is None else codec.decode_summary(key, value)
        if isinstance(summary, Undecodable):
            self.strange_count += 1
            return
        trace: tuple[Any, ...] = (nonce, record.partition(), offset, record.timestamp()[1])
        if summary is None:
            trace += ("", -1, -1, "", 0, 0, 0)
        else:
            copies = ",".join(map(str, summary.twin_offsets))
            trace += (
                summary.state, summary.first_offset, summary.last_offset, copies, summary.seen, summary.count,
                summary.appended_ms,
            )  # fmt: skip
        self._shelf.keep(txn_id, DOUBT, trace)

    def _aside(self, record: Record) -> None:
        """What a coordinator kept aside is no part of the transaction that it names; of most nobody knows one."""
        kept = codec.parse_kept_aside_key(record.key())
        if kept is None or record.value() is None:
            return
        origin, line = kept
        txn_key = None
        if line is None and origin.topic == self._topics.half:
            head = codec.decode_half_header(codec.half_header_of(record.headers()) or b"")
            txn_key = None if isinstance(head, Undecodable) else head.key
        elif line is not None:
            op = codec.decode_op((record.value() or b"").decode("ascii", "replace"))
            txn_key = None if isinstance(op, Undecodable) else op.key
        if txn_key is not None:
            trace = (origin.partition, origin.offset, -1 if line is None else line)
            self._shelf.keep(txn_id_of(txn_key), ASIDE, trace)

    def begin_slice(self) -> None:
        """Forget which committed records were seen: another slice of offsets begins."""
        self._seen.clear()

    def committed(self, record: Record) -> None:
        """A record of a real topic that every reader sees."""
        self._seen[record.topic(), record.partition()].add(record.offset())
        self._forward(record, is_committed=True)

    def uncommitted(self, record: Record) -> None:
        """A record of a real topic; those that were seen committed are passed over."""
        place = (record.topic(), record.partition())
        appended_ms = append_time_of(record)
        if appended_ms is not None:
            self.real_first_ms[place] = min(self.real_first_ms.get(place, appended_ms), appended_ms)
        if record.offset() not in self._seen[place]:
            self._forward(record, is_committed=False)

    def _forward(self, record: Record, *, is_committed: bool) -> None:
        headers = record.headers()
        ids, origins = [], []
        for name, value in headers or ():
            if name == codec.ID_HEADER:
                ids.append(value)
            elif name == codec.ORIGIN_HEADER:
                origins.append(value)
            elif name in (REPLAY_HEADER, DLQ_HEADER):
                return  # a dead letter, or one published again because somebody asked for it
        if not ids and not origins:
            return  # somebody else's
        origin = codec.decode_origin(origins[0] or b"") if len(origins) == 1 else None
        if len(ids) != 1 or ids[0] is None or origin is None or isinstance(origin, Undecodable):
            origin = (
                -1,
                -1,
                0,
                0,
                0,
            )  # whoever writes our headers in another form writes a phantom
        partition, offset, index, count, born_ms = origin
        if index >= count:
            partition = offset = -1
        at_ms, is_append_time = record.timestamp()[1], append_time_of(record) is not None
        if self.is_past and offset >= self.half_ends.get(partition, 1 << 62):
            return  # of a transaction behind the window
        is_older = 0 <= offset < self.half_starts.get(partition, 0)
        if is_older and at_ms < self.since_ms:
            return  # stored and visible before the window
        topic, number, key = record.topic(), record.partition(), record.key()
        content = content_of(topic, index, key, record.value(), headers)
        is_hidden = not is_committed and record.offset() >= self.stable_ends.get(
            (topic, number), 1 << 62
        )
        trace = (
            topic, number, record.offset(), partition, offset, count, content, is_committed, is_hidden,
            index, born_ms, at_ms, is_append_time, None if key is None else hash(key),
        )  # fmt: skip
        self._shelf.keep((ids[0] or b"").decode("utf-8", "replace") if ids else "", FORWARD, trace)

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


def _or_unbound(number: int | None) -> int:
    return UNBOUND if number is None else number


def _is_offset(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= WHOLE_LENGTH_MAX
