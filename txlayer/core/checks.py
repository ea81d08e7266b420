"""When a producer group is asked about an open transaction, and when asking ends: times, counts, limits per group.

Every transaction has at most one place here: among those that are not due, by time, or among those of its group that
are, the oldest first. Most wait for their first question under one and the same immunity: they come in order, and a
queue of them costs eight bytes each; a heap has the rest. Whatever is settled in between is dropped when its turn
comes. Never here: writing a question.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from heapq import heapify, heappop, heappush

from txlayer.core.transaction import Transaction
from txlayer.core.transitions import TxnState

GAPS_MAX = 10_000
"""Settled transactions that may wait here for their turn, beside as many as there are open ones."""

IMMUNITY_MS_MAX = 7 * 24 * 3_600_000
"""Longest immunity that counts, whatever a half record asks for: no producer of ours asks for more, and a barrier keeps its
rows for so long."""

_OPEN = TxnState.OPEN
_MS = 1000
NEVER_MS = 1 << 62
IDLE_GROUPS_MAX = 1_000
"""With more groups those without anything due are forgotten; half records may name any number of them."""
FORGET_MS = 10_000
"""How often, because it takes a look at all of them."""

_Entry = tuple[int, int, Transaction]  # when, half offset, who


class UnresolvedAction(Enum):
    """What becomes of a transaction that nobody could resolve."""

    PARK = "park"  #: it is kept for a person
    ROLLBACK = "rollback"  #: the coordinator writes a rollback, as an op line like any other


@dataclass(frozen=True, slots=True)
class CheckPolicy:
    """How a producer group is asked."""

    immunity_ms: int = 6_000
    interval_ms: int = 30_000
    interval_max_ms: int = 600_000
    rate_max: int = 250  # questions a second, of one group in one partition
    answered_max: int = 15
    age_max_ms: int = 72 * 3_600_000  # counted from the end of the immunity
    then: UnresolvedAction = UnresolvedAction.PARK
    open_count_max: int = 1_000_000  # of one group in one partition


@dataclass(frozen=True, slots=True)
class CheckPolicies:
    """The policy of each producer group."""

    default: CheckPolicy = field(default_factory=CheckPolicy)
    groups: Mapping[str, CheckPolicy] = field(default_factory=dict)

    @property
    def shortest_immunity_ms(self) -> int:
        """Younger than this nobody is asked, who did not say so."""
        return min(p.immunity_ms for p in (self.default, *self.groups.values()))

    @property
    def smallest_open_count_max(self) -> int:
        """With fewer transactions than this no group has too many."""
        return min(p.open_count_max for p in (self.default, *self.groups.values()))

    def of(self, group: str) -> CheckPolicy:
        """The policy of one group."""
        return self.groups.get(group, self.default)


@dataclass(slots=True)
class _Ready:
    """Those of one group that are due."""

    entries: list[_Entry] = field(default_factory=list)  # a heap, by the end of their age
    allowance: float = 0.0
    counted_at_ms: int = -1


class CheckSchedule:
    """Due times of one partition's open transactions; every change costs O(log n)."""

    def __init__(self, policies: CheckPolicies) -> None:
        self.policies = policies
        self._first: deque[Transaction] = deque()  # never asked, by append time
        self._later: list[_Entry] = []
        self._ready: dict[str, _Ready] = {}
        self._next_end_ms = NEVER_MS  # none of the due ones is too old before that
        self._forgot_at_ms = 0
        self._first_group = 0

    # --- in ---

    def add(self, txn: Transaction) -> None:
        """`txn` is open: it will be asked about, first when its immunity ends, then with growing pauses."""
        first = self._first
        if self._is_ordinary(txn) and (not first or first[-1].appended_ms <= txn.appended_ms):
            first.append(txn)
        else:
            heappush(self._later, self._entry(txn))

    def restore(self, transactions: Iterable[Transaction]) -> None:
        """The same for those that stand on doubt at a restart."""
        for txn in sorted(
            (t for t in transactions if t.state is _OPEN), key=lambda t: t.appended_ms
        ):
            self.add(txn)

    def try_again(self, txn: Transaction, at_ms: int) -> None:
        """What followed when its time came may not have acted: look at it again then."""
        heappush(self._later, (at_ms, txn.first_offset, txn))

    # --- out ---

    def ripen(self, now_ms: int) -> None:
        """Those whose time has come are due."""
        first, immune_after_ms = self._first, now_ms - self.policies.default.immunity_ms
        while first and first[0].appended_ms <= immune_after_ms:
            txn = first.popleft()
            if txn.state is _OPEN:
                self._make_ready(txn)
        later = self._later
        while later and later[0][0] <= now_ms:
            txn = heappop(later)[2]
            if txn.state is not _OPEN:
                continue
            if self._due_ms(txn) > now_ms:  # a person had it asked out of turn
                self.add(txn)
            else:
                self._make_ready(txn)

    def groups_due(self) -> list[str]:
        """Groups that there is something to ask."""
        return [group for group, ready in self._ready.items() if ready.entries]

    @property
    def group_count(self) -> int:
        """Groups that are remembered, those with nothing due among them."""
        return len(self._ready)

    def due_count(self, group: str) -> int:
        """How many of a group are due, some of them settled meanwhile."""
        ready = self._ready.get(group)
        return 0 if ready is None else len(ready.entries)

    def take_overdue(self, now_ms: int, count_max: int) -> list[Transaction]:
        """Those that are too old to be asked about, whether or not their group is there."""
        found: dict[str, Transaction] = {}  # who was asked out of turn may stand here twice
        if now_ms < self._next_end_ms:  # a look at every group, and anybody may invent groups
            return []
        for ready in self._ready.values():
            entries = ready.entries
            while entries and len(found) < count_max and entries[0][0] <= now_ms:
                txn = heappop(entries)[2]
                if txn.state is _OPEN:
                    found[txn.key] = txn
        ends = (ready.entries[0][0] for ready in self._ready.values() if ready.entries)
        self._next_end_ms = min(ends, default=NEVER_MS)
        return list(found.values())

    def take(self, now_ms: int, present: Collection[str], count_max: int) -> list[Transaction]:
        """Whom to ask about now: of each group that is there its share, at most `rate_max` a second."""
        if len(self._ready) > IDLE_GROUPS_MAX and now_ms - self._forgot_at_ms >= FORGET_MS:
            self._forget_idle_groups(now_ms)
        # Whoever is there has joined a group that brokers let nobody else join; due is who is named by any half record.
        groups = sorted(g for g in present if g in self._ready and self._ready[g].entries)
        found: list[Transaction] = []
        if not groups:
            return found
        # Who is first changes, or the last one would get what the others leave.
        self._first_group = (self._first_group + 1) % len(groups)
        groups = groups[self._first_group :] + groups[: self._first_group]
        share = max(1, count_max // len(groups))
        for group in groups:
            room = min(share, count_max - len(found))
            found.extend(self._take_of(group, now_ms, room))
        return found

    def is_out_of_answers(self, txn: Transaction) -> bool:
        """True when so many questions were answered with unknown that nobody is asked again."""
        answered_count = 0 if txn.more is None else txn.more.answered_count
        return answered_count >= self.policies.of(txn.group).answered_max

    def tidy(self, open_count: int) -> None:
        """Drop those that were settled while they waited, when they are the most."""
        if len(self) > 2 * open_count + GAPS_MAX:
            self._first = deque(txn for txn in self._first if txn.state is _OPEN)
            self._later = [entry for entry in self._later if entry[2].state is _OPEN]
            heapify(self._later)

    def __len__(self) -> int:
        """How many wait for their time, the settled among them."""
        return len(self._first) + len(self._later)

    # --- within ---

    def _is_ordinary(self, txn: Transaction) -> bool:
        """True when it waits for its first question, and so long as most do."""
        more = txn.more
        if txn.options.immunity_ms is not None or (more is not None and more.checked_count):
            return False
        return not self.policies.groups or txn.group not in self.policies.groups

    def _entry(self, txn: Transaction) -> _Entry:
        return self._due_ms(txn), txn.first_offset, txn

    def _due_ms(self, txn: Transaction) -> int:
        policy, more = self.policies.of(txn.group), txn.more
        immune_until_ms = txn.appended_ms + immunity_of(txn, policy)
        if more is None or not more.checked_count:
            return immune_until_ms
        due_ms = more.asked_ms + pause_after(more.checked_count, policy)
        # Its age ends, too: then it is due, asked or not.
        return min(due_ms, immune_until_ms + policy.age_max_ms)

    def _make_ready(self, txn: Transaction) -> None:
        policy = self.policies.of(txn.group)
        end_ms = txn.appended_ms + immunity_of(txn, policy) + policy.age_max_ms
        ready = self._ready.setdefault(txn.group, _Ready())
        heappush(ready.entries, (end_ms, txn.first_offset, txn))
        self._next_end_ms = min(self._next_end_ms, end_ms)

    def _forget_idle_groups(self, now_ms: int) -> None:
        """Those with nothing due, whose share of questions is whole again: a new one begins with the same."""
        self._ready = {
            group: ready
            for group, ready in self._ready.items()
            if ready.entries or now_ms - ready.counted_at_ms < _MS
        }
        self._forgot_at_ms = now_ms

    def _take_of(self, group: str, now_ms: int, count_max: int) -> list[Transaction]:
        ready, rate = self._ready[group], self.policies.of(group).rate_max
        if ready.counted_at_ms < 0:
            ready.allowance = rate
        else:
            gained = rate * max(0, now_ms - ready.counted_at_ms) / _MS
            ready.allowance = min(rate, ready.allowance + gained)
        ready.counted_at_ms = max(now_ms, ready.counted_at_ms)
        found: dict[str, Transaction] = {}
        entries = ready.entries
        while entries and len(found) < count_max and ready.allowance >= 1:
            txn = heappop(entries)[2]
            if txn.state is not _OPEN or txn.key in found:
                continue
            if self._due_ms(txn) > now_ms:
                self.add(txn)
                continue
            ready.allowance -= 1
            found[txn.key] = txn
        if not entries:
            ready.entries = []  # a heap keeps the room of its largest day
        return list(found.values())


def immunity_of(txn: Transaction, policy: CheckPolicy) -> int:
    """Milliseconds after its append in which nobody is asked: its own, else its group's."""
    own = txn.options.immunity_ms
    return policy.immunity_ms if own is None else min(own, IMMUNITY_MS_MAX)


def pause_after(checked_count: int, policy: CheckPolicy) -> int:
    """Milliseconds between the question of this number and the next: doubling, up to the longest."""
    doublings = min(checked_count - 1, 40)
    return min(policy.interval_ms << doublings, policy.interval_max_ms)


def is_undecided(txn: Transaction, policy: CheckPolicy, now_ms: int) -> bool:
    """True when members of its group were asked about it and did not decide: they said unknown, or nothing in time."""
    more = txn.more
    if more is None or not more.checked_count or txn.state is not _OPEN:
        return False
    is_old = more.checked_count > 1 or more.answered_count > 0
    return is_old or now_ms - more.asked_ms >= policy.interval_ms


def groups_over_limit(
    transactions: Iterable[Transaction],
    policies: CheckPolicies,
    *,
    now_ms: int,
    limited: Collection[str],
    asleep: Mapping[str, tuple[int, int]],
) -> dict[str, int]:
    """{group: open transactions} of the groups that have too many, and whose own members do not decide them.

    Half records name any group, questions go to members alone. So a group that decides what it is asked about has never too
    many, whoever invents them. Of very many the rate lets not even all be asked: half as many undecided ones as can be
    asked about in one interval say as much. `asleep` counts, by group, open ones that are not among `transactions`, and those of
    them that were asked about. Who is limited stays so until a tenth of the room is free, so that nobody is let in and refused by turns.
    """
    counts = {group: [*count] for group, count in asleep.items()}
    for txn in transactions:
        if txn.state is _OPEN:
            count = counts.setdefault(txn.group, [0, 0])
            count[0] += 1
            count[1] += is_undecided(txn, policies.of(txn.group), now_ms)
    over = {}
    for group, (open_count, undecided_count) in counts.items():
        policy = policies.of(group)
        limit = policy.open_count_max
        enough = max(1, min(limit, policy.rate_max * policy.interval_ms // (2 * _MS)))
        if group in limited:
            limit, enough = limit - limit // 10, enough - enough // 10
        if open_count >= limit and undecided_count >= enough:
            over[group] = open_count
    return over
