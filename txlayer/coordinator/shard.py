"""One assigned partition: its ledger, its stored positions, when it stops reading, and its time by its broker's clock.

The wall clock of the coordinator decides nothing. It is only a bound: an append time far beyond it is one broker's clock
against this machine's, and it takes no effect before that time has come.
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

from txlayer.adapters.connect import CoordinatorConnections
from txlayer.adapters.ports import GroupReader, TopicPartition
from txlayer.adapters.telemetry import Log
from txlayer.config import SystemTopics
from txlayer.core.checks import CLOCK_ERROR_MS
from txlayer.core.ledger.batch import Positions
from txlayer.core.ledger.ledger import Ledger
from txlayer.core.ledger.misplaced_records import LinesAheadOfHalf

WINDOW_S = 30.0
"""The coordinator uses values that it saw at most two windows ago. If this machine's clock runs too fast, the error is what it
gains in a minute, not what it gained since it started."""


def latest_ms(wall_clock: Callable[[], float]) -> int:
    """Append times beyond this one do not count now."""
    return int(wall_clock() * 1000) + CLOCK_ERROR_MS


class LogTime:
    """Milliseconds of the broker's clock, from append times and the monotonic clock; 0 until a record was seen. It never goes back."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._began_at: float | None = None
        # How far append times were ahead of the monotonic clock: the maximum of this window and of the one before. Records of a
        # backlog give too low a value, so the maximum is closest to the truth.
        self._ahead_ms = 0.0
        self._ahead_before_ms = 0.0
        self._last_ms = 0

    def see(self, appended_ms: int) -> None:
        at = self._clock()
        ahead_ms = appended_ms - at * 1000
        if self._began_at is None:
            self._began_at = at
            self._ahead_ms = self._ahead_before_ms = ahead_ms
        elif at - self._began_at >= WINDOW_S:
            self._began_at = at
            self._ahead_before_ms, self._ahead_ms = self._ahead_ms, ahead_ms
        else:
            self._ahead_ms = max(self._ahead_ms, ahead_ms)

    def now_ms(self) -> int:
        self._last_ms = self.peek_ms()
        return self._last_ms

    def peek_ms(self) -> int:
        """The time now, for reading only: it does not change the state, and no decision may depend on it."""
        if self._began_at is None:
            return self._last_ms
        ahead_ms = max(self._ahead_ms, self._ahead_before_ms)
        return max(self._last_ms, int(self._clock() * 1000 + ahead_ms))


class OpEnd(NamedTuple):
    """Where op of a partition ended."""

    offset: int
    now_ms: int  # the partition's time before the question
    wall_ms: int  # this machine's
    asked_at: float


logger = Log("txlayer.coordinator")

PROBE_S = 60.0
"""Interval in which a partition's time is probed while scheduled messages are due by this machine's clock alone."""
PAUSED_TIMES = 1.1  # a paused partition resumes when there would be room for a tenth more
HIDDEN_S = 1.0
"""If reads return other partitions' records for so long, but none of op up to its end, an open Kafka transaction hides them."""


class ReadResult(Enum):
    """How much of what the client had fetched a read returned."""

    EMPTY = "empty"  #: nothing: the client had nothing
    DRAINED = "drained"  #: all: fewer records than the read may return
    FULL = "full"  #: as many records as the read may return; the client may have more


@dataclass(slots=True)
class Shard:
    """One assigned partition."""

    ledger: Ledger
    stored: Positions
    half_end: int  # at assignment: nothing that depends on time happens before both ends are reached
    op_end: int
    time: LogTime  # per partition: a broker with a wrong clock affects no other
    seen_ms: int = field(init=False)  # the newest append time that `time` has seen
    is_op_paused: bool = False
    is_half_paused: bool = False  # too many unsettled transactions
    is_caught_up: bool = False  # both ends have been reached once
    probed_at: float = float("-inf")  # when its time was asked for last, by a line that releases scheduled messages
    op_known_to: int = -1  # the offset behind the newest op record that was read
    op_known_at: float = 0.0  # since when it is the newest one, and every read took all that the client had
    asked_end: OpEnd | None = None  # where op ended when it was asked, if it is not read to there yet
    op_read_wall_ms: int = 0  # op was read to an end that was asked for at this time of this machine's clock
    lines_ahead: LinesAheadOfHalf = field(default_factory=LinesAheadOfHalf)

    def __post_init__(self) -> None:
        """Start with the stored time, unless this process has seen a later one: only newer append times add information."""
        self.seen_ms = self.time.peek_ms()
        self.pass_append_times()

    def pass_append_times(self) -> None:
        """Pass newer append times to the clock."""
        if self.ledger.times.newest_ms > self.seen_ms:
            self.seen_ms = self.ledger.times.newest_ms
            self.time.see(self.seen_ms)

    @property
    def is_busy(self) -> bool:
        """True if there is something left to apply or to append."""
        return self.ledger.has_more or not self.ledger.batch.is_empty

    def pass_markers(self, group: GroupReader, topics: SystemTopics) -> None:
        """Take what no record reports at the ends as read; call it after the records of a read are folded."""
        partition = self.ledger.partition
        self.ledger.pass_markers(
            half_to=group.read_to((topics.half, partition)), op_to=group.read_to((topics.op, partition))
        )

    def is_read_to_the_ends(self, group: GroupReader, topics: SystemTopics) -> bool:
        """True if everything that existed at the assignment is folded.

        A line that waits for half blocks the lines behind it, but not what depends on time: such lines may arrive
        all the time.
        """
        ledger = self.ledger
        # Lines that wait for half are not applied, and a marker behind them is not passed.
        op_read = max(ledger.op_next[0], group.read_to((topics.op, ledger.partition)))
        return not ledger.has_more and self._has_reached_the_ends(op_read)

    def note_op_end(self, group: GroupReader, topics: SystemTopics) -> bool:
        """True if op is now read to the end that was asked for: what was due at the time of the question may be released."""
        ledger, end = self.ledger, self.asked_end
        if end is None:
            return False
        if max(ledger.ops.read_to(ledger.op_next), group.read_to((topics.op, ledger.partition))) < end.offset:
            return False
        ledger.op_read_to_end_ms, self.op_read_wall_ms, self.asked_end = end.now_ms, end.wall_ms, None
        return True

    def needs_op_end(self, now_ms: int, *, wall_ms: int, now: float) -> bool:
        """True if a message is due, and it is not known whether op was read to the end that it had at that time."""
        ledger = self.ledger
        is_probe_due = now - self.probed_at >= PROBE_S and self.op_read_wall_ms < ledger.release_times.first_ms
        return ledger.needs_op_end(now_ms) or (is_probe_due and ledger.may_probe(now_ms=now_ms, wall_ms=wall_ms))

    def _has_reached_the_ends(self, op_offset: int) -> bool:
        # While half is paused, time goes on: check-backs for what was read must continue, or the pause would never end.
        return (self.is_half_paused or self.ledger.half_next >= self.half_end) and op_offset >= self.op_end

    def peak_ms(self) -> int | None:
        """The time that counts while more is read than batches have room for: that of the first record without effect yet.

        None: nothing is left over from the batch before, or the ends at the assignment are not reached.
        """
        unapplied_ms = self.ledger.unapplied_ms
        if unapplied_ms is None or not self._has_reached_the_ends(self.ledger.op_next[0]):
            return None
        return max(self.ledger.times.now_ms, unapplied_ms)

    def counted_ms(
        self, now_ms: int, group: GroupReader, topics: SystemTopics, *, read_result: ReadResult, now: float
    ) -> int:
        """The time that counts when all that was read is applied: while op is known to have more, that of its newest record so far.

        What seems undecided may be decided there. A coordinator that is behind would move it to doubt and ask about it, and fall further behind.
        What an open Kafka transaction hides does not stop the time: that is what is left when a read returns nothing at all, or when
        no read returned a record of it for `HIDDEN_S`, although each returned all that the client had.
        """
        ledger, op = self.ledger, (topics.op, self.ledger.partition)
        end = None if self.is_op_paused else group.known_end(op)
        known_to, reached = ledger.ops.read_to(ledger.op_next), group.read_to(op)
        if known_to != self.op_known_to or read_result is ReadResult.FULL:
            self.op_known_to, self.op_known_at = known_to, now
        is_hidden = reached >= known_to and (read_result is ReadResult.EMPTY or now - self.op_known_at >= HIDDEN_S)
        if end is None or end <= max(known_to, reached) or is_hidden:
            return now_ms
        return min(now_ms, max(ledger.times.now_ms, ledger.op_read_ms))

    def pause_op_far_ahead(
        self, group: GroupReader, topics: SystemTopics, *, line_count_max: int, byte_count_max: int
    ) -> None:
        """Stop reading op while it is far ahead of half, and resume when half is closer.

        Call it after every `advance`: with op paused and half read to its end, no record would arrive to trigger it.
        """
        ledger, op = self.ledger, [(topics.op, self.ledger.partition)]
        # 1.0 is the limit, of lines or of bytes.
        share = max(ledger.ops.line_count / max(1, line_count_max), ledger.ops.byte_count / byte_count_max)
        if not self.is_op_paused and share > 1:
            group.pause(op)
            self.is_op_paused = True
        elif self.is_op_paused and share <= 1 / 2:
            group.resume(op)
            self.is_op_paused = False

    def pause_half(self, group: GroupReader, topics: SystemTopics, *, is_full: bool) -> None:
        """Stop reading half while there is no memory for more transactions, and resume when there is."""
        if is_full is self.is_half_paused:
            return
        half = (topics.half, self.ledger.partition)
        self.is_half_paused = is_full
        if is_full:
            group.pause([half])
            logger.error("half.paused", extra={"partition": half[1], "open_count": self.ledger.open_count})
        else:
            group.resume([half])
            logger.warning("half.resumed", extra={"partition": half[1]})

    def give_up_misplaced_lines(
        self, topics: SystemTopics, *, connections: CoordinatorConnections, now: float, patience_s: float
    ) -> None:
        """Give up op lines that have named offsets without a record for `patience_s`, according to the broker."""
        ledger = self.ledger
        if ledger.waits_for_half is None:
            self.lines_ahead.clear()
            return
        self.lines_ahead.read_to(ledger.ops.read_to(ledger.op_next), now)
        half = (topics.half, ledger.partition)
        given_up = self.lines_ahead.given_up_before(
            op_next=ledger.op_next[0],
            named=ledger.waits_for_half,
            half_next=ledger.half_next,
            half_end=lambda: connections.end_offsets([half], is_committed=False)[half],
            now=now,
            patience_s=patience_s,
        )
        if given_up is not None:
            ledger.give_up_waiting_for_half(before=given_up[0], half_end=given_up[1])


def pause_those_too_full(
    shards: Mapping[int, Shard], group: GroupReader, topics: SystemTopics, *, bytes_max: int
) -> None:
    """Limit the memory of unsettled transactions: pause half for partitions with too many of them, or for all.

    A partition with more than half of its share stops first: at half of the memory while no op line waits for half, else at
    three quarters, unless scheduled messages are due or released, and so make room, behind the one that waits. So it leaves room for the
    others. At the limit, all stop. Call it after every `advance`.
    """
    sizes = {p: shard.ledger.unsettled_bytes for p, shard in shards.items()}
    total = sum(sizes.values())
    for p, shard in shards.items():
        times = PAUSED_TIMES if shard.is_half_paused else 1.0
        size, taken = sizes[p] * times, total * times
        is_full = taken >= bytes_max
        if not is_full and size * 2 * len(shards) >= bytes_max:
            is_needed = shard.ledger.waits_for_half is not None
            is_last_room = taken >= bytes_max * 3 / 4 and not shard.ledger.makes_room_behind_half
            is_full = is_last_room or (taken >= bytes_max / 2 and not is_needed)
        shard.pause_half(group, topics, is_full=is_full)


def keep_within_memory(ledgers: Collection[Ledger], content_bytes_max: int) -> None:
    """Drop the oldest content if the total is too large; it is fetched again when it is needed."""
    total = sum(ledger.content_bytes for ledger in ledgers)
    if total > content_bytes_max:
        # Down to three quarters, so that not every read drops some; each partition drops its share.
        too_much = total - content_bytes_max * 3 // 4
        for ledger in ledgers:
            ledger.drop_content(ledger.content_bytes * too_much // total + 1)


def known_ends(group: GroupReader, shards: Mapping[int, Shard], topics: SystemTopics) -> dict[TopicPartition, int]:
    """Ends of half and op according to the last fetches, without a request; unknown ones are missing."""
    tps = [(topic, p) for p in shards for topic in (topics.half, topics.op)]
    found = {tp: group.known_end(tp) for tp in tps}
    return {tp: end for tp, end in found.items() if end is not None}
