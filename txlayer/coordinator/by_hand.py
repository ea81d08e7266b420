"""An operator's words on their way: look what stands, write op lines, wait for the coordinators, tell what became of them.

Nothing here decides: an operator's line is one among others, and the coordinator takes the first in the op log.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from txlayer.adapters.ports import (
    CoordinatorConnections,
    HalfWriter,
    ProducerConnections,
    TopicPartition,
)
from txlayer.adapters.ranges import Range, read_ranges
from txlayer.config import CoordinatorConfig
from txlayer.coordinator.acts import Act, Outcome, Result, Said, became
from txlayer.coordinator.overview import Overview, Standing
from txlayer.coordinator.recovery import STABLE_PATIENCE_S
from txlayer.coordinator.stored import decode_stored
from txlayer.core import codec
from txlayer.core.messages import OpMessage, Undecodable
from txlayer.core.transaction import OpPosition
from txlayer.errors import OutcomeUnknownError, TopicMismatchError

LINE_COUNT_MAX = 500
"""Lines of one op record: with the longest reasons it stays far below every topic's largest message."""

RECORD_BYTES_MAX = 128 * 1024
"""Bytes of one op record; where the topic takes less, a quarter of what it takes."""

LOOK_AGAIN_S = 0.1
"""Between two questions how far the coordinators are."""

_WRITE_S = 120.0
"""Longer than any record waits for its acknowledgement before the client gives it up."""
_ROUND_S = 0.1


@dataclass(frozen=True, slots=True)
class Picture:
    """What stood, and the places up to which the logs were read for it."""

    found: list[Standing]
    op_ends: Mapping[int, int]
    doubt_ends: Mapping[int, int]


class Line(NamedTuple):
    """An op line to write for a transaction that stands."""

    found: Standing
    op: OpMessage


class Written(NamedTuple):
    """An acknowledged op line."""

    found: Standing
    position: OpPosition


@dataclass(slots=True)
class _Since:
    """What the logs say of the transactions since a picture was made."""

    said: dict[str, list[Said]] = field(default_factory=dict)
    left_doubt_ms: dict[str, int | None] = field(default_factory=dict)


class ByHand:
    """One namespace. One thread uses it; nobody is fenced and no group is joined."""

    def __init__(
        self,
        config: CoordinatorConfig,
        connections: CoordinatorConnections,
        producers: ProducerConnections,
        *,
        clock: Callable[[], float] = time.monotonic,
        pause: Callable[[float], None] = time.sleep,
    ) -> None:
        self._config = config
        self._connections = connections
        self._producers = producers
        self._clock = clock
        self._pause = pause

    def look(self, is_wanted: Callable[[Standing], bool]) -> Picture:
        """What stands now and is wanted, in no promised order; everything in the op log so far is in it.

        Raises: as `Overview.standing`.
        """
        overview = Overview(self._config, self._connections)
        topic = self._config.topics.doubt
        # Before the picture: what is ended on doubt later is told by `outcomes`.
        ends = self._connections.end_offsets([(topic, p) for p in range(self._partition_count())])
        found = [each for each in overview.standing() if is_wanted(each)]
        return Picture(found, overview.op_ends, {p: end for (_, p), end in ends.items()})

    def write(
        self, lines: Sequence[Line], *, on_progress: Callable[[int], None] = lambda _count: None
    ) -> list[Written]:
        """Write the lines, those of one partition packed into records; returns when all are acknowledged.

        `on_progress` is told how many are.

        Raises:
            OutcomeUnknownError, NotAuthorisedError, RetriableError: not all are stored, those acknowledged before stay;
                the same lines may be written again.
        """
        topic = self._config.topics.op
        limits = self._producers.topic_limits(topic)
        if limits is None:
            raise TopicMismatchError("no such topic; `txlayer topics apply` creates it", topic=topic, found="none")  # fmt: skip
        bytes_max = limits.message_bytes_max or RECORD_BYTES_MAX
        writer = self._producers.make_half_writer(batch_bytes_max=bytes_max)
        writing = _Writing(writer, topic, on_progress)
        try:
            for record in _packed(lines, bytes_max=min(RECORD_BYTES_MAX, bytes_max // 4)):
                writing.add(record)
            writing.finish(self._clock)
        finally:
            writer.close(0)
        return writing.written

    def wait(
        self,
        written: Iterable[Written],
        *,
        patience_s: float,
        on_progress: Callable[[int], None] = lambda _count: None,
    ) -> set[int]:
        """The partitions whose coordinators have gone past the lines, and stored it.

        Returns when all have, or when for `patience_s` none of the others moved. `on_progress` is told how many have.
        """
        wanted: dict[int, OpPosition] = {}
        for each in written:
            p = each.found.partition
            wanted[p] = max(each.position, wanted.get(p, each.position))
        missing = dict(wanted)
        before: dict[int, OpPosition] = {}
        give_up_at = self._clock() + patience_s
        while missing:
            reached = self._op_positions(missing)
            missing = {p: own for p, own in missing.items() if reached[p] <= own}
            on_progress(len(wanted) - len(missing))
            if any(reached[p] != before.get(p) for p in missing):
                give_up_at = self._clock() + patience_s if before else give_up_at
                before = reached
            if missing and self._clock() >= give_up_at:
                break
            if missing:
                self._pause(LOOK_AGAIN_S)
        return wanted.keys() - missing.keys()

    def outcomes(
        self, act: Act, written: Sequence[Written], picture: Picture, *, reached: Collection[int]
    ) -> list[Outcome]:
        """What became of each; of those in partitions that nobody `reached`, that they are written."""
        told = [w for w in written if w.found.partition in reached]
        keys = {w.found.txn.key for w in told}
        now: dict[str, Standing] = {}
        since = _Since()
        if told:
            overview = Overview(self._config, self._connections)
            now = {s.txn.key: s for s in overview.standing() if s.txn.key in keys}
            since = self._since(picture, keys, {w.found.partition for w in told})
        return [
            self._outcome(act, w, now.get(w.found.txn.key), since)
            if w.found.txn.key in keys
            else Outcome(
                w.found.txn.key, w.found.txn.group, w.found.partition, w.found.state, Result.WRITTEN,
                w.found.state, written_at=w.position,
            )
            for w in written
        ]  # fmt: skip

    def said_at(self, partition: int, position: OpPosition) -> Said | None:
        """The op line that stands there; None when it is not there any more."""
        found: list[Said] = []

        def take(record: Any) -> None:
            found.extend(s for s in _lines_of(record) if s.position == position)

        place = (self._config.topics.op, partition)
        if self._connections.start_offsets([place])[place] <= position[0]:
            self._read({place: (position[0], position[0] + 1)}, take)
        return found[0] if found else None

    def _outcome(self, act: Act, w: Written, now: Standing | None, since: _Since) -> Outcome:
        txn = w.found.txn
        result, state, decision = became(
            act, w.found, w.position, said=since.said.get(txn.key, ()), now=now,
            left_doubt_ms=since.left_doubt_ms.get(txn.key),
        )  # fmt: skip
        more = None if now is None else now.txn.more
        return Outcome(
            txn.key,
            txn.group,
            w.found.partition,
            w.found.state,
            result,
            state,
            reason="" if more is None or more.reason is None else more.reason.value,
            written_at=w.position,
            decision=decision,
            decided_ms=None if decision is None else decision.appended_ms,
            checked_count=0 if more is None else more.checked_count,
        )

    def _since(
        self, picture: Picture, keys: Collection[str], partitions: Collection[int]
    ) -> _Since:
        topics = self._config.topics
        starts = {(topics.op, p): picture.op_ends[p] for p in partitions}
        starts |= {(topics.doubt, p): picture.doubt_ends[p] for p in partitions}
        ends = self._connections.end_offsets(list(starts))
        since = _Since()

        def take(record: Any) -> None:
            if record.topic() == topics.doubt:
                parsed = codec.parse_doubt_key(record.key())
                if parsed is not None and parsed[1] is None and parsed[0] in keys:
                    is_ended = record.value() is None
                    since.left_doubt_ms[parsed[0]] = record.timestamp()[1] if is_ended else None
                return
            for said in _lines_of(record):
                if said.op.key in keys:
                    since.said.setdefault(said.op.key, []).append(said)

        self._read({place: (start, ends[place]) for place, start in starts.items()}, take)
        return since

    def _read(self, ranges: Mapping[TopicPartition, Range], take: Callable[[Any], None]) -> None:
        with closing(self._connections.make_reader("read_committed")) as reader:
            read_ranges(
                reader, ranges, take, is_still_ours=lambda: None, patience_s=STABLE_PATIENCE_S
            )

    def _op_positions(self, partitions: Iterable[int]) -> dict[int, OpPosition]:
        topics = self._config.topics
        answer = self._connections.stored_offsets(
            topics.coordinator_group,
            [(topic, p) for p in partitions for topic in (topics.half, topics.op)],
            is_stable=False,
        )
        stored = {
            p: decode_stored(answer[topics.half, p], answer[topics.op, p], partition=p).positions
            for p in partitions
        }
        return {p: (s.op_offset, s.op_line) for p, s in stored.items()}

    def _partition_count(self) -> int:
        limits = self._connections.topic_limits(self._config.topics.doubt)
        return 0 if limits is None else limits.partition_count


class _Writing:
    """Op records on their way through one writer."""

    def __init__(self, writer: HalfWriter, topic: str, on_progress: Callable[[int], None]) -> None:
        self._writer = writer
        self._topic = topic
        self._on_progress = on_progress
        self._errors: list[Any] = []
        self._unsent_count = 0
        self._placeless_count = 0
        self.written: list[Written] = []

    def add(self, lines: Sequence[Line]) -> None:
        value = codec.encode_ops([codec.encode_op(line.op) for line in lines])
        partition = lines[0].found.partition

        def reported(error: Any, record: Any) -> None:
            self._unsent_count -= 1
            if error is not None:
                self._errors.append(error)
                return
            offset = record.offset()
            if offset is None:
                self._placeless_count += len(lines)
                return
            self.written += [Written(line.found, (offset, n)) for n, line in enumerate(lines)]

        self._unsent_count += 1
        while True:
            try:
                self._writer.produce(self._topic, value, None, partition, reported, None, 0, None)
            except BufferError:
                self._serve()
            else:
                break
        self._serve(0)

    def finish(self, clock: Callable[[], float]) -> None:
        give_up_at = clock() + _WRITE_S
        while self._unsent_count and clock() < give_up_at:
            self._serve()
        if self._errors or self._unsent_count:
            failed = self._writer.failure()
            if failed is not None:
                raise failed
            if not self._errors:
                raise OutcomeUnknownError(f"{self._unsent_count} op records were not acknowledged", step="op")  # fmt: skip
            error = self._writer.error_of(self._errors[0], topic=self._topic, txn_id="")
            raise error
        if self._placeless_count:
            raise OutcomeUnknownError(
                f"{self._placeless_count} lines are stored, and nobody told where: look with `txlayer tx show`", step="op"
            )  # fmt: skip

    def _serve(self, timeout_s: float = _ROUND_S) -> None:
        if self._writer.poll(timeout_s):
            self._on_progress(len(self.written))


def _packed(lines: Sequence[Line], *, bytes_max: int) -> Iterable[list[Line]]:
    """The lines of one partition together, in their order, as many as a record takes."""
    ready: dict[int, list[Line]] = {}
    sizes: dict[int, int] = {}
    for line in lines:
        p = line.found.partition
        size = len(codec.encode_op(line.op)) + 1
        record = ready.get(p, [])
        if record and (len(record) >= LINE_COUNT_MAX or sizes[p] + size > bytes_max):
            yield record
            record, sizes[p] = [], 0
        record.append(line)
        ready[p] = record
        sizes[p] = sizes.get(p, 0) + size
    yield from (record for record in ready.values() if record)


def _lines_of(record: Any) -> Iterable[Said]:
    lines = codec.split_ops(record.value())
    if isinstance(lines, Undecodable):
        return
    for number, line in enumerate(lines):
        op = codec.decode_op(line)
        if not isinstance(op, Undecodable):
            yield Said((record.offset(), number), record.timestamp()[1], op)
