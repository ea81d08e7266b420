"""Holders of queues: the fold of the lock log. Its only clock is the records' append time.

Every reader folds the same records in the same order, so all agree. The rules, and the format of the records with test vectors:
docs/explanation/protocol.md, "Lock record".

A lease **expires** by two clocks. For readers it ends an expiry after the append time of its last record (`LeaseTable.is_live_at`). Its
holder starts no handler for longer than `holder_valid_s` from when it sent that record, by its own clock, so it stops first, unless its
machine was suspended.

A reader that begins ten expiries ago may for a while take a void claim for a lease, because it has not seen the lease
that the claim met. Two guards end this: a reader adopts a renewal (or release) of a higher token than the lease it knows,
and the holder answers every void claim by claiming again, so that its token is the highest of all.

The guards, each of which a simulation can remove (by a subclass of `LeaseTable`; the other two in
`txlayer.consumer.lease_keeper`): `outranks` (generation, void claims), `is_live_at` (expiry), the token that a renewal
must name; the holder's own `valid_until`; the lease written again behind a void claim.

The decoder of lock records does not raise on malformed bytes: it returns `Undecodable`.
"""

import zlib
from collections.abc import Iterator
from enum import Enum
from typing import NamedTuple
from urllib.parse import quote, unquote

from txlayer.core.codec import PARTITION_MAX, VERSION, known_fields, malformed, whole
from txlayer.core.messages import Undecodable, is_topic_name


class LockKind(Enum):
    """Kinds of records in the lock log."""

    CLAIM = "C"  #: a newly assigned member claims the queue, or its holder writes the lease again
    RENEWAL = "N"  #: the holder is alive
    RELEASE = "R"  #: the holder, or an operator, ends the lease


class LockRecord(NamedTuple):
    """A record of the lock log; its append time and offset come from the record itself."""

    kind: LockKind
    queue: str  # "group/topic/partition"
    generation: int  # of the consumer group, when the holder was assigned
    holder: str  # unique per process
    instance_id: str = ""  # of a static member
    token: int | None = None  # of the lease that is renewed, released, or rewritten by a claim
    reason: str = ""  # of an operator's release; of a renewal: what the holder says of the queue


HISTORY_EXPIRY_COUNT = 10
"""A reader begins this many expiries before the newest record. After that it agrees with a reader of the whole log."""
VALID_SHARE = 0.95  # the used share of the expiry: the clocks of machines and brokers may drift by a twentieth


def holder_valid_s(expiry_ms: int) -> float:
    """Seconds, by the holder's monotonic clock, that its lease counts from when it sent the last claim or renewal that counts."""
    return expiry_ms / 1000 * VALID_SHARE


def token_above(claim_offset: int, *, last: int | None) -> int:
    """The token that handlers get under a lease: its claim's offset, or one more than the last token of the queue.

    Offsets grow within one lock log; a new log, in another namespace or after a disaster, begins at 0 again. `last` is stored with the
    group's progress, which survives the log; None: no handler of the queue has had a token.
    """
    return claim_offset if last is None or claim_offset > last else last + 1


class LeaseEffect(Enum):
    """The effect of a record of the lock log."""

    WON = "won"  #: a claim became the lease
    VOID = "void"  #: a claim met a lease that it does not outrank; nothing changed
    RENEWED = "renewed"  #: the lease continues
    LEARNED = "learned"  #: a renewal of a lease whose claim this reader did not see win
    RELEASED = "released"  #: the lease ended
    STALE = "stale"  #: it named a lease that is over or cannot exist; nothing changed


class QueueLease(NamedTuple):
    """The newest lease of a queue, live or not."""

    queue: str
    holder: str
    instance_id: str
    generation: int
    token: int  # offset of the claim that won; grows with every lease of the queue in this log
    renewed_ms: int  # append time of the last record that counted for the lease
    renewed_offset: int  # offset of that record
    is_released: bool = False
    reason: str = ""  # the reason of its release; until then, what its holder said of the queue when it last renewed it


class LeaseTable:
    """The leases of one lock log, or of the records that are applied. Not thread-safe.

    At every position, a queue has at most one holder, and tokens only grow, whatever the records contain (P10).
    """

    def __init__(self, *, expiry_ms: int) -> None:
        self.expiry_ms = expiry_ms
        self._leases: dict[str, QueueLease] = {}

    def apply(self, record: LockRecord, *, offset: int, appended_ms: int) -> LeaseEffect:
        """Fold the next record of its partition; all records of a queue are in one partition."""
        if record.kind is LockKind.CLAIM:
            return self._claim(record, offset, appended_ms)
        token = record.token
        if token is None or token >= offset:
            return LeaseEffect.STALE  # its claim would come later
        lease = self._leases.get(record.queue)
        if lease is None or token > lease.token:
            # Its writer saw that claim win and this reader did not: it began in the middle of the log.
            self._leases[record.queue] = self._lease(record, token, offset, appended_ms)
            return LeaseEffect.LEARNED
        if token != lease.token or lease.is_released:
            return LeaseEffect.STALE
        if record.kind is LockKind.RELEASE:
            self._leases[record.queue] = lease._replace(is_released=True, reason=record.reason)
            return LeaseEffect.RELEASED
        self._leases[record.queue] = lease._replace(renewed_ms=appended_ms, renewed_offset=offset, reason=record.reason)
        return LeaseEffect.RENEWED

    def lease(self, queue: str) -> QueueLease | None:
        """The newest lease of a queue, live or not."""
        return self._leases.get(queue)

    def is_live_at(self, lease: QueueLease, at_ms: int) -> bool:
        return not lease.is_released and at_ms < lease.renewed_ms + self.expiry_ms

    def __iter__(self) -> Iterator[QueueLease]:
        return iter(self._leases.values())

    def outranks(self, claim: LockRecord, lease: QueueLease) -> bool:
        """True if a claim takes a queue from a live lease."""
        if claim.holder == lease.holder:
            return True  # also if the group was recreated and counts from 1 again
        if claim.generation != lease.generation:
            return claim.generation > lease.generation
        return bool(claim.instance_id) and claim.instance_id == lease.instance_id

    def _claim(self, record: LockRecord, offset: int, appended_ms: int) -> LeaseEffect:
        if not self._wins(record, offset, appended_ms):
            return LeaseEffect.VOID
        self._leases[record.queue] = self._lease(record, offset, offset, appended_ms)
        return LeaseEffect.WON

    def _wins(self, claim: LockRecord, offset: int, appended_ms: int) -> bool:
        lease, token = self._leases.get(claim.queue), claim.token
        if token is not None:
            # Rewritten: the newest lease, or one whose claim this reader did not see win.
            is_newest = lease is None or token > lease.token
            is_same = lease is not None and token == lease.token and not lease.is_released
            return token < offset and (is_newest or is_same)
        if lease is None or not self.is_live_at(lease, appended_ms):
            return True
        return self.outranks(claim, lease)

    def _lease(self, record: LockRecord, token: int, offset: int, appended_ms: int) -> QueueLease:
        return QueueLease(
            record.queue,
            record.holder,
            record.instance_id,
            record.generation,
            token,
            appended_ms,
            offset,
            record.kind is LockKind.RELEASE,
            "" if record.kind is LockKind.CLAIM else record.reason,
        )


_FIELD_COUNT = 7
_KINDS = {kind.value: kind for kind in LockKind}
_SAFE = "/:@ "


def queue_name(group: str, topic: str, partition: int) -> str:
    """The name of a queue in records and for operators: group/topic/partition."""
    return f"{group}/{topic}/{partition}"


def parse_queue(name: str) -> tuple[str, str, int]:
    """(group, topic, partition); a group may contain slashes, a topic cannot; ValueError: it is not a queue's name."""
    group, topic, partition = name.rsplit("/", 2)
    number = whole(partition)
    if not (group and is_topic_name(topic) and number <= PARTITION_MAX):
        raise ValueError(f"{name[:80]!r} is no group/topic/partition")
    return group, topic, number


def lock_partition(queue: str, *, partition_count: int) -> int:
    """The partition of `<namespace>.locks` that contains all records of a queue: zlib.crc32(key) % count."""
    return zlib.crc32(queue.encode()) % partition_count


def encode_lock(record: LockRecord) -> tuple[bytes, bytes]:
    """(key, value): the queue's name in UTF-8, and version|kind|generation|holder|instance|token|reason in ASCII."""
    token = "" if record.token is None else record.token
    value = (
        f"{VERSION}|{record.kind.value}|{record.generation}|{_quoted(record.holder)}|{_quoted(record.instance_id)}|"
        f"{token}|{_quoted(record.reason)}"
    )
    return record.queue.encode(), value.encode("ascii")


def decode_lock(key: bytes | None, value: bytes | None) -> LockRecord | Undecodable:
    """Decode a record of the lock log. A renewal and a release must name a token, a claim may."""
    if key is None or value is None:
        return Undecodable("lock: no key or no value")
    try:
        queue = key.decode()
        parse_queue(queue)
        fields = value.decode("ascii").split("|")
        known = known_fields(fields, _FIELD_COUNT)
        if known is None:
            return malformed("lock", fields, _FIELD_COUNT)
        _, letter, generation, holder, instance_id, token, reason = known
        record = LockRecord(
            _KINDS[letter],
            queue,
            whole(generation),
            unquote(holder),
            unquote(instance_id),
            whole(token) if token else None,
            unquote(reason),
        )
    except (ValueError, KeyError) as exc:
        return Undecodable(f"lock: {exc}")
    if not record.holder or (record.token is None and record.kind is not LockKind.CLAIM):
        return Undecodable("lock: no holder, or no token where one is due")
    return record


def _quoted(text: str) -> str:
    return quote(text, safe=_SAFE, errors="replace")
