"""Reads a window of a namespace's topics, with plain clients, into a shelf of traces. Never: what they mean (`core/judging.py`).

The order in which the ends of the topics are taken carries the proof: first those of half up to which transactions are
judged, then those of the real topics, then doubt and op, and half again. So whatever was visible has its half records and
its decision in what was read, and only what is young can be missing on a real topic.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from contextlib import closing
from typing import NamedTuple

from txlayer.adapters.administration import Administration
from txlayer.adapters.ports import LogReader, Record, TopicPartition
from txlayer.adapters.ranges import Range, read_ranges
from txlayer.adapters.trace_records import TraceRecords
from txlayer.adapters.trace_shelf import TraceShelf
from txlayer.config import ClientConfig
from txlayer.core.doctor_rights import CLOCK_ERROR_MS
from txlayer.core.judging import FOREVER, Window
from txlayer.errors import NotAuthorisedError, TopicMismatchError

MARGIN_MS = 10 * 60 * 1000
"""Clocks of brokers and coordinators may differ by this, and a producer may take so long to prepare."""
COMPACTION_LAG = "min.compaction.lag.ms"
"""For so long compaction leaves what doubt said."""
PATIENCE_S = 30.0
"""No record and no end of a partition for so long: the broker does not answer any more."""
SLICE_COUNT = 200_000
"""Offsets of real topics that are read committed and uncommitted before the two are compared: bounds memory."""
_TELL_COUNT = 5_000

COMMITTED, UNCOMMITTED = "read_committed", "read_uncommitted"

Ranges = dict[TopicPartition, Range]


class HeldBack(NamedTuple):
    """A partition on which an open Kafka transaction holds `read_committed` readers back."""

    topic: str
    partition: int
    stable: int
    end: int


class Asked(NamedTuple):
    """Which window."""

    since_ms: int
    until_ms: int | None = None
    topics: tuple[str, ...] = ()
    """Real topics; empty: those that the half messages name."""
    grace_ms: int = 60_000
    overdue_ms: int = 900_000
    clock_error_ms: int = CLOCK_ERROR_MS
    """By how much the clocks of two brokers may differ."""


class Reading(NamedTuple):
    """What was read."""

    window: Window
    topics: tuple[str, ...]
    record_counts: dict[str, int]
    held_back: tuple[HeldBack, ...]
    strange_count: int
    """Half and op records that are none of ours; coordinators keep them aside."""


class WindowReader:
    """Reads one window; for one thread, and to be used once."""

    def __init__(
        self,
        config: ClientConfig,
        *,
        make_admin: Callable[[], Administration],
        make_reader: Callable[[str], LogReader],
        on_progress: Callable[[int, int], None] = lambda _done, _total: None,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        """`make_reader` is told the isolation level; `on_progress` how many offsets of how many are read."""
        self._config = config
        self._make_admin = make_admin
        self._make_reader = make_reader
        self._on_progress = on_progress
        self._wall_clock = wall_clock
        self._held_back: list[HeldBack] = []
        self._counts: Counter[str] = Counter()
        self._done = self._total = 0

    def read(self, asked: Asked, shelf: TraceShelf) -> Reading:
        """Keep everything of the window on the shelf.

        Raises:
            TopicMismatchError: the namespace's topics, or one that was asked for, do not exist.
            BrokerUnavailableError, NotAuthorisedError: they cannot be read; the shelf holds a part.
        """
        with closing(self._make_admin()) as admin:
            count = self._partition_count(admin, self._config.topics.half)
            traces = TraceRecords(shelf, self._config.topics, partition_count=count)
            halves = [(self._config.topics.half, p) for p in range(count)]
            starts = admin.offsets_at(halves, at_ms=max(asked.since_ms, 0))
            ends = self._judged_ends(admin, halves, asked)
            ends = {p: max(end, starts[p]) for p, end in ends.items()}
            traces.half_starts = {p: start for (_, p), start in starts.items()}
            self._read("half", {p: (starts[p], ends[p]) for p in halves}, traces.half)
            wanted = asked.topics or tuple(sorted(traces.named_topics))
            reals, missing = self._partitions(admin, wanted, is_asked=bool(asked.topics))
            cut_ms = int(self._wall_clock() * 1000)
            # From here on the order of the lines is the argument (see above).
            real_ranges = self._real_ranges(admin, reals, asked.since_ms, traces.earliest_ms)
            others = self._doubt_and_op(admin, count, asked.since_ms)
            firsts = admin.start_offsets(
                [*real_ranges[0], *(p for p in others if p[0] == self._config.topics.op)]
            )
            compacted = {topic for topic in wanted if self._is_compacted(admin, topic)}
            doubt_lag_ms = int(self._setting(admin, self._config.topics.doubt, COMPACTION_LAG) or 0)
            tails = self._tails(admin, halves, ends, asked)
        self._read("half", tails, traces.half)
        topics = self._config.topics
        traces.half_ends = {p: end for (_, p), (_, end) in tails.items()}
        traces.since_ms, traces.is_past = asked.since_ms, asked.until_ms is not None
        traces.stable_ends = {p: end for p, (_, end) in real_ranges[0].items()}
        self._read("op", {p: r for p, r in others.items() if p[0] == topics.op}, traces.op)
        self._read("doubt", {p: r for p, r in others.items() if p[0] == topics.doubt}, traces.doubt)
        self._read_real(*real_ranges, traces)
        held_back = self._still_held_back()
        window = Window(
            half_topic=topics.half,
            starts=traces.half_starts,
            ends={p: offset for (_, p), offset in ends.items()},
            cut_ms=cut_ms, grace_ms=asked.grace_ms, overdue_ms=asked.overdue_ms,
            clock_error_ms=asked.clock_error_ms,
            doubt_from_ms=cut_ms - doubt_lag_ms,
            unread_topics=frozenset((traces.named_topics - set(wanted)) | missing | compacted),
            op_from_ms={
                p: from_ms
                for (topic, p), from_ms in _shortened(others, firsts, asked.since_ms, traces.op_firsts).items()
                if topic == topics.op
            },
            real_from_ms=_shortened(real_ranges[1], firsts, asked.since_ms, traces.real_first_ms),
            partition_counts=Counter(topic for topic, _ in reals),
        )  # fmt: skip
        return Reading(window, tuple(wanted), dict(self._counts), held_back, traces.strange_count)

    # --- where to begin and to end ------------------------------------------------------------------------------------

    def _partition_count(self, admin: Administration, topic: str) -> int:
        count = admin.partition_count(topic)
        if count is None:
            raise TopicMismatchError(
                "no such topic; `txlayer topics apply` creates a namespace's", topic=topic, found="none"
            )  # fmt: skip
        return count

    def _judged_ends(
        self, admin: Administration, halves: Collection[TopicPartition], asked: Asked
    ) -> dict[TopicPartition, int]:
        ends = self._ends(admin, halves)
        if asked.until_ms is None:
            return ends
        until = admin.offsets_at(halves, at_ms=asked.until_ms)
        return {p: min(until[p], end) for p, end in ends.items()}

    def _tails(
        self,
        admin: Administration,
        halves: Collection[TopicPartition],
        ends: Mapping[TopicPartition, int],
        asked: Asked,
    ) -> Ranges:
        """Half records behind the end, so that transactions that begin before it are whole."""
        newest = admin.end_offsets(halves)
        if asked.until_ms is not None:
            until = admin.offsets_at(halves, at_ms=asked.until_ms + MARGIN_MS)
            newest = {p: min(until[p], end) for p, end in newest.items()}
        return {p: (end, max(newest[p], end)) for p, end in ends.items()}

    def _partitions(
        self, admin: Administration, topics: Collection[str], *, is_asked: bool
    ) -> tuple[list[TopicPartition], set[str]]:
        found: list[TopicPartition] = []
        missing = set()
        for topic in topics:
            count = (
                self._partition_count(admin, topic) if is_asked else admin.partition_count(topic)
            )
            if count is None:
                missing.add(topic)
            found += [(topic, p) for p in range(count or 0)]
        return found, missing

    def _real_ranges(
        self,
        admin: Administration,
        reals: Collection[TopicPartition],
        since_ms: int,
        earliest_ms: Mapping[str, int],
    ) -> tuple[Ranges, Ranges]:
        """(committed, uncommitted)."""
        if not reals:
            return {}, {}
        stable = self._ends(admin, reals)
        whole = admin.end_offsets(reals, is_committed=False)
        starts: dict[TopicPartition, int] = {}
        for topic in {topic for topic, _ in reals}:
            # Forwarded records carry the coordinator's clock, or a time that the user chose.
            at_ms = min(since_ms, earliest_ms.get(topic, since_ms)) - MARGIN_MS
            mine = [p for p in reals if p[0] == topic]
            starts.update(admin.offsets_at(mine, at_ms=max(at_ms, 0)))
        return (
            {p: (starts[p], max(stable[p], starts[p])) for p in reals},
            {p: (starts[p], max(whole[p], starts[p])) for p in reals},
        )

    def _doubt_and_op(self, admin: Administration, count: int, since_ms: int) -> Ranges:
        topics = self._config.topics
        doubts = [(topics.doubt, p) for p in range(self._partition_count(admin, topics.doubt))]
        ops = [(topics.op, p) for p in range(count)]
        ends = self._ends(admin, doubts) | self._ends(admin, ops)
        starts = admin.start_offsets(doubts)
        starts |= admin.offsets_at(ops, at_ms=max(since_ms - MARGIN_MS, 0))
        return {p: (starts[p], max(end, starts[p])) for p, end in ends.items()}

    def _is_compacted(self, admin: Administration, topic: str) -> bool:
        return "compact" in self._setting(admin, topic, "cleanup.policy")

    def _setting(self, admin: Administration, topic: str, name: str) -> str:
        """Empty where it may not be read: docs/howto/verify.md says what follows from that."""
        try:
            state = admin.describe_topics([topic]).get(topic)
        except NotAuthorisedError:
            return ""
        return "" if state is None else state.settings.get(name, "")

    def _ends(
        self, admin: Administration, partitions: Collection[TopicPartition]
    ) -> dict[TopicPartition, int]:
        stable = admin.end_offsets(partitions)
        whole = admin.end_offsets(partitions, is_committed=False)
        self._held_back += [
            HeldBack(*p, stable[p], whole[p]) for p in partitions if stable[p] < whole[p]
        ]
        return stable

    def _still_held_back(self) -> tuple[HeldBack, ...]:
        # While coordinators run, some Kafka transaction is nearly always open: only one that stays is told.
        partitions = {(held.topic, held.partition): held for held in self._held_back}
        if not partitions:
            return ()
        with closing(self._make_admin()) as admin:
            stable = admin.end_offsets(partitions)
        return tuple(held for p, held in partitions.items() if stable[p] == held.stable)

    # --- reading ------------------------------------------------------------------------------------------------------

    def _read(self, role: str, ranges: Ranges, on_record: Callable[[Record], None]) -> None:
        self._plan(ranges)
        with closing(self._make_reader(COMMITTED)) as reader:
            self._read_with(reader, role, ranges, on_record)

    def _plan(self, *several: Ranges) -> None:
        self._total += sum(end - start for ranges in several for start, end in ranges.values())

    def _read_with(
        self, reader: LogReader, role: str, ranges: Ranges, on_record: Callable[[Record], None]
    ) -> None:
        done = 0

        def count(record: Record) -> None:
            nonlocal done
            on_record(record)
            done += 1
            if not done % _TELL_COUNT:
                self._on_progress(self._done + done, self._total)

        read_ranges(reader, ranges, count, patience_s=PATIENCE_S)
        # Markers and compacted records have offsets, too.
        self._done += sum(end - start for start, end in ranges.values())
        self._on_progress(self._done, self._total)
        self._counts[role] += done

    def _read_real(self, committed: Ranges, uncommitted: Ranges, traces: TraceRecords) -> None:
        """Twice, slice by slice: what a reader of committed records does not see is told apart by its offset."""
        self._plan(committed, uncommitted)
        if not committed:
            return
        size = max(SLICE_COUNT // len(committed), 1)
        with (
            closing(self._make_reader(COMMITTED)) as stable,
            closing(self._make_reader(UNCOMMITTED)) as whole,
        ):
            behind = 0
            while any(start + behind < end for start, end in uncommitted.values()):
                traces.begin_slice()
                self._read_with(
                    stable, "committed", _slice(committed, behind, size), traces.committed
                )
                self._read_with(
                    whole, "uncommitted", _slice(uncommitted, behind, size), traces.uncommitted
                )
                behind += size


def _shortened(
    ranges: Ranges,
    firsts: Mapping[TopicPartition, int],
    since_ms: int,
    first_ms: Mapping[TopicPartition, int],
) -> dict[TopicPartition, int]:
    """{partition: what came up to this time may be gone, or was not read}, without those that are there from offset 0."""
    found = {}
    for partition, (start, _) in ranges.items():
        if start > firsts.get(partition, start):
            found[partition] = since_ms - MARGIN_MS
        elif start > 0:
            found[partition] = first_ms.get(partition, FOREVER)
    return found


def _slice(ranges: Ranges, behind: int, size: int) -> Ranges:
    return {
        p: (start + behind, min(start + behind + size, end))
        for p, (start, end) in ranges.items()
        if start + behind < end
    }
