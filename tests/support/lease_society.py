"""Members of a group that hold one queue by the rules, each as late, frozen or dead as a schedule wants it.

No clock and no Kafka: one list of records, and every member's own fold of it.
"""

from dataclasses import dataclass, field

from tests.support.naive_leases import Entry
from txlayer.core.leases import HISTORY_EXPIRY_COUNT, LeaseEffect, LeaseTable, LockKind, LockRecord

EXPIRY_MS = 60_000
RENEWAL_MS = 20_000
MESSAGE_TIMEOUT_MS = 30_000
QUEUE = "loyalty/orders/3"


@dataclass
class Member:
    """A process."""

    name: str
    table: LeaseTable
    position: int
    generation: int | None = None
    claimed_ms: int | None = None
    has_claimed: bool = False
    renewed_ms: int = 0
    saw_void: bool = False
    under_way: list[tuple[int, LockRecord]] = field(default_factory=list)

    @property
    def token(self) -> int | None:
        """Of the lease that it thinks it has."""
        lease = self.table.lease(QUEUE)
        is_own = lease is not None and lease.holder == self.name and not lease.is_released
        return lease.token if lease is not None and is_own else None


class Society:
    """One queue's log and its members."""

    answers_void_claims = True
    history_expiry_count = HISTORY_EXPIRY_COUNT
    table = LeaseTable

    def __init__(self, member_count: int) -> None:
        self.log: list[Entry] = []
        self.now_ms = 0
        self.generation = 0
        self.process_count = 0
        self.members = [self._process() for _ in range(member_count)]

    def begins_at(self) -> int:
        """The place in the log from which a new reader folds."""
        if not self.log:
            return 0
        since_ms = self.log[-1].appended_ms - self.history_expiry_count * EXPIRY_MS
        return next(n for n, entry in enumerate(self.log) if entry.appended_ms >= since_ms)

    def fold(self, start: int) -> LeaseTable:
        """A reader's table at the end of the log."""
        table = self.table(expiry_ms=EXPIRY_MS)
        for offset, at_ms, record in self.log[start:]:
            table.apply(record, offset=offset, appended_ms=at_ms)
        return table

    def wait(self, ms: int) -> None:
        """Time passes."""
        self.now_ms += ms

    def assign(self, place: int) -> None:
        """The group gives the queue to a member; whoever had it is not told before it asks."""
        self.generation += 1
        member = self.members[place]
        member.generation, member.has_claimed = self.generation, False
        self.act(place)

    def recreate(self, place: int) -> None:
        """Somebody deleted the group: its generations begin anew."""
        self.generation = 0
        self.assign(place)

    def crash(self, place: int) -> None:
        """A new process in its place; what is under way still arrives."""
        gone = self.members[place].under_way
        self.members[place] = self._process()
        self.members[place].under_way = gone

    def send_blindly(self, place: int) -> None:
        """A renewal that was due leaves the process, and arrives when it may."""
        member = self.members[place]
        token = member.token
        if token is not None and self.now_ms - member.renewed_ms < EXPIRY_MS:
            renewal = self._record(member, LockKind.RENEWAL, token)
            member.under_way.append((self.now_ms, renewal))

    def arrive(self, place: int) -> None:
        """What is under way from a member is appended, if it is not too old."""
        member = self.members[place]
        for sent_ms, record in member.under_way:
            if self.now_ms - sent_ms < MESSAGE_TIMEOUT_MS:
                self._append(record)
        member.under_way = []

    def release(self, place: int) -> None:
        """A member gives the queue back."""
        member = self.members[place]
        token = member.token
        member.generation = None
        if token is not None:
            self._append(self._record(member, LockKind.RELEASE, token))

    def act(self, place: int) -> None:
        """A member reads everything and does what is due."""
        member = self.members[place]
        self._read(member)
        token = member.token
        if member.generation is None:
            return
        is_free = member.table.holding(QUEUE, at_ms=self.now_ms) is None
        if not member.has_claimed or (token is None and is_free):
            member.has_claimed = True
            self._append(self._record(member, LockKind.CLAIM, None))
        elif token is None:
            return
        elif member.saw_void and self.answers_void_claims:
            self._append(self._record(member, LockKind.CLAIM, token))
        elif self.now_ms - member.renewed_ms >= RENEWAL_MS:
            self._append(self._record(member, LockKind.RENEWAL, token))
        self._read(member)

    def _read(self, member: Member) -> None:
        member.saw_void = False
        for offset, at_ms, record in self.log[member.position :]:
            effect = member.table.apply(record, offset=offset, appended_ms=at_ms)
            if record.holder == member.name and effect in (LeaseEffect.WON, LeaseEffect.RENEWED):
                member.renewed_ms = at_ms
                member.saw_void = False
            elif effect is LeaseEffect.VOID and member.token is not None:
                member.saw_void = True
        member.position = len(self.log)

    def _record(self, member: Member, kind: LockKind, token: int | None) -> LockRecord:
        lease = member.table.lease(QUEUE)
        generation = member.generation or 0
        if lease is not None and token is not None:
            generation = lease.generation
        return LockRecord(kind, QUEUE, generation, member.name, token=token)

    def _append(self, record: LockRecord) -> None:
        self.log.append(Entry(len(self.log), self.now_ms, record))

    def _process(self) -> Member:
        self.process_count += 1
        table = self.fold(self.begins_at())
        return Member(f"process-{self.process_count}", table, len(self.log))
