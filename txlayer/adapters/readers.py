"""Readers of whole ranges: partitions up to their ends, transaction histories, and the check topic of a group."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from typing import TYPE_CHECKING, Any, NamedTuple

from txlayer.adapters.errors import (
    NOT_AUTHORISED_CODES,
    PASSING_CODES,
    STALE_MEMBER_CODES,
    ClientError,
    Code,
    detail_of,
    translate_error,
)
from txlayer.adapters.ports import (
    Administration,
    Assignment,
    GroupReader,
    HistoryStart,
    LogReader,
    OnRevoke,
    Record,
    TopicPartition,
    partition_count_of,
)
from txlayer.config import SystemTopics
from txlayer.core import codec
from txlayer.core.checks import CLOCK_ERROR_MS
from txlayer.core.history import HistoryFold, TransactionHistory
from txlayer.core.ledger.batch import NO_LIMIT
from txlayer.core.ledger.transaction import held_bytes
from txlayer.core.messages import Undecodable, nonce_of, txn_id_of
from txlayer.errors import (
    BrokerUnavailableError,
    ConfigError,
    InstanceFencedError,
    MemberFencedError,
    NotAuthorisedError,
    RetriableError,
    TopicMismatchError,
    TxLayerError,
)

if TYPE_CHECKING:
    from txlayer.adapters.connect import Clients

READ_COUNT_MIN, READ_COUNT_MAX = 100, 2_000
"""Records per read; the latter limits the time between two calls of `is_still_ours`, and what a restart needs beside a million of them."""

RUN_GAP_MAX = 5_000
"""Records read and dropped instead of a seek, which costs about as much as reading this many (1.2 ms)."""

Range = tuple[int, int]  # [from, to)

KEPT_COUNT_MAX = 5_000  # records that a `RangeReader` keeps for its next range

KEPT_BYTES_MAX = 8 * 1024 * 1024  # their bytes


class RangeReader:
    """Reads ranges of partitions, one call after the other. One thread uses it.

    Where a range begins near the end of the one before, it reads on: a new position costs a seek, and what is fetched is lost. What comes
    beyond a range is kept for the next one, within limits. `is_still_ours` is called after each read.
    """

    def __init__(
        self,
        reader: LogReader,
        *,
        patience_s: float,
        clock: Callable[[], float] = time.monotonic,
        is_still_ours: Callable[[], None] = lambda: None,
        does_keep: bool = True,
    ) -> None:
        self._reader, self._patience_s, self._clock = reader, patience_s, clock
        self._is_still_ours = is_still_ours
        self._kept_max = (KEPT_COUNT_MAX, KEPT_BYTES_MAX) if does_keep else (0, 0)
        self._next: dict[TopicPartition, int] = {}  # of each partition that it reads: the offset of the next record
        self._kept: dict[TopicPartition, deque[tuple[Any, int]]] = {}  # with their sizes
        self._kept_count = self._kept_bytes = 0
        self._is_whole = True  # False: a call was not read to its end, and records of it are lost

    def watermarks(self, partition: TopicPartition) -> tuple[int, int]:
        """(first offset, next offset that a reader of this isolation level sees)."""
        return self._reader.watermarks(partition, timeout_s=self._patience_s)

    def close(self) -> None:
        self._reader.close()

    def read(self, ranges: Mapping[TopicPartition, Range]) -> Iterator[Any]:
        """Every record of the ranges, in offset order per partition.

        Raises:
            BrokerUnavailableError: no record arrived for `patience_s`; some records were already passed on.
            RetriableError: an offset is no longer in the log, or not yet; ask for starts and ends again.
            NotAuthorisedError: a topic may not be read (any more).
        """
        left = {tp: (start, end) for tp, (start, end) in ranges.items() if start < end}
        self._go_to({tp: start for tp, (start, _) in left.items()})
        self._is_whole = False
        for tp, (start, end) in list(left.items()):
            yield from (record for record in self._take_kept(tp, before=end) if record.offset() >= start)
            if self._kept[tp] or self._next[tp] >= end:
                del left[tp]
        heard_at = self._clock()
        while left:
            # No more than is needed: what comes beyond a range must be kept.
            count = sum(end - max(start, self._next[tp]) for tp, (start, end) in left.items())
            records = self._reader.read(record_count_max=min(max(count, READ_COUNT_MIN), READ_COUNT_MAX), timeout_s=0.1)
            self._is_still_ours()
            if records:
                heard_at = self._clock()
            elif self._clock() - heard_at > self._patience_s:
                raise BrokerUnavailableError(
                    "the broker stopped answering; not read to the end: "
                    + ", ".join(f"{t}-{p}" for t, p in sorted(left)),
                    waited_ms=int(self._patience_s * 1000),
                )
            yield from self._wanted_of(records, left)
            records = ()  # or two reads would be in memory at once
        self._is_whole = True

    def _wanted_of(self, records: Sequence[Any], left: dict[TopicPartition, Range]) -> Iterator[Any]:
        """Those of the ranges that are left; a range that is over leaves them."""
        topic, number, tp, start, end, position = "", -1, ("", -1), 0, 0, 0
        for record in records:  # hot path: consecutive records are mostly of one partition
            if record.partition() != number or record.topic() != topic:
                if position:
                    self._next[tp] = position
                topic, number = tp = (record.topic(), record.partition())
                start, end = left.get(tp, (0, 0))
                position = 0
            offset, error = record.offset(), record.error()
            if start <= offset < end - 1 and error is None:  # most records; each of `left` is in `_next`
                position = offset + 1
                yield record
                continue
            position = 0
            if tp not in self._next:
                continue
            if error is None:
                self._next[tp] = offset + 1
                if offset >= end:
                    self._keep(tp, record)
                elif offset >= start:
                    yield record
                is_over = offset >= end - 1
            else:
                if end or error.name() == "_PARTITION_EOF":
                    check_end(error, record, tp)
                    self._next[tp] = offset
                else:
                    self._forget(tp)
                is_over = offset >= end
            if end and is_over:
                del left[tp]
                end = 0
        if position:
            self._next[tp] = position

    def _go_to(self, starts: Mapping[TopicPartition, int]) -> None:
        near = {tp for tp, start in starts.items() if self._is_whole and self._is_near(tp, start)}
        if len(near) == len(starts):
            return
        for tp in self._next.keys() - near:
            self._forget(tp)
        far = starts.keys() - near
        self._next.update({tp: starts[tp] for tp in far})
        self._kept.update({tp: deque() for tp in far})
        self._reader.assign(self._next)

    def _is_near(self, tp: TopicPartition, start: int) -> bool:
        if tp not in self._next:
            return False
        first = self._kept[tp][0][0].offset() if self._kept[tp] else self._next[tp]
        return first <= start <= self._next[tp] + RUN_GAP_MAX

    def _keep(self, tp: TopicPartition, record: Any) -> None:
        size = held_bytes(record)
        self._kept[tp].append((record, size))
        self._kept_count += 1
        self._kept_bytes += size
        count_max, bytes_max = self._kept_max
        if self._kept_count > count_max or self._kept_bytes > bytes_max:
            self._forget(tp)
            self._reader.pause(tp)

    def _take_kept(self, tp: TopicPartition, *, before: int) -> Iterator[Any]:
        kept = self._kept[tp]
        while kept and kept[0][0].offset() < before:
            record, size = kept.popleft()
            self._kept_count -= 1
            self._kept_bytes -= size
            yield record

    def _forget(self, tp: TopicPartition) -> None:
        for _ in self._take_kept(tp, before=NO_LIMIT):
            pass
        del self._next[tp], self._kept[tp]


def records_of(
    reader: LogReader,
    ranges: Mapping[TopicPartition, Range],
    *,
    is_still_ours: Callable[[], None] = lambda: None,
    patience_s: float,
    clock: Callable[[], float] = time.monotonic,
) -> Iterator[Any]:
    """As `RangeReader.read`, for one call."""
    reading = RangeReader(reader, patience_s=patience_s, clock=clock, is_still_ours=is_still_ours, does_keep=False)
    return reading.read(ranges)


def check_end(error: Any, record: Any, partition: TopicPartition) -> None:
    """Raise what `records_of` raises for an error among the records, unless it says that a partition's end is reached."""
    where = f"{partition[0]}-{partition[1]}"
    if error.name() == "_PARTITION_EOF":
        return
    if error.name() == "_AUTO_OFFSET_RESET":
        raise RetriableError(f"{where}: what must be read is not in the log ({error.str()}); it was removed meanwhile")
    if error.code() in NOT_AUTHORISED_CODES:
        raise translate_error(error, topic=partition[0], operation="read")
    raise BrokerUnavailableError(f"{where}@{record.offset()}: {error.name()}")


def runs_of(spans: Iterable[Range]) -> list[Range]:
    """The spans in order, merged where reading the gap costs less than a seek."""
    runs: list[Range] = []
    for start, end in sorted(spans):
        if runs and start - runs[-1][1] <= RUN_GAP_MAX:
            runs[-1] = (runs[-1][0], max(runs[-1][1], end))
        else:
            runs.append((start, end))
    return runs


HIDDEN_S = 30.0
"""How long a Kafka transaction may hide lines: brokers end one that its dead writer left open, in some 20 s at the latest."""

QUIET_S = 10.0  # without a record or an end of partition for this long, the broker counts as unreachable


class HalfOwner(NamedTuple):
    """The transaction of the half record at a position."""

    txn_id: str
    nonce: str
    index: int  # type: ignore[assignment]  # of the message; hides tuple.index, which is not used
    appended_ms: int


class LogTime(NamedTuple):
    """What is known of the brokers' time. No broker can be asked for it: it follows from what they append, and from this machine's clock."""

    earliest_ms: int  # It is later. From here a search counts back that must miss nothing.
    latest_ms: int
    """From here everything else counts. It is `earliest_ms` unless nothing happened for a minute and no coordinator runs: then it is this
    machine's time, which may be ahead."""


STORED_OFFSETS = "__consumer_offsets"
"""The brokers append it by their own clocks, and coordinators at least once a minute."""
_STEP_MS = 1_000
LATEST_MS = 1 << 47  # the year 6429


def log_time(admin: Administration, topics: SystemTopics, *, wall_ms: int) -> LogTime:
    """The brokers' time of now, as far as their logs contradict `wall_ms`, the time of this machine.

    Up to a minute they may differ. An older clock is behind; where a coordinator runs and nothing is as young as a minute, it is ahead.
    """
    ends = _ends_of_clocks(admin, topics)
    tps = list(ends)

    def has_since(at_ms: int) -> bool:
        return any(offset < ends[tp] for tp, offset in admin.offsets_at(tps, at_ms=at_ms).items())

    low_ms, until_ms = 0, wall_ms - CLOCK_ERROR_MS
    if has_since(wall_ms + CLOCK_ERROR_MS + 1):
        low_ms, until_ms = wall_ms + CLOCK_ERROR_MS + 1, wall_ms + 2 * CLOCK_ERROR_MS
        while until_ms < LATEST_MS and has_since(until_ms):
            low_ms, until_ms = until_ms, 2 * until_ms - wall_ms
    elif has_since(wall_ms - CLOCK_ERROR_MS):
        return LogTime(wall_ms, wall_ms)
    while until_ms - low_ms > _STEP_MS:
        middle_ms = (low_ms + until_ms) // 2
        if has_since(middle_ms):
            low_ms = middle_ms
        else:
            until_ms = middle_ms
    is_stored = any(topic == STORED_OFFSETS for topic, _ in tps)
    is_known = low_ms > wall_ms or (low_ms > 0 and is_stored and _has_members(admin, topics.coordinator_group))
    return LogTime(low_ms, low_ms if is_known else wall_ms)


def _ends_of_clocks(admin: Administration, topics: SystemTopics) -> dict[TopicPartition, int]:
    """The ends of partitions to which brokers append by their own clocks, of topics that these credentials may ask about."""
    found: dict[TopicPartition, int] = {}
    for topic in (topics.half, topics.op, topics.locks, STORED_OFFSETS):
        try:
            found |= admin.end_offsets([(topic, number) for number in range(admin.partition_count(topic) or 0)])
        except NotAuthorisedError:
            continue  # the other topics show the time, too
    return found


def _has_members(admin: Administration, group: str) -> bool:
    try:
        return bool(admin.group(group).members)
    except NotAuthorisedError:
        return False


class LogHistoryReader:
    """Reads from the topics what happened to one transaction id. Each call makes its own clients. Thread-safe."""

    def __init__(self, clients: Clients) -> None:
        self._clients = clients
        self._topics = clients.config.topics

    def read(
        self,
        txn_id: str,
        *,
        start: HistoryStart,
        partitions: Sequence[int] | None = None,
        with_checks: bool = False,
        is_whole: bool = False,
    ) -> list[TransactionHistory]:
        """Every nonce of `txn_id` with a record in half or op since `start`, or on doubt; oldest first.

        `partitions` limits the search if the ordering key is known; None: all. With `with_checks` the check-backs of that
        time are read, too. With `is_whole` it waits for open Kafka transactions, which hide records of half and op.

        Raises:
            TopicMismatchError: the namespace's topics do not exist.
            RetriableError, NotAuthorisedError: they cannot be read.
        """
        with closing(self._clients.admin()) as admin:
            positions, ends, at_ms = self._ranges(admin, start, partitions, is_whole=is_whole)
            topic = self._topics.check
            # A namespace of an earlier version has no check topic.
            count = (admin.partition_count(topic) or 0) if with_checks else 0
            if checks := [(topic, number) for number in range(count)]:
                positions.update(admin.offsets_at(checks, at_ms=at_ms))
                ends.update(admin.end_offsets(checks))
        fold = HistoryFold(txn_id)
        for record in self._records(positions, ends):
            _fold(fold, record, self._topics)
        return fold.histories()

    def hidden(self) -> list[TopicPartition]:
        """Partitions of half and op on which a Kafka transaction is open: what was written there since is not read. Raises as `read`."""
        topics = self._topics
        with closing(self._clients.admin()) as admin:
            tps = [(t, number) for t in (topics.half, topics.op) for number in range(partition_count_of(admin, t))]
            return _hidden(admin, admin.end_offsets(tps, is_committed=False))

    def now_ms(self) -> int:
        """The time from which a search back begins: this machine's, or less than that where it may be ahead of the brokers'.

        Where nothing happened for long, more is read than was asked for. Raises as `read`.
        """
        wall_ms = int(self._clients.wall_clock() * 1000)
        with closing(self._clients.admin()) as admin:
            partition_count_of(admin, self._topics.half)
            return min(log_time(admin, self._topics, wall_ms=wall_ms).earliest_ms, wall_ms)

    def time(self) -> LogTime:
        """The brokers' time of now. Raises as `Administration`."""
        with closing(self._clients.admin()) as admin:
            return log_time(admin, self._topics, wall_ms=int(self._clients.wall_clock() * 1000))

    def ids_of(self, query_id: str, *, start: HistoryStart) -> list[str]:
        """The ids of transactions with this id of the user's, in half since `start`, or on doubt; the oldest first. Raises as `read`."""
        with closing(self._clients.admin()) as admin:
            positions, ends, _ = self._ranges(admin, start, None)
        ends = {(topic, number): end for (topic, number), end in ends.items() if topic != self._topics.op}
        found: dict[str, int] = {}
        for record in self._records(positions, ends):
            headers = record.headers()
            if codec.asked_options_of(headers).query_id == query_id:
                header = codec.half_of(headers)
                assert header is not None  # its options were read
                found.setdefault(txn_id_of(header.key), header.born_ms)
        return sorted(found, key=found.__getitem__)

    def half_at(self, partition: int, offset: int) -> HalfOwner | str:
        """The transaction of the half record at a position; otherwise a sentence about what is there."""
        topic = self._topics.half
        half = (topic, partition)
        with closing(self._clients.admin()) as admin:
            count = partition_count_of(admin, self._topics.half)
            if partition >= count:
                return f"{topic} has the partitions 0 to {count - 1}, not {partition}"
            first, end = admin.start_offsets([half])[half], admin.end_offsets([half])[half]
        if not first <= offset < end:
            return f"{topic}-{partition} holds the offsets from {first} to before {end}, not {offset}"
        with closing(self._records({half: offset}, {half: offset + 1})) as records:
            for record in records:
                return _owner_of(record, f"{topic}-{partition}@{offset}")
        return f"{topic}-{partition}@{offset} is a marker of a Kafka transaction, or was aborted"

    def half_offsets(self, partition: int, keys: Collection[str], *, at_ms: int) -> dict[str, int]:
        """Key → offset of the transaction's last half record, for the keys that are found.

        Reads half from records of `at_ms` on; the whole topic if that does not find all keys. Raises as `read`.
        """
        half = (self._topics.half, partition)
        with closing(self._clients.admin()) as admin:
            partition_count_of(admin, self._topics.half)
            _wait_until_shown(admin, [half])  # the last half record of a transaction may be hidden, and the others not
            first, ends = admin.start_offsets([half]), admin.end_offsets([half])
            since = admin.offsets_at([half], at_ms=at_ms)
        found = self._offsets_of(keys, since, ends)
        if len(found) < len(keys) and since != first:  # a clock is ahead
            found = self._offsets_of(keys, first, ends)
        return found

    def _offsets_of(
        self, keys: Collection[str], positions: dict[TopicPartition, int], ends: dict[TopicPartition, int]
    ) -> dict[str, int]:
        found: dict[str, int] = {}
        for record in self._records(positions, ends):
            header = codec.half_of(record.headers())
            if header is not None and header.key in keys:
                found[header.key] = record.offset()
        return found

    def _ranges(
        self, admin: Administration, start: HistoryStart, partitions: Sequence[int] | None, *, is_whole: bool = False
    ) -> tuple[dict[TopicPartition, int], dict[TopicPartition, int], int]:
        topics = self._topics
        count, *_ = (partition_count_of(admin, topic) for topic in (topics.half, topics.op, topics.doubt))
        numbers = range(count) if partitions is None else partitions
        if start.position is not None:
            numbers = [start.position[0]]
        halves = [(topics.half, number) for number in numbers]
        ops = [(topics.op, number) for number in numbers]
        doubts = [(topics.doubt, number) for number in numbers]
        if is_whole:
            _wait_until_shown(admin, [*halves, *ops])
        first = admin.start_offsets([*halves, *ops, *doubts])
        ends = admin.end_offsets([*halves, *ops, *doubts])
        at_ms = start.at_ms
        positions = dict(first)
        if start.position is not None:
            half, offset = halves[0], start.position[1]
            positions[half] = max(first[half], offset)
            at_ms = self._appended_ms(half, positions[half], ends[half])
        else:
            positions.update(admin.offsets_at(halves, at_ms=at_ms))
        at_ms -= CLOCK_ERROR_MS  # the leader of half may be ahead of the others
        positions.update(admin.offsets_at(ops, at_ms=at_ms))
        return positions, ends, at_ms

    def _appended_ms(self, half: TopicPartition, offset: int, end: int) -> int:
        """The append time of the half record at `offset`: its op lines are not older, by one clock."""
        with closing(self._records({half: offset}, {half: end})) as records:
            for record in records:
                return record.timestamp()[1]
        return int(self._clients.wall_clock() * 1000)

    def _records(
        self, positions: Mapping[TopicPartition, int], ends: Mapping[TopicPartition, int]
    ) -> Generator[Record, None, None]:
        """Every record from `positions` to before `ends`, in offset order within a partition."""
        with closing(self._clients.reader()) as reader:
            ranges = {tp: (positions[tp], end) for tp, end in ends.items()}
            yield from records_of(reader, ranges, patience_s=QUIET_S, clock=self._clients.clock)


def _wait_until_shown(admin: Administration, partitions: Collection[TopicPartition]) -> None:
    """Return once `read_committed` readers see what is written by now; BrokerUnavailableError: they do not, for too long."""
    written = admin.end_offsets(partitions, is_committed=False)
    give_up_at = time.monotonic() + HIDDEN_S
    while hidden := _hidden(admin, written):
        if time.monotonic() > give_up_at:
            topic, number = hidden[0]
            raise BrokerUnavailableError(f"a Kafka transaction on {topic}-{number} stays open, and hides what there is")
        time.sleep(RETRY_S)


def _hidden(admin: Administration, written: Mapping[TopicPartition, int]) -> list[TopicPartition]:
    """The partitions that `read_committed` readers do not see up to these ends."""
    return [tp for tp, end in admin.end_offsets(list(written)).items() if end < written[tp]]


def _fold(fold: HistoryFold, record: Record, topics: SystemTopics) -> None:
    partition, offset, at_ms = record.partition(), record.offset(), record.timestamp()[1]
    topic, value = record.topic(), record.value()
    if topic == topics.half:
        headers = record.headers()
        fold.half(partition=partition, offset=offset, appended_ms=at_ms, headers=headers)
    elif topic == topics.op:
        fold.op(partition=partition, offset=offset, appended_ms=at_ms, value=value)
    elif topic == topics.check:
        fold.check(partition=partition, offset=offset, appended_ms=at_ms, value=value)
    else:
        fold.doubt(partition=partition, appended_ms=at_ms, key=record.key(), value=value, headers=record.headers())


def _owner_of(record: Record, where: str) -> HalfOwner | str:
    raw = codec.half_header_of(record.headers())
    header = Undecodable("it has no header txl") if raw is None else codec.decode_half_header(raw)
    if isinstance(header, Undecodable):
        return f"{where} is no half message: {header.why}"
    return HalfOwner(txn_id_of(header.key), nonce_of(header.key), header.index, record.timestamp()[1])


COORDINATOR_ADVICE = "say where to go on with `txlayer coordinator reset --to earliest|latest|TIME`"
"""For a coordinator whose offset is gone."""
LOST_TO_COORDINATOR = f"the coordinator: {COORDINATOR_ADVICE}"
LOST_TO_RESPONDER = "the responder: start it anew; coordinators ask again"


class TranslatedMember:
    """What a member of a group keeps between two reads, whatever its client: a share, ends that were reached, a failure.

    `lost_to` says who loses records when the offset is gone, and what to do; None: the consumers of this group.
    """

    def __init__(self, *, group: str, bootstrap_servers: str, lost_to: str | None) -> None:
        self._group = group
        self._bootstrap_servers = bootstrap_servers
        self._lost_to = lost_to
        self._reached: dict[TopicPartition, int] = {}
        self._assignment: Assignment | None = None
        self._is_revoked = False
        self._hook: OnRevoke | None = None
        self._failure: Exception | None = None

    def take_assignment(self) -> Assignment | None:
        taken, self._assignment = self._assignment, None
        return taken

    def take_revocation(self) -> bool:
        taken, self._is_revoked = self._is_revoked, False
        return taken

    def take_reached(self) -> Mapping[TopicPartition, int]:
        taken, self._reached = self._reached, {}
        return taken

    def _is_error(self, record: Any) -> bool:
        error = record.error()
        if error is None:
            return False
        if error.code() == Code.LOCAL_PARTITION_EOF:
            self._reached[record.topic(), record.partition()] = record.offset()
        elif error.code() not in PASSING_CODES:
            raise self.read_error(error, topic=record.topic() or "")
        return True

    def read_error(self, error: ClientError, *, topic: str = "") -> TxLayerError:
        group = self._group
        if error.code() == Code.LOCAL_FATAL:
            return self._instance_fenced(error)
        if error.code() == Code.LOCAL_AUTO_OFFSET_RESET:
            lost_to = self._lost_to or (
                f"the group {group}: end every consumer of {group}, and say where to go on with "
                f"`txlayer consumer reset --group {group} --topic {topic} --to earliest|latest|TIME`"
            )
            return ConfigError(
                f"the stored offset is not in the log any more ({error.str()}); what was there is lost to {lost_to}",
                name="stored offset",
                expected="an offset within the topic's retention",
            )
        return self._gone(error, topic) or translate_error(error, bootstrap_servers=self._bootstrap_servers)

    def _instance_fenced(self, error: ClientError) -> InstanceFencedError:
        # A static member is the only one whose client can fail for good; it reads nothing any more, and never joins again.
        return InstanceFencedError(
            f"another process joined with the same instance_id ({error.str()}); give each process its own",
            group=self._group,
        )

    def _gone(self, error: ClientError, topic: str) -> TopicMismatchError | None:
        """The error of a topic that was deleted under a consumer; None: it is another one."""
        if error.code() != Code.UNKNOWN_TOPIC_OR_PART or self._lost_to is not None:
            return None
        return TopicMismatchError(
            f"it was deleted under its consumers ({detail_of(error)}): end every consumer of {self._group}, make it anew, and say "
            "where the group goes on by `txlayer consumer reset`; `txlayer topics apply --group … --topic …` makes topics of dead letters",
            topic=topic or None,
            expected="a topic that the group reads",
            found="none",
        )

    def store_error(self, error: ClientError, *, topic: str = "") -> TxLayerError:
        """Translate why offsets were not stored; `topic`: the one whose offset was refused."""
        code, detail = error.code(), detail_of(error)
        if (gone := self._gone(error, topic)) is not None:
            return gone
        if code == Code.LOCAL_FATAL:
            return self._instance_fenced(error)
        if code in STALE_MEMBER_CODES:
            return MemberFencedError(detail, group=self._group)
        if code in (Code.OFFSET_METADATA_TOO_LARGE, Code.INVALID_COMMIT_OFFSET_SIZE):
            return ConfigError(
                f"the brokers allow less metadata with an offset ({detail})",
                name="metadata_bytes_max",
                expected="the brokers' offset.metadata.max.bytes",
            )
        return translate_error(
            error, bootstrap_servers=self._bootstrap_servers, resource=self._group, operation="store offsets"
        )

    def _call_hook(self, *, is_lost: bool) -> None:
        try:
            if self._hook is not None:
                self._hook(is_lost)
        except Exception as exc:  # noqa: BLE001 - a client's callback: the next read raises it
            self._failure = exc

    def _raise_failure(self) -> None:
        if self._failure is not None:
            failure, self._failure = self._failure, None
            raise failure


logger = logging.getLogger("txlayer.responder")

ENDS_TIMEOUT_S = 10.0  # how long one question for a partition's end may take

RETRY_S = 0.1  # pause between two of these questions


class CheckRequestsRead(NamedTuple):
    """The result of one read."""

    records: Sequence[Record]
    own_partitions: frozenset[int]
    """The partitions whose check-backs this instance had to answer when the records were read."""


class CheckReader:
    """Reads all partitions of the check topic as a member of a group. Not thread-safe; its callbacks do not raise.

    Limits and refused resolutions concern every instance of a producer group, a check-back only one. Each instance
    therefore reads every partition, and the group's assignment says which check-backs it answers.

    Args:
        member: of the producer group's check group, not started.
        positions: where to continue, by partition; kept up to date, so that the next reader can use it. A partition
            without a position is read from its end: missed check-backs are asked again.
    """

    def __init__(
        self,
        member: GroupReader,
        *,
        topic: str,
        count_partitions: Callable[[], int],
        positions: dict[int, int],
        start_patience_s: float = ENDS_TIMEOUT_S,
    ) -> None:
        self._member = member
        self._start_patience_s = start_patience_s
        self._topic = topic
        self._count_partitions = count_partitions
        self._positions = positions
        self.own_partitions: frozenset[int] = frozenset()
        """The partitions assigned to this instance; empty during a rebalance."""
        self.is_member = False  # true from the first assignment until the group revokes it
        self._is_paused = False

    def start(self) -> None:
        """Find the ends and join the group; retries for `start_patience_s` while a broker is starting.

        Raises:
            TopicMismatchError: the topic does not exist. Nothing was joined.
            RetriableError, NotAuthorisedError: the cluster gave no answer. Nothing was joined.
        """
        # The ends first: once the group has a member, a coordinator may ask, and that check-back must be read.
        self._find_ends(self._count_partitions(), patience_s=self._start_patience_s)
        self._member.start([self._topic])

    def read(self, *, record_count_max: int, timeout_s: float) -> CheckRequestsRead:
        """Records as they arrive; it also serves the group.

        Raises:
            ConfigError: a position is no longer in the log.
            TxLayerError: anything else that stops reading. Close this reader and make a new one.
        """
        own = self.own_partitions
        records = self._member.read(record_count_max=record_count_max, timeout_s=timeout_s)
        for record in records:
            self._positions[record.partition()] = record.offset() + 1
        if self._member.take_revocation():
            self.own_partitions = frozenset()
            self.is_member = False
        share = self._member.take_assignment()
        if share is not None:
            self._take(share)
        return CheckRequestsRead(records, own)

    def pause(self, *, is_paused: bool) -> None:
        if is_paused is not self._is_paused:
            self._is_paused = is_paused
            if self.is_member:
                self._apply_pause()

    def close(self) -> None:
        self.own_partitions = frozenset()
        self.is_member = False
        self._member.close()

    def _take(self, share: Assignment) -> None:
        try:
            self._find_ends(self._count_partitions(), patience_s=ENDS_TIMEOUT_S)
        except RetriableError:
            # Known partitions are read; a new one is found at the next assignment.
            logger.warning("responder.ends_unknown", exc_info=True)
        self.own_partitions = frozenset(partition for _, partition in share.partitions)
        self._member.resume_at({(self._topic, p): at for p, at in self._positions.items()})
        self.is_member = True
        if self._is_paused:
            self._apply_pause()
        logger.info(
            "responder.assigned", extra={"partitions": sorted(self.own_partitions), "generation": share.generation}
        )

    def _apply_pause(self) -> None:
        tps: list[TopicPartition] = [(self._topic, p) for p in self._positions]
        if self._is_paused:
            self._member.pause(tps)
        else:
            self._member.resume(tps)

    def _find_ends(self, partition_count: int, *, patience_s: float) -> None:
        give_up_at = time.monotonic() + patience_s
        for partition in range(partition_count):
            if partition not in self._positions:
                self._positions[partition] = self._end_of((self._topic, partition), give_up_at)

    def _end_of(self, tp: TopicPartition, give_up_at: float) -> int:
        while True:
            try:
                return self._member.watermarks(tp, timeout_s=ENDS_TIMEOUT_S)[1]
            except RetriableError:
                # A moving or new leader answers so for a moment.
                if time.monotonic() > give_up_at:
                    raise
                time.sleep(RETRY_S)
