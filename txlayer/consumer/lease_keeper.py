"""The leases of one consumer process: claimed on assignment, renewed, released. `core/leases.py` decides who holds a lease.

The engine's loop drives it; only `start` and `close` block. What it holds follows from the lock log as it was read back,
not from what was sent. Its guards, each of which a simulation may remove by a subclass:

* `valid_until`: a lease counts from the moment when its last renewal was *sent*, by this machine's monotonic clock, less a
  margin for clock drift. A process that was frozen past it starts no handler, whatever the log says. Exception: on a
  suspended machine the monotonic clock may have stopped.
* `_answers_void_claim`: a holder that reads a void claim after its own claims again, so that a reader that began in the
  middle of the log reaches the same result (the rules of `txlayer.core.leases` depend on it).
* `_may_claim_again`: a member claims on assignment, unless the next process of the same static member has claimed since: then it
  waits until the queue has no holder. It claims again only if the queue has no holder, and not after it lost the queue to a higher
  generation or to a newer process of the same static member.
* nothing is claimed before the log was read from ten expiries ago to its end (`LockLog.is_caught_up`).
"""

import time
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

from txlayer.adapters.connect import ConsumerConnections
from txlayer.adapters.lock_log import LockEntry, LockLog
from txlayer.adapters.ports import TopicPartition
from txlayer.adapters.telemetry import Log
from txlayer.config import SystemTopics
from txlayer.consumer.context import FOR_EVER
from txlayer.core.leases import LeaseEffect, LeaseTable, LockKind, LockRecord, QueueLease, holder_valid_s, queue_name

NO_TOKEN = -1  # the token of a queue that is held without a lease


class LeaseChanges(NamedTuple):
    """The changes since the last turn."""

    gained: Mapping[TopicPartition, int]  # queues that may be processed now, each with its fencing token
    lost: Collection[TopicPartition]  # queues that may not be processed any more


class NoLeases:
    """In place of a `LockRegistry`, for consumers without order: an assigned queue may be processed at once."""

    def __init__(self) -> None:
        self._gained: dict[TopicPartition, int] = {}
        self._held: set[TopicPartition] = set()

    def start(self) -> None:
        """Do nothing."""

    def assigned(self, queues: Collection[TopicPartition], *, generation: int) -> None:  # noqa: ARG002 - the port's
        self._gained.update(dict.fromkeys(queues, NO_TOKEN))
        self._held.update(queues)

    def revoked(self, queues: Collection[TopicPartition]) -> None:
        self._held.difference_update(queues)
        for queue in queues:
            self._gained.pop(queue, None)

    def turn(self) -> LeaseChanges:
        gained, self._gained = self._gained, {}
        return LeaseChanges(gained, ())

    def remark(self, queue: TopicPartition, text: str) -> None:
        """Do nothing: without leases there is no place for it."""

    def valid_until(self, queue: TopicPartition) -> float | None:
        return FOR_EVER if queue in self._held else None

    def close(self) -> None:
        """Do nothing."""


logger = Log("txlayer.locks")

WRITE_AGAIN_S = 1.0  # pause after a record that was not acknowledged
LOOK_S = 0.1  # how often a queue with another holder is checked
CLOSE_S = 2.0  # how long the releases at the end may take; without them the next owner still wins by its generation


NO_CHANGES = LeaseChanges({}, ())


@dataclass(slots=True)
class _Wanted:
    """A queue that the group assigned to this process."""

    name: str
    generation: int
    not_before: float  # no record is written earlier
    was_caught_up: bool  # the log was read to its end before the assignment
    is_overtaken: bool = False  # since then the next process of this static member has claimed
    written_at: float = 0.0
    token: int | None = None  # the token reported to the engine
    has_held: bool = False
    claim_offset: int | None = None  # of this assignment's first claim
    is_writing: bool = False
    is_challenged: bool = False  # there is a void claim after the lease
    sent_at: dict[int, float] = field(default_factory=dict)  # {offset: when its record was sent}
    confirmed_at: float | None = None
    remark: str = ""
    written_remark: str = ""  # of the newest record


class LockRegistry:
    """Keeps the leases of a consumer's queues. Not thread-safe. Calls other than `start` and `close` take a few milliseconds at most.

    After an error the state is unknown: close it and make a new one, with a new `holder`.

    Args:
        holder: a name unique to this process, not used by any other before or after.
        instance_id: of a static member, else "".
        lease_renewal_ms: interval between renewals of a lease.
        lease_expiry_ms: time from the last renewal to the end of the lease; equal for all members of a namespace.
    """

    def __init__(
        self,
        connections: ConsumerConnections,
        *,
        group: str,
        holder: str,
        instance_id: str = "",
        topics: SystemTopics,
        lease_renewal_ms: int = 20_000,
        lease_expiry_ms: int = 60_000,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._group = group
        self._holder = holder
        self._instance_id = instance_id
        self._renewal_s = lease_renewal_ms / 1000
        self._valid_s = holder_valid_s(lease_expiry_ms)
        self._clock = clock
        self._log = LockLog(connections, topic=topics.locks, expiry_ms=lease_expiry_ms, clock=clock)
        self._table = self._make_table(lease_expiry_ms)
        self._wanted: dict[TopicPartition, _Wanted] = {}
        self._by_name: dict[str, _Wanted] = {}
        self._leaving: dict[str, float] = {}  # queues released while a claim was in flight
        self._look_at = 0.0
        self._is_started = False

    # --- what the engine calls ----------------------------------------------------------------------------------------

    def start(self) -> None:
        """Begin to read the lock log; waits for the broker.

        Raises:
            TopicMismatchError: the namespace has no lock topic, or its records have no append time.
            BrokerUnavailableError, NotAuthorisedError: it cannot be read. Nothing was written.
        """
        if not self._is_started:
            self._log.start()
            self._is_started = True

    def assigned(self, queues: Iterable[TopicPartition], *, generation: int) -> None:
        """Claim these newly assigned queues; `turn` returns those gained."""
        now = self._clock()
        for queue in queues:
            name = queue_name(self._group, *queue)
            self._leaving.pop(name, None)
            wanted = _Wanted(name, generation, not_before=now, was_caught_up=self._log.is_caught_up)
            self._wanted[queue] = self._by_name[name] = wanted
        self._look_at = now

    def revoked(self, queues: Collection[TopicPartition]) -> None:
        """Release these queues; handlers under their leases have ended, or their results are discarded.

        Raises:
            UsageError, FencedError: the writer can no longer write; the leases expire.
        """
        self._give_back(queues)
        if self._is_started:
            self._log.poll()

    def _give_back(self, queues: Collection[TopicPartition]) -> None:
        for queue in queues:
            wanted = self._wanted.pop(queue, None)
            if wanted is None:
                continue
            del self._by_name[wanted.name]
            lease = self._own(wanted.name)
            if lease is not None:
                self._release(lease)
            if lease is None or wanted.is_writing:
                # A claim in flight may still take effect, and no release would follow it.
                self._leaving[wanted.name] = self._clock() + self._valid_s

    def turn(self) -> LeaseChanges:
        """Read on and renew what is due; takes a few microseconds if there is nothing to do.

        A queue that is gained although it is held already has a new token, for handlers that start from now on.

        Raises:
            RetriableError: the log was deleted before it was read. Start over.
            TxLayerError: the log cannot be read or written. Start over, or stop.
        """
        reported_count = self._log.poll()
        entries = self._log.read()
        now = self._clock()
        if not entries and not reported_count and now < self._look_at:
            return NO_CHANGES
        for entry in entries:
            self._fold(entry)
        gained: dict[TopicPartition, int] = {}
        lost: list[TopicPartition] = []
        for queue, wanted in self._wanted.items():
            lease = self._own_of(wanted)
            if not self._is_held(wanted, lease, now):
                if wanted.token is not None:
                    lost.append(queue)
                    self._lose(wanted, now)
            elif lease is not None and wanted.token != lease.token:
                gained[queue] = wanted.token = lease.token
                wanted.has_held = True
                logger.info("lease.gained", extra={"queue": wanted.name, "token": lease.token})
            self._write_what_is_due(wanted, lease, now)
        self._release_what_was_left(now)
        self._look_at = self._next_look(now)
        return LeaseChanges(gained, lost) if gained or lost else NO_CHANGES

    def remark(self, queue: TopicPartition, text: str) -> None:
        """Let operators read this beside the lease of a queue, as long as it is held; "": nothing. It is written at once, with a renewal."""
        wanted = self._wanted.get(queue)
        if wanted is not None and wanted.remark != text:
            wanted.remark = text
            self._look_at = 0.0

    def valid_until(self, queue: TopicPartition) -> float | None:
        """The time, by the clock, at which the lease of a queue counts as ended: no handler starts later. None: not held."""
        wanted = self._wanted.get(queue)
        if wanted is None or wanted.token is None or wanted.confirmed_at is None:
            return None
        return wanted.confirmed_at + self._valid_s

    def close(self) -> None:
        """Release everything and end. It waits at most `CLOSE_S` seconds."""
        was_started, self._is_started = self._is_started, False
        try:
            if was_started:
                self._give_back(list(self._wanted))
        finally:
            self._log.close(CLOSE_S)

    # --- what it holds ------------------------------------------------------------------------------------------------

    def _make_table(self, expiry_ms: int) -> LeaseTable:
        return LeaseTable(expiry_ms=expiry_ms)

    def _own(self, name: str) -> QueueLease | None:
        """The lease of a queue if this process was its last holder."""
        lease = self._table.lease(name)
        is_own = lease is not None and lease.holder == self._holder and not lease.is_released
        return lease if is_own else None

    def _own_of(self, wanted: _Wanted) -> QueueLease | None:
        """The same, if it belongs to this assignment and not to an earlier one."""
        lease = self._own(wanted.name)
        if lease is None or wanted.claim_offset is None or lease.token < wanted.claim_offset:
            return None
        sent_at = wanted.sent_at.get(lease.renewed_offset)
        if sent_at is not None:
            wanted.confirmed_at = sent_at
            wanted.sent_at = {o: at for o, at in wanted.sent_at.items() if o > lease.renewed_offset}
        return lease

    def _is_held(self, wanted: _Wanted, lease: QueueLease | None, now: float) -> bool:
        confirmed_at = wanted.confirmed_at
        return lease is not None and confirmed_at is not None and now < confirmed_at + self._valid_s

    def _lose(self, wanted: _Wanted, now: float) -> None:
        lease = self._table.lease(wanted.name)
        now_held = {"holder": lease and lease.holder, "current_token": lease and lease.token}
        reason = lease.reason if lease is not None and lease.is_released else ""
        extra = {"queue": wanted.name, "token": wanted.token, **now_held, "reason": reason}
        logger.warning("lease.lost", extra=extra)
        wanted.token = None
        if lease is not None and lease.is_released:
            wanted.not_before = now + self._renewal_s  # an operator ended it: a waiting member comes first

    def _fold(self, entry: LockEntry) -> None:
        record = entry.record
        effect = self._table.apply(record, offset=entry.offset, appended_ms=entry.appended_ms)
        wanted = self._by_name.get(record.queue)
        if wanted is None:
            return
        if effect is LeaseEffect.WON:
            wanted.is_challenged = False
            is_same_member = bool(self._instance_id) and record.instance_id == self._instance_id
            # Of a lower generation it is the process before, whose claim was on its way at the assignment.
            is_later = record.holder != self._holder and record.generation >= wanted.generation
            if is_same_member and is_later and wanted.was_caught_up:
                wanted.is_overtaken = True
        elif effect is LeaseEffect.VOID and self._own(record.queue) is not None:
            wanted.is_challenged = self._answers_void_claim()

    def _answers_void_claim(self) -> bool:
        return True

    # --- what it writes -----------------------------------------------------------------------------------------------

    def _write_what_is_due(self, wanted: _Wanted, lease: QueueLease | None, now: float) -> None:
        if wanted.is_writing or now < wanted.not_before or not self._log.is_caught_up:
            return
        if lease is None:
            if self._may_claim(wanted):
                self._write(wanted, LockKind.CLAIM, wanted.generation, None, now)
        elif wanted.is_challenged:
            logger.info("lease.challenged", extra={"queue": wanted.name, "token": lease.token})
            self._write(wanted, LockKind.CLAIM, lease.generation, lease.token, now)
        elif now >= wanted.written_at + self._renewal_s or wanted.remark != wanted.written_remark:
            self._write(wanted, LockKind.RENEWAL, lease.generation, lease.token, now)

    def _may_claim(self, wanted: _Wanted) -> bool:
        if wanted.claim_offset is None:
            return not wanted.is_overtaken or self._may_claim_again(wanted)
        # Its claim must have been read back; only then is it known to be void.
        return self._log.position(wanted.name) > wanted.claim_offset and self._may_claim_again(wanted)

    def _may_claim_again(self, wanted: _Wanted) -> bool:
        lease = self._table.lease(wanted.name)
        if lease is None or lease.holder == self._holder:
            return True
        is_newer = lease.generation > wanted.generation
        is_same_member = bool(self._instance_id) and lease.instance_id == self._instance_id
        if wanted.has_held and (is_newer or is_same_member):
            return False  # the group continued without this process
        return not self._table.is_live_at(lease, self._log.now_ms)

    def _write(self, wanted: _Wanted, kind: LockKind, generation: int, token: int | None, now: float) -> None:
        remark = wanted.remark if kind is LockKind.RENEWAL else ""
        record = LockRecord(kind, wanted.name, generation, self._holder, self._instance_id, token, remark)
        wanted.written_remark = remark
        wanted.is_writing = True
        wanted.written_at = now
        self._log.write(record, on_written=partial(self._written, wanted, kind, now))

    def _written(self, wanted: _Wanted, kind: LockKind, sent_at: float, offset: int | None) -> None:
        wanted.is_writing = False
        # Wait until its effect is read back before the next record; a lost one is not repeated at once.
        wanted.not_before = self._clock() + WRITE_AGAIN_S
        if offset is None:
            wanted.written_at = 0.0
            return
        wanted.sent_at[offset] = sent_at
        if kind is LockKind.CLAIM and wanted.claim_offset is None:
            wanted.claim_offset = offset

    def _release(self, lease: QueueLease) -> None:
        record = LockRecord(
            LockKind.RELEASE, lease.queue, lease.generation, self._holder, self._instance_id, lease.token
        )
        self._log.write(record, on_written=_nobody_waits)

    def _release_what_was_left(self, now: float) -> None:
        for name, until in list(self._leaving.items()):
            lease = self._own(name)
            if lease is not None:
                self._release(lease)
            if lease is not None or now >= until:
                del self._leaving[name]

    def _next_look(self, now: float) -> float:
        """When the next action is due, even if no record arrives."""
        looks = [now + self._renewal_s, *self._leaving.values()]
        for wanted in self._wanted.values():
            if wanted.token is not None and wanted.confirmed_at is not None:
                looks.append(wanted.confirmed_at + self._valid_s)
                is_due = wanted.is_challenged or wanted.remark != wanted.written_remark
                due_at = 0.0 if is_due else wanted.written_at + self._renewal_s
                looks.append(max(due_at, wanted.not_before))
            else:
                looks.append(max(wanted.not_before, now + LOOK_S))
        return min(looks)


LeaseKeeper = LockRegistry | NoLeases  # What decides whether a queue may be processed. The engine's thread drives it.


def _nobody_waits(_offset: int | None) -> None:
    """A lost release does no harm: the lease ends after one expiry."""
