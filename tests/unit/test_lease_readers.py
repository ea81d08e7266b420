"""A reader that begins ten expiries ago agrees with one that read everything, whatever members that keep the rules went through."""

import random
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.lock_stage import holding
from tests.support.naive_leases import Entry
from txlayer.core.leases import HISTORY_EXPIRY_COUNT, LeaseEffect, LeaseTable, LockKind, LockRecord, QueueLease

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
        is_free = holding(member.table, QUEUE, at_ms=self.now_ms) is None
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


MEMBER_COUNT = 3
ACTS = ("act", "act", "act", "assign", "recreate", "crash", "send_blindly", "arrive", "release")

Step = tuple[str, int, int]
STEPS = st.tuples(
    st.sampled_from(ACTS),
    st.integers(0, MEMBER_COUNT - 1),
    st.sampled_from([0, 1_000, 10_000, 25_000, EXPIRY_MS, EXPIRY_MS + 1_000]),
)


def holder(lease: QueueLease | None) -> tuple[str, int] | None:
    return None if lease is None else (lease.holder, lease.token)


def disagreement(society: Society) -> str:
    """What a new reader and one that read everything say at the end of the log, if it is not the same."""
    if not society.log:
        return ""
    at_ms = society.log[-1].appended_ms
    start = society.begins_at()
    everything = holder(holding(society.fold(0), QUEUE, at_ms=at_ms))
    late = holder(holding(society.fold(start), QUEUE, at_ms=at_ms))
    return "" if everything == late else f"at {society.log[-1]}: {everything}, {late} from {start}"


def run(steps: list[Step], society: Society) -> str:
    """The first disagreement at any position of the log."""
    for act, place, wait_ms in steps:
        society.wait(wait_ms)
        before = len(society.log)
        getattr(society, act)(place)
        if len(society.log) > before and (found := disagreement(society)):
            return found
    return ""


@given(st.lists(STEPS, max_size=60))
@pytest.mark.promise("P10")
def test_a_reader_that_begins_ten_expiries_ago_agrees(steps: list[Step]) -> None:
    assert "" == run(steps, Society(MEMBER_COUNT))


def unruly_run(seed: int, society: Society) -> str:
    """Hours of a group in which something happens all the time."""
    dice = random.Random(seed)
    waits = [0, 500, 5_000, 15_000, 25_000, EXPIRY_MS + 1_000]
    steps = [
        (dice.choice(ACTS), dice.randrange(MEMBER_COUNT), dice.choices(waits, [5, 5, 8, 8, 2, 1])[0])
        for _ in range(400)
    ]
    return run(steps, society)


def calm_run(seed: int, society: Society) -> str:
    """Hours in which a holder stays for long, and something happens now and then."""
    dice = random.Random(seed)
    steps: list[Step] = []
    for _ in range(300):
        if dice.random() < 0.05:
            steps.append((dice.choice(ACTS), dice.randrange(MEMBER_COUNT), dice.randrange(15_000)))
        steps += [("act", place, dice.randrange(10_000)) for place in range(MEMBER_COUNT)]
    return run(steps, society)


RUNS = [unruly_run, calm_run]


@pytest.mark.parametrize("run", RUNS)
@pytest.mark.parametrize("seed", [*range(8), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(8, 20))])
@pytest.mark.promise("P10")
def test_it_agrees_through_hours_of_a_group(run: Callable[[int, Society], str], seed: int) -> None:
    assert "" == run(seed, Society(MEMBER_COUNT))


# --- the guards -------------------------------------------------------------------------------------------------------


class Silent(Society):
    """Holders do not answer void claims."""

    answers_void_claims = False


class Unbelieving(LeaseTable):
    """A table that takes no other's word for a claim that it did not see win."""

    def apply(self, record: LockRecord, *, offset: int, appended_ms: int) -> LeaseEffect:
        lease = self.lease(record.queue)
        if record.kind is not LockKind.CLAIM and lease and (record.token or 0) > lease.token:
            return LeaseEffect.STALE
        return super().apply(record, offset=offset, appended_ms=appended_ms)


class Unbelieved(Society):
    """Readers believe in no renewal of a lease that they do not know."""

    table = Unbelieving


class Hasty(Society):
    """A new reader begins two expiries ago."""

    history_expiry_count = 2


@pytest.mark.parametrize("society", [Silent, Unbelieved, Hasty])
def test_without_its_guard_some_reader_does_not_agree(society: type[Society]) -> None:
    # The first two show it today.
    runs = (run(seed, society(MEMBER_COUNT)) for seed in (1, 21, *range(60)) for run in RUNS)

    assert any(runs)
