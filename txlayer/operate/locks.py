"""The leases of a namespace, and their release by an operator."""

import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager
from enum import Enum
from itertools import islice, zip_longest
from typing import NamedTuple

from txlayer.adapters.connect import Clients, ConsumerConnections
from txlayer.adapters.lock_log import LockEntry, LockLog
from txlayer.adapters.ports import Administration, TopicPartition, partition_count_of
from txlayer.adapters.readers import records_of
from txlayer.config import ConsumerConfig, milliseconds
from txlayer.core.leases import LeaseEffect, LeaseTable, LockKind, LockRecord, QueueLease, lock_partition, parse_queue
from txlayer.errors import BrokerUnavailableError, UsageError
from txlayer.operate import Json

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
