"""The queues of a namespace: who holds each, whether it is paused, and which of its keys are parked with how many messages behind them.

And the leases themselves, with their release by an operator.
"""

import time
from collections import defaultdict, deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from enum import Enum
from itertools import islice, zip_longest
from typing import NamedTuple

from txlayer.adapters.connect import Clients, ConsumerConnections
from txlayer.adapters.lock_log import LockEntry, LockLog
from txlayer.adapters.ports import Administration, TopicPartition, partition_count_of
from txlayer.adapters.readers import records_of
from txlayer.config import ConsumerConfig, milliseconds
from txlayer.core.dead_letters import ENDED, DeadLetterEvent
from txlayer.core.leases import (
    LeaseEffect,
    LeaseTable,
    LockKind,
    LockRecord,
    QueueLease,
    lock_partition,
    parse_queue,
    queue_name,
)
from txlayer.core.messages import Undecodable
from txlayer.core.progress import NO_KEY, Attempts, hash_of_key
from txlayer.errors import BrokerUnavailableError, UsageError
from txlayer.operate import Json, dead_letters

HISTORY_COUNT_MAX = 20  # records of one queue that `txlayer locks show` prints

PATIENCE_S = 30.0  # how long the log may take to be read, or a record to be written


class LockState(Enum):
    """The state of a queue's newest lease."""

    HELD = "held"  #: its holder renews it
    EXPIRED = "expired"  #: not renewed in time; the next claim wins
    RELEASED = "released"  #: its holder, or a person, ended it


class LeaseStatus(NamedTuple):
    """A queue's newest lease at the end of the log."""

    lease: QueueLease
    state: LockState
    age_ms: int  # since its last renewal
    expires_in_ms: int  # below 0: so long ago
    claimed_ms: int | None = None  # append time of the claim; None: it is older than what was read


class FoldedEntry(NamedTuple):
    """A record and what it changed."""

    entry: LockEntry
    effect: LeaseEffect


class LockAdmin:
    """Reads the lock log from ten expiries ago to its end, and writes releases. One thread uses it.

    Args:
        connections: to the cluster, with the consumers' settings: the namespace and the expiry of leases.
        clock: monotonic, in seconds.
        wall_clock: for the age of a lease that is not renewed; the log itself has no newer time then.
    """

    def __init__(
        self,
        connections: ConsumerConnections,
        *,
        clock: Callable[[], float] = time.monotonic,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        expiry_ms = milliseconds(connections.config.lease_expiry)
        self._log = LockLog(connections, topic=connections.config.topics.locks, expiry_ms=expiry_ms, clock=clock)
        self._table = LeaseTable(expiry_ms=expiry_ms)
        self._records: defaultdict[str, deque[FoldedEntry]] = defaultdict(lambda: deque(maxlen=HISTORY_COUNT_MAX))
        self._claimed: dict[str, tuple[int, int]] = {}
        """By queue: the offset and append time of its newest claim that counted."""
        self._clock = clock
        self._wall_clock = wall_clock

    def read(self) -> list[LeaseStatus]:
        """Read to the end as it is now; every queue that the log names, in the order of their names."""
        self._log.start()
        self._catch_up()
        return [self._status(lease) for lease in sorted(self._table)]

    @property
    def unreadable_count(self) -> int:
        """Records that were read, and are none of txlayer's."""
        return self._log.unreadable_count

    def status(self, queue: str) -> LeaseStatus | None:
        """One queue's, as far as was read; None: the log does not name it."""
        lease = self._table.lease(queue)
        return None if lease is None else self._status(lease)

    def history(self, queue: str) -> list[FoldedEntry]:
        return list(self._records.get(queue, ()))

    def release(self, lease: QueueLease, *, reason: str) -> LeaseEffect:
        """End a lease; RELEASED, or STALE when another one had come meanwhile.

        Raises:
            BrokerUnavailableError: it was not acknowledged, or not read back: perhaps it is in the log; look again.
            NotAuthorisedError: it was not written.
        """
        written: list[int | None] = []
        record = LockRecord(
            LockKind.RELEASE, lease.queue, lease.generation, lease.holder, lease.instance_id, lease.token, reason
        )
        self._log.write(record, on_written=written.append)
        give_up_at = self._clock() + PATIENCE_S
        while not written:
            self._log.poll(0.1)
            self._give_up(give_up_at, "the release was not acknowledged")
        if written[0] is None:
            raise BrokerUnavailableError("the release was not acknowledged; look again")
        self._catch_up()
        found = [f.effect for f in self._records[lease.queue] if f.entry.offset == written[0]]
        return found[0] if found else LeaseEffect.STALE

    def close(self) -> None:
        self._log.close(1.0)

    def _catch_up(self) -> None:
        self._log.wait_for(self._log.end_offsets())
        give_up_at = self._clock() + PATIENCE_S
        while not self._log.is_caught_up:
            for entry in self._log.read(timeout_s=0.1):
                effect = self._table.apply(entry.record, offset=entry.offset, appended_ms=entry.appended_ms)
                self._records[entry.record.queue].append(FoldedEntry(entry, effect))
                lease = self._table.lease(entry.record.queue)
                if lease is not None and lease.token == entry.offset:
                    self._claimed[entry.record.queue] = entry.offset, entry.appended_ms
            self._give_up(give_up_at, "the lock log could not be read to its end")

    def _give_up(self, at: float, why: str) -> None:
        if self._clock() > at:
            raise BrokerUnavailableError(why, waited_ms=int(PATIENCE_S * 1000))

    def _status(self, lease: QueueLease) -> LeaseStatus:
        now_ms = max(self._log.now_ms, int(self._wall_clock() * 1000))
        state = LockState.HELD
        if lease.is_released:
            state = LockState.RELEASED
        elif not self._table.is_live_at(lease, now_ms):
            state = LockState.EXPIRED
        age_ms = now_ms - lease.renewed_ms
        token, claimed_ms = self._claimed.get(lease.queue, (None, None))
        return LeaseStatus(
            lease, state, age_ms, self._table.expiry_ms - age_ms, claimed_ms if token == lease.token else None
        )


@contextmanager
def opened_locks(clients: Clients, config: ConsumerConfig) -> Iterator[LockAdmin]:
    """The lock log of a namespace, for one thread."""
    with (
        closing(ConsumerConnections(clients, config)) as connections,
        closing(LockAdmin(connections, clock=clients.clock, wall_clock=clients.wall_clock)) as locks,
    ):
        yield locks


def check_queue(queue: str) -> str:
    """The same name; a UsageError unless it is that of a queue."""
    try:
        parse_queue(queue)
    except ValueError:
        raise UsageError(f"{queue[:80]!r} names no queue: GROUP/TOPIC/PARTITION") from None
    return queue


CLAIM_COUNT_MAX = 200  # claims that are looked up one by one


def claim_times(clients: Clients, admin: Administration, leases: Iterable[QueueLease]) -> dict[str, int]:
    """{queue: append time of the claim that won}, of the first `CLAIM_COUNT_MAX` leases, where the log still has it."""
    topic = clients.config.topics.locks
    count = partition_count_of(admin, topic)
    starts = admin.start_offsets([(topic, p) for p in range(count)])
    claims: defaultdict[TopicPartition, list[QueueLease]] = defaultdict(list)
    for lease in islice(leases, CLAIM_COUNT_MAX):
        tp = (topic, lock_partition(lease.queue, partition_count=count))
        if lease.token >= starts[tp]:
            claims[tp].append(lease)
    found: dict[str, int] = {}
    with closing(clients.reader()) as reader:
        for turn in zip_longest(*claims.values()):
            wanted = {tp: lease for tp, lease in zip(claims, turn, strict=True) if lease is not None}
            ranges = {tp: (lease.token, lease.token + 1) for tp, lease in wanted.items()}
            for record in records_of(reader, ranges, patience_s=PATIENCE_S):
                found[wanted[record.topic(), record.partition()].queue] = record.timestamp()[1]
    return found


def lease_json(status: LeaseStatus) -> Json:
    lease = status.lease
    group, topic, partition = parse_queue(lease.queue)
    return {
        "queue": lease.queue,
        "group": group,
        "topic": topic,
        "partition": partition,
        "state": status.state.value,
        "holder": lease.holder,
        "instance_id": lease.instance_id or None,
        "generation": lease.generation,
        "token": lease.token,
        "renewed_ms": lease.renewed_ms,
        "expires_in_ms": status.expires_in_ms,
        "reason": lease.reason or None,
    }


def record_json(folded: FoldedEntry) -> Json:
    entry, effect = folded
    record = entry.record
    return {
        "offset": entry.offset,
        "appended_ms": entry.appended_ms,
        "kind": record.kind.name.lower(),
        "effect": effect.value,
        "holder": record.holder,
        "instance_id": record.instance_id or None,
        "generation": record.generation,
        "token": record.token,
        "reason": record.reason or None,
    }


# --- queues ----------------------------------------------------------------------------------------------------------


QUEUE_COUNT_MAX = 5_000  # queues that are looked at
LETTER_COUNT_MAX = 50_000
"""Dead letters of one group and topic that are read to count what waits behind parked keys, the newest."""


class ParkedKey(NamedTuple):
    """A parked key of one queue. Without order between keys the whole partition is one."""

    key_hash: bytes
    waiting_count: int  # dead letters that are not handled or dropped, the first one included
    first: int | None  # offset of the oldest of them; None: none was read
    oldest_ms: int | None
    is_stuck: bool  # its replay failed

    @property
    def is_null(self) -> bool:
        """True for messages without a key, and for a partition in one order."""
        return self.key_hash == NO_KEY


class QueueNow(NamedTuple):
    """One queue."""

    group: str
    topic: str
    partition: int
    lease: LeaseStatus | None = None  # None: the lock log does not name it
    is_paused: bool | None = None  # None: the group has no topics for dead letters and requests
    asked: DeadLetterEvent | None = None  # the newest request to pause or to resume
    parked: tuple[ParkedKey, ...] = ()
    failing: tuple[Attempts, ...] = ()  # of messages whose handler failed, and that are not finished

    @property
    def name(self) -> str:
        return queue_name(self.group, self.topic, self.partition)


@dataclass(slots=True)
class Queues:
    """All of them, in the order of their names."""

    queues: list[QueueNow] = field(default_factory=list)
    problems: dict[str, str] = field(default_factory=dict)  # why something is not known, by group and topic
    has_more: bool = False  # there are more


class QueueCounts(NamedTuple):
    """The queues of one group and topic."""

    queue_count: int = 0
    held_count: int = 0
    paused_count: int = 0
    parked_key_count: int = 0
    failing_count: int = 0
    open_breaker_count: int = 0


def counts_of(found: Queues) -> dict[tuple[str, str], QueueCounts]:
    """{(group, topic): how many queues, and how they are}."""
    counts: dict[tuple[str, str], QueueCounts] = {}
    for queue in found.queues:
        place = queue.group, queue.topic
        is_held = queue.lease is not None and queue.lease.state is LockState.HELD
        is_open = queue.lease is not None and is_held and bool(queue.lease.lease.reason)  # a holder says nothing else
        is_paused = queue.is_paused is True
        one = QueueCounts(1, int(is_held), int(is_paused), len(queue.parked), len(queue.failing), int(is_open))
        counts[place] = QueueCounts(*map(sum, zip(counts.get(place, QueueCounts()), one, strict=True)))
    return counts


def consumption_json(consumed: Iterable[dead_letters.ConsumedTopic], found: Queues) -> list[Json]:
    """One object for each group and topic, in the order of their names: the topic as consumed, and its queues. None: not known."""
    unknown: Json = dict.fromkeys((*dead_letters.ConsumedTopic._fields, *QueueCounts._fields))
    rows = {(each.group, each.topic): unknown | each._asdict() for each in consumed}
    for place, counts in counts_of(found).items():
        rows[place] = rows.get(place, unknown) | counts._asdict()
    return [rows[place] | {"group": place[0], "topic": place[1]} for place in sorted(rows)]


def read_queues(clients: Clients, config: ConsumerConfig) -> Queues:
    """The queues that the lock log names, and those of groups with topics for dead letters."""
    with opened_locks(clients, config) as locks, closing(clients.admin()) as admin:
        leases = locks.read()
        old = (s.lease for s in leases if s.claimed_ms is None and s.state is LockState.HELD)
        claimed = claim_times(clients, admin, old)
        by_place = {
            parse_queue(s.lease.queue): s._replace(claimed_ms=s.claimed_ms or claimed.get(s.lease.queue))
            for s in leases
        }
        rows = {place: QueueNow(*place, lease=lease) for place, lease in by_place.items()}

        def look(log: dead_letters.DeadLetterLog) -> None:
            rows.update((row[:3], row) for row in _queues_of(log, by_place))

        problems, has_more = dead_letters.look_at_each(clients, admin, look)
    ordered = [rows[place] for place in sorted(rows)]
    return Queues(ordered[:QUEUE_COUNT_MAX], problems, has_more or len(ordered) > QUEUE_COUNT_MAX)


def _queues_of(log: dead_letters.DeadLetterLog, leases: Mapping[tuple[str, str, int], LeaseStatus]) -> list[QueueNow]:
    stored = log.queues()
    parked = {partition: status.parked for partition, status in stored.items() if status.parked}
    waiting = _waiting(log, stored, parked)
    rows = []
    for partition, status in stored.items():
        keys = []
        for key_hash in sorted(status.parked):
            behind = waiting.get((partition, key_hash), [])
            first = min(behind, key=lambda each: each.position, default=None)
            keys.append(
                ParkedKey(
                    key_hash,
                    len(behind),
                    None if first is None else first.position.offset,
                    min((each.at_ms for each in behind), default=None),
                    key_hash in status.stuck,
                )
            )
        place = log.group, log.topic, partition
        lease, asked = leases.get(place), log.pause(partition)
        rows.append(QueueNow(*place, lease, status.is_paused, asked, tuple(keys), status.failing))
    return rows


def _waiting(
    log: dead_letters.DeadLetterLog,
    stored: Mapping[int, dead_letters.QueueStatus],
    parked: Mapping[int, Collection[bytes]],
) -> dict[tuple[int, bytes], list[dead_letters.FoundLetter]]:
    if not parked:
        return {}
    whole = dead_letters.partitions_in_one_chain(log, stored, parked.keys())
    found: dict[tuple[int, bytes], list[dead_letters.FoundLetter]] = {}
    for each in log.letters(partitions=parked.keys(), count_max=LETTER_COUNT_MAX):
        if isinstance(each.letter, Undecodable) or each.history.state in ENDED:
            continue
        partition = each.position.partition
        key_hash = NO_KEY if partition in whole else hash_of_key(each.key)
        if key_hash in parked[partition]:
            found.setdefault((partition, key_hash), []).append(each._replace(record=None))
    return found
