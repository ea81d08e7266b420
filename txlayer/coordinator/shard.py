"""One assigned partition: its ledger, what is stored of it, and what the loop remembers about it. Never a rule."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from txlayer.adapters.append_time import no_append_time
from txlayer.adapters.ports import (
    Assignment,
    CoordinatorConnections,
    GroupReader,
    TopicPartition,
)
from txlayer.config import CoordinatorConfig, SystemTopics, milliseconds
from txlayer.coordinator.log_time import LogTime
from txlayer.coordinator.policies import check_policies
from txlayer.coordinator.ranges import fetch_contents
from txlayer.core.batch import Batch, Positions
from txlayer.core.ledger import Ledger
from txlayer.core.messages import ParkReason
from txlayer.core.settling import LedgerSettings, PlainOptions, PlainTail
from txlayer.core.target import Target
from txlayer.core.transaction import Transaction
from txlayer.errors import BrokerUnavailableError, TopicMismatchError

logger = logging.getLogger("txlayer.coordinator")

PAUSED_TIMES = 1.1
"""What was paused goes on when there would be room for a tenth more."""


@dataclass(slots=True)
class Shard:
    """One assigned partition."""

    ledger: Ledger
    stored: Positions
    half_end: (
        int  # ends taken at assignment: nothing driven by time happens before they are reached
    )
    op_end: int
    time: LogTime  # the partition's own: a broker whose clock is wrong decides for nobody else
    heard_ms: int = field(init=False)  # the newest append time that `time` was told
    is_op_paused: bool = False
    is_half_paused: bool = False  # there are too many unsettled transactions
    is_caught_up: bool = False  # those ends have been reached once
    # While op lines wait for half: those before this op offset are at hand, since when.
    waits: deque[tuple[int, float]] = field(default_factory=deque)

    def __post_init__(self) -> None:
        """Begin with what is stored, unless this process told a later time since: then only what is newer tells more."""
        self.heard_ms = self.time.peek_ms()
        self.hear()

    def hear(self) -> None:
        """Append times that came since tell the time."""
        if self.ledger.newest_ms > self.heard_ms:
            self.heard_ms = self.ledger.newest_ms
            self.time.see(self.heard_ms)

    @property
    def is_busy(self) -> bool:
        """True when something is left to apply or to append."""
        return self.ledger.has_more or not self.ledger.batch.is_empty

    def half_read_to(self, group: GroupReader, topics: SystemTopics) -> int:
        """Where reading of half stands: what the ledger folded, and the markers behind it, which nobody reads."""
        if self.ledger.is_behind:
            return self.ledger.half_next
        return max(self.ledger.half_next, group.read_to((topics.half, self.ledger.partition)))

    def is_read_to_the_ends(
        self, group: GroupReader, topics: SystemTopics, *, is_idle: bool
    ) -> bool:
        """True when everything that was there at the assignment was folded (markers at the ends are never read).

        A line that waits for half holds up the lines behind it, and not what the time brings: somebody may write such lines
        all the time.
        """
        ledger = self.ledger
        # While half is paused its time goes on: what was read may be asked about, or the pause would never end.
        is_half_read = self.is_half_paused or self.half_read_to(group, topics) >= self.half_end
        is_read = is_half_read and (
            ledger.op_next[0] >= self.op_end
            or (is_idle and group.read_to((topics.op, ledger.partition)) >= self.op_end)
        )
        return is_read and not ledger.has_more

    def pause_op_far_ahead(
        self, group: GroupReader, topics: SystemTopics, *, line_count_max: int
    ) -> None:
        """Stop reading op while it is far ahead of half, and go on when half has come nearer.

        To be asked after every `advance`: with op paused and half read to its end no record would come to ask again.
        """
        count, op = self.ledger.ahead_line_count, [(topics.op, self.ledger.partition)]
        if not self.is_op_paused and count > line_count_max:
            group.pause(op)
            self.is_op_paused = True
        elif self.is_op_paused and count <= line_count_max // 2:
            group.resume(op)
            self.is_op_paused = False

    def pause_half(self, group: GroupReader, topics: SystemTopics, *, is_full: bool) -> None:
        """Stop reading half while there is no memory for more transactions, and go on when there is."""
        if is_full is self.is_half_paused:
            return
        half = (topics.half, self.ledger.partition)
        self.is_half_paused = is_full
        if is_full:
            group.pause([half])
            logger.error(
                "half.paused", extra={"partition": half[1], "open_count": self.ledger.open_count}
            )
        else:
            group.resume([half])
            logger.warning("half.resumed", extra={"partition": half[1]})

    def look_for_misplaced(
        self,
        group: GroupReader,
        topics: SystemTopics,
        *,
        connections: CoordinatorConnections,
        now: float,
        patience_s: float,
    ) -> None:
        """Give up op lines that have named places without a record for `patience_s`, by the broker's own word.

        The end is the high watermark: what stands behind somebody's open Kafka transaction is there, and not read yet.
        Each waits from when it was at hand: those behind others that wait have no further wait of their own.
        """
        ledger, waits = self.ledger, self.waits
        if ledger.waits_for_half is None:
            waits.clear()
            return
        if not waits or ledger.ops_read_to > waits[-1][0]:
            waits.append((ledger.ops_read_to, now))
        before = 0
        while waits and now - waits[0][1] >= patience_s:
            before, _ = waits.popleft()
        if before <= ledger.op_next[0]:
            return
        half = (topics.half, ledger.partition)
        half_end = connections.end_offsets([half], is_committed=False)[half]
        # A place before the end is read as well: a marker stands there, or what was given up.
        if self.half_read_to(group, topics) >= half_end:
            ledger.give_up_waiting_for_half(before=before)
        else:
            waits.clear()


def pause_those_too_full(
    shards: Mapping[int, Shard], group: GroupReader, topics: SystemTopics, *, bytes_max: int
) -> None:
    """Bound what unsettled transactions take: half is not read on for partitions with too many of them, or for all.

    One that has more than half of its share stops first: at half of the memory as long as no op line waits for half, then at
    three quarters. So it leaves room for the others. At the bound all stop. To be asked after every `advance`.
    """
    sizes = {p: shard.ledger.unsettled_bytes for p, shard in shards.items()}
    total = sum(sizes.values())
    for p, shard in shards.items():
        times = PAUSED_TIMES if shard.is_half_paused else 1.0
        size, taken = sizes[p] * times, total * times
        is_full = taken >= bytes_max
        if not is_full and size * 2 * len(shards) >= bytes_max:
            is_needed = shard.ledger.waits_for_half is not None
            is_full = taken >= bytes_max * 3 / 4 or (taken >= bytes_max / 2 and not is_needed)
        shard.pause_half(group, topics, is_full=is_full)


def keep_within_memory(ledgers: Collection[Ledger], content_bytes_max: int) -> None:
    """Drop the oldest content when all of it is too much; it is fetched again when it is needed."""
    total = sum(ledger.content_bytes for ledger in ledgers)
    if total > content_bytes_max:
        # To three quarters, so that not every read drops some; each partition its share.
        too_much = total - content_bytes_max * 3 // 4
        for ledger in ledgers:
            ledger.drop_content(ledger.content_bytes * too_much // total + 1)


def known_ends(
    group: GroupReader, shards: Mapping[int, Shard], topics: SystemTopics
) -> dict[TopicPartition, int]:
    """Where half and op end as the last fetches told it, without asking anybody; who is not known yet is missing."""
    places = [(topic, p) for p in shards for topic in (topics.half, topics.op)]
    found = {place: group.known_end(place) for place in places}
    return {place: end for place, end in found.items() if end is not None}


def first_partition_count(
    connections: CoordinatorConnections, config: CoordinatorConfig, *, clock: Callable[[], float]
) -> int:
    """`count_partitions` of a cluster that may just be coming up: asked again until `start_timeout` is over."""
    patience_s = config.start_timeout.total_seconds()
    give_up_at = clock() + patience_s
    while True:
        connections.wait_until_reachable(timeout_s=patience_s)
        try:
            return count_partitions(connections, config.topics)
        except BrokerUnavailableError:
            if clock() >= give_up_at:
                raise


def count_partitions(connections: CoordinatorConnections, topics: SystemTopics) -> int:
    """Partitions of half, op and doubt.

    Raises:
        TopicMismatchError: one is missing, they differ, or the broker does not stamp the records. Nothing was read.
    """
    counts = {}
    for topic in (topics.half, topics.op, topics.doubt, topics.check):
        limits = connections.topic_limits(topic)
        if limits is None:
            raise TopicMismatchError(
                "a topic of the namespace is missing; `txlayer topics apply` makes it",
                topic=topic, expected="there", found="missing",
            )  # fmt: skip
        if topic in (topics.half, topics.op) and limits.is_append_time is False:
            raise no_append_time(topic, why="transactions grow old by the broker's clock alone")
        counts[topic] = limits.partition_count
    del counts[topics.check]  # its records name the partition that they are about
    for topic, count in counts.items():
        if count != counts[topics.half]:
            raise TopicMismatchError(
                "half, op and doubt must have equally many partitions; transactions would be torn apart",
                topic=topic, expected=str(counts[topics.half]), found=str(count),
            )  # fmt: skip
    return counts[topics.half]


def assigned_partitions(assignment: Assignment, topics: SystemTopics) -> list[int]:
    """The partitions of an assignment, the same of half and op.

    Raises:
        TopicMismatchError: they are not the same; nothing may be read.
    """
    halves = {p for topic, p in assignment.partitions if topic == topics.half}
    ops = {p for topic, p in assignment.partitions if topic == topics.op}
    if halves != ops:
        raise TopicMismatchError(
            "half and op were not assigned alike; every member must subscribe to both with equal partition counts",
            topic=topics.op, expected=str(sorted(halves)), found=str(sorted(ops)),
        )  # fmt: skip
    return sorted(halves)


def ledger_settings(config: CoordinatorConfig, *, partition_count: int) -> LedgerSettings:
    """What the fold needs of the configuration."""
    return LedgerSettings(
        half_topic=config.topics.half,
        op_topic=config.topics.op,
        partition_count=partition_count,
        doubt_after_ms=milliseconds(config.doubt_after),
        held_age_max_ms=milliseconds(config.held_age_max),
        transaction_messages_max=config.transaction_messages_max,
        checks=check_policies(config),
        transaction_bytes_max=config.transaction_bytes_max,
    )


def empty_ledgers(
    partitions: Sequence[int],
    *,
    settings: LedgerSettings,
    targets: Mapping[str, Target],
    refusals: Mapping[str, ParkReason],
    make: type[Ledger] = Ledger,
) -> dict[int, Ledger]:
    """A ledger per partition, for a recovery to fill."""
    plain_tails: dict[str, PlainTail] = {}
    plain_options: dict[str, PlainOptions] = {}
    return {
        p: make(
            p, settings=settings, targets=targets, refusals=refusals, plain_tails=plain_tails,
            plain_options=plain_options,
        )
        for p in partitions
    }  # fmt: skip


def fill_contents(
    batches: list[tuple[int, Batch]],
    shards: dict[int, Shard],
    *,
    config: CoordinatorConfig,
    connections: CoordinatorConnections,
    clock: Callable[[], float] = time.monotonic,
) -> None:
    """Fetch the contents that the batches need and that are not in memory.

    Raises:
        InvariantError: a content is not where it must be.
        BrokerUnavailableError: nobody answered; nothing was changed.
    """
    wanted: list[tuple[int, Transaction, int]] = []
    for p, batch in batches:
        needed = [*batch.forwards, *(k.txn for k in batch.keeps.values() if k.is_whole)]
        wanted.extend(
            (p, t, t.seen - len(_joined(t))) for t in needed if t.content is None or _joined(t)
        )
    if not wanted:
        return
    # Who only stands on doubt again stands there as before: half may have the rest of it no more.
    forwarded = {(p, txn.key) for p, batch in batches for txn in batch.forwards}
    as_cut = {(p, txn.key) for p, txn, _ in wanted} - forwarded
    to_cut = {(p, txn.key) for p, txn, _ in wanted if shards[p].ledger.is_beyond_limit(txn)}
    reader = connections.make_reader("read_committed")
    try:
        found = fetch_contents(
            reader, wanted, half_topic=config.topics.half, doubt_topic=config.topics.doubt,
            patience_s=config.kafka_transaction_timeout.total_seconds(), clock=clock, as_cut=as_cut,
            to_cut=to_cut,
        )  # fmt: skip
    finally:
        reader.close()
    for p, txn, _ in wanted:
        shards[p].ledger.filled(txn, [*found[p, txn.key], *_joined(txn)])


def _joined(txn: Transaction) -> list[Any]:
    return (txn.more.joined if txn.more is not None else None) or []
