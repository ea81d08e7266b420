"""The queues of a namespace: who holds each, whether it is paused, and which of its keys are parked with how many messages behind them."""

from collections.abc import Collection, Iterable, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from typing import NamedTuple

from txlayer.adapters.connect import Clients
from txlayer.adapters.ports import Administration
from txlayer.config import ConsumerConfig
from txlayer.core.dead_letters import ENDED, DeadLetterEvent
from txlayer.core.leases import parse_queue, queue_name
from txlayer.core.messages import Undecodable
from txlayer.core.progress import NO_KEY, Attempts, hash_of_key
from txlayer.operate import Json, dead_letters
from txlayer.operate.locks import LeaseStatus, LockState, claim_times, opened_locks

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
    is_cut: bool = False  # there are more


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
        return _queues(clients, admin, locks.read())


def _queues(clients: Clients, admin: Administration, leases: list[LeaseStatus]) -> Queues:
    old = (s.lease for s in leases if s.claimed_ms is None and s.state is LockState.HELD)
    claimed = claim_times(clients, admin, old)
    by_place = {
        parse_queue(s.lease.queue): s._replace(claimed_ms=s.claimed_ms or claimed.get(s.lease.queue)) for s in leases
    }
    rows: dict[tuple[str, str, int], QueueNow] = {
        place: QueueNow(*place, lease=lease) for place, lease in by_place.items()
    }

    def look(log: dead_letters.DeadLetterLog) -> None:
        rows.update((row[:3], row) for row in _queues_of(log, by_place))

    problems, is_cut = dead_letters.look_at_each(clients, admin, look)
    ordered = [rows[place] for place in sorted(rows)]
    return Queues(ordered[:QUEUE_COUNT_MAX], problems, is_cut or len(ordered) > QUEUE_COUNT_MAX)


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
    """The dead letters of parked keys that are not handled or dropped."""
    if not parked:
        return {}
    whole = dead_letters.in_one_order(log, stored, parked.keys())
    found: dict[tuple[int, bytes], list[dead_letters.FoundLetter]] = {}
    for each in log.letters(partitions=parked.keys(), count_max=LETTER_COUNT_MAX):
        if isinstance(each.letter, Undecodable) or each.history.state in ENDED:
            continue
        partition = each.position.partition
        key_hash = NO_KEY if partition in whole else hash_of_key(each.key)
        if key_hash in parked[partition]:
            found.setdefault((partition, key_hash), []).append(each._replace(record=None))
    return found
