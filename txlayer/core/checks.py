"""Schedules check-backs: when a transaction's immunity ends (`immune_until_ms`), when its group is asked, and when asking ends.

A transaction waits for its time, or it is due. Most wait for their first check-back with the same immunity: they arrive in
order, in a queue that takes eight bytes each. A heap has the rest. Due ones are in a heap for each group, the oldest first. A
transaction that is settled meanwhile is removed when its turn comes, or earlier when most are settled. The ledger writes the check-backs.
"""

from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush

from txlayer.core.ledger.transaction import Transaction
from txlayer.core.ledger.transitions import TxnState
from txlayer.core.messages import UnresolvedAction

CLOCK_ERROR_MS = 60_000
"""Maximum trusted difference between clocks. Beyond it, the user's own times are wrong by more than a grace."""
GAPS_MAX = 10_000  # settled transactions that may stay here, waiting or due, in addition to as many as are open
IMMUNITY_MS_MAX = 7 * 24 * 3_600_000
"""Longest immunity that counts, whatever a half record contains. txlayer's producers ask for no more, and a barrier keeps its
rows for this time."""

_OPEN = TxnState.OPEN
_MS = 1000
NEVER_MS = 1 << 62  # later than any time
IDLE_GROUPS_MAX = 1_000
"""Above this number, groups with nothing unsettled that is due are dropped; half records may name any number of groups."""
FORGET_MS = 10_000  # interval for dropping them, because it scans all groups

_Entry = tuple[int, int, Transaction]  # time, half offset, transaction


@dataclass(frozen=True, slots=True)
class CheckPolicy:
    """Check-back settings of a producer group."""

    check_immunity_ms: int = 6_000
    check_interval_ms: int = 30_000
    check_interval_max_ms: int = 600_000
    check_rate_max: int = 250  # check-backs per second, for one group in one partition
    check_max: int = 15
    transaction_age_max_ms: int = 72 * 3_600_000  # counted from the end of the immunity
    unresolved: UnresolvedAction = UnresolvedAction.PARK
    open_count_max: int = 1_000_000  # of one group in one partition


@dataclass(frozen=True, slots=True)
class CheckPolicies:
    """The policy of each producer group."""

    default: CheckPolicy = field(default_factory=CheckPolicy)
    groups: Mapping[str, CheckPolicy] = field(default_factory=dict)

    @property
    def shortest_immunity_ms(self) -> int:
        """No transaction younger than this is asked about, unless its producer set a shorter immunity."""
        return min(p.check_immunity_ms for p in (self.default, *self.groups.values()))

    @property
    def smallest_open_count_max(self) -> int:
        """With fewer transactions than this, no group has too many."""
        return min(p.open_count_max for p in (self.default, *self.groups.values()))

    def of(self, group: str) -> CheckPolicy:
        return self.groups.get(group, self.default)


@dataclass(slots=True)
class _Ready:
    """The due transactions of one group."""

    entries: list[_Entry] = field(default_factory=list)  # a heap, by the end of their age
    allowance: float = 0.0
    counted_at_ms: int = -1


NOTICE_PAUSE_MAX_MS = 24 * 3_600_000  # longest pause between two notices of one parked transaction
NOTICE_LOOK_MS = 400  # shortest time between two looks for notices: time may go on more often than every half second


class ParkedNotices:
    """When producer groups hear of their parked transactions: at once, then with growing pauses as long as they stay parked.

    It is in memory only. After a restart the groups hear of them again.
    """

    def __init__(self, policies: CheckPolicies) -> None:
        self._policies = policies
        self._entries: dict[str, list[tuple[int, str, int]]] = {}  # group → heap of (time, key, notices so far)
        self._count = 0  # of all groups: half records may invent very many, and none of those has members
        self._now_ms = 0
        self._told_ms = -NOTICE_LOOK_MS

    def add(self, group: str, key: str) -> None:
        heappush(self._entries.setdefault(group, []), (0, key, 0))
        self._count += 1

    def __len__(self) -> int:
        return self._count

    def groups_due(self) -> list[str]:
        return [group for group, entries in self._entries.items() if entries[0][0] <= self._now_ms]

    def take(
        self, now_ms: int, present: Collection[str], *, is_parked: Callable[[str], bool], open_count: int
    ) -> list[tuple[str, int]]:
        """(key, number of the notice) of each that its group hears of now: of one group at most half of `check_rate_max`."""
        self._now_ms = now_ms
        found: list[tuple[str, int]] = []
        if now_ms - self._told_ms < NOTICE_LOOK_MS:
            return found
        for group in sorted(self._entries.keys() & set(present)):
            entries, policy = self._entries[group], self._policies.of(group)
            room = max(1, policy.check_rate_max // 2)
            while entries and entries[0][0] <= now_ms and room:
                _, key, count = heappop(entries)
                self._count -= 1
                if is_parked(key):
                    pause_ms = min(policy.check_interval_max_ms << min(count, 40), NOTICE_PAUSE_MAX_MS)
                    heappush(entries, (now_ms + pause_ms, key, count + 1))
                    self._count += 1
                    found.append((key, count + 1))
                    room -= 1
            if not entries:
                del self._entries[group]
        if self._count > 2 * open_count + GAPS_MAX:  # most are settled meanwhile
            for entries in self._entries.values():
                entries[:] = [entry for entry in entries if is_parked(entry[1])]
                heapify(entries)
            self._entries = {group: entries for group, entries in self._entries.items() if entries}
            self._count = sum(map(len, self._entries.values()))
        if found:
            self._told_ms = now_ms
        return found


class CheckSchedule:
    """Due times of one partition's open transactions. Every change costs O(log n)."""

    def __init__(self, policies: CheckPolicies) -> None:
        self.policies = policies
        self.notices = ParkedNotices(policies)
        self._first: deque[Transaction] = deque()  # never asked, by append time
        self._later: list[_Entry] = []
        self._ready: dict[str, _Ready] = {}
        self._ready_count = 0  # entries of all groups
        self._next_end_ms = NEVER_MS  # none of the due ones is too old before that
        self._forgot_at_ms = 0
        self._first_group = 0

    # --- in ---

    def add(self, txn: Transaction) -> None:
        """Schedule an open transaction: its first check-back when its immunity ends, then with growing pauses."""
        first = self._first
        if self._is_ordinary(txn) and (not first or first[-1].appended_ms <= txn.appended_ms):
            first.append(txn)
        else:
            heappush(self._later, self._entry(txn))

    def restore(self, transactions: Iterable[Transaction]) -> None:
        """Schedule the open transactions that are on doubt at a restart, and notices of the parked ones."""
        transactions = list(transactions)
        for txn in transactions:
            if txn.state is TxnState.PARKED and txn.seen:
                self.notices.add(txn.group, txn.key)
        for txn in sorted((t for t in transactions if t.state is _OPEN), key=lambda t: t.appended_ms):
            self.add(txn)

    def try_again(self, txn: Transaction, at_ms: int) -> None:
        """Look at `txn` again at `at_ms`: what was done at its time may have had no effect."""
        heappush(self._later, (at_ms, txn.first_offset, txn))

    # --- out ---

    def ripen(self, now_ms: int) -> None:
        """Move transactions whose time has come to the due ones."""
        first, immune_after_ms = self._first, now_ms - self.policies.default.check_immunity_ms
        while first and first[0].appended_ms <= immune_after_ms:
            txn = first.popleft()
            if txn.state is _OPEN:
                self._make_ready(txn)
        later = self._later
        while later and later[0][0] <= now_ms:
            txn = heappop(later)[2]
            if txn.state is not _OPEN:
                continue
            if self._due_ms(txn) > now_ms:  # an operator had it asked out of turn
                self.add(txn)
            else:
                self._make_ready(txn)

    def groups_due(self) -> list[str]:
        """Groups with due transactions, or that are to hear of a parked one."""
        return [*(group for group, ready in self._ready.items() if ready.entries), *self.notices.groups_due()]

    @property
    def group_count(self) -> int:
        """Number of known groups, with or without due transactions."""
        return len(self._ready)

    def due_count(self, group: str) -> int:
        """Number of due transactions of a group; some may be settled meanwhile."""
        ready = self._ready.get(group)
        return 0 if ready is None else len(ready.entries)

    def take_overdue(self, now_ms: int, count_max: int) -> list[Transaction]:
        """Remove and return transactions that are too old to be asked about, whether or not their group has members."""
        found: dict[str, Transaction] = {}  # one that was asked out of turn may occur twice
        if now_ms < self._next_end_ms:  # scans every group, and half records may invent groups
            return []
        for ready in self._ready.values():
            entries = ready.entries
            while entries and len(found) < count_max and entries[0][0] <= now_ms:
                txn = heappop(entries)[2]
                self._ready_count -= 1
                if txn.state is _OPEN:
                    found[txn.key] = txn
        ends = (ready.entries[0][0] for ready in self._ready.values() if ready.entries)
        self._next_end_ms = min(ends, default=NEVER_MS)
        return list(found.values())

    def take(self, now_ms: int, present: Collection[str], count_max: int) -> list[Transaction]:
        """Remove and return the transactions to ask about now: a share for each present group, at most `check_rate_max` per second."""
        if len(self._ready) > IDLE_GROUPS_MAX and now_ms - self._forgot_at_ms >= FORGET_MS:
            self._forget_idle_groups(now_ms)
        # A present group has members that brokers authorised; a due group may come from any half record.
        groups = sorted(g for g in present if g in self._ready and self._ready[g].entries)
        found: list[Transaction] = []
        if not groups:
            return found
        # The first group changes each time; otherwise the last one would get only what the others leave.
        self._first_group = (self._first_group + 1) % len(groups)
        groups = groups[self._first_group :] + groups[: self._first_group]
        share = max(1, count_max // len(groups))
        for group in groups:
            room = min(share, count_max - len(found))
            found.extend(self._take_of(group, now_ms, room))
        return found

    def is_out_of_answers(self, txn: Transaction) -> bool:
        """True if so many check-backs were answered with unknown that no further one is sent."""
        answered_count = 0 if txn.extras is None else txn.extras.answered_count
        return answered_count >= self.policies.of(txn.group).check_max

    def tidy(self, open_count: int) -> None:
        """Remove settled transactions if they are the majority: each look at all of them is paid for by as many new ones."""
        if len(self) + self._ready_count > 2 * open_count + GAPS_MAX:
            self._first = deque(txn for txn in self._first if txn.state is _OPEN)
            self._later = [entry for entry in self._later if entry[2].state is _OPEN]
            heapify(self._later)
            for ready in self._ready.values():
                ready.entries = [entry for entry in ready.entries if entry[2].state is _OPEN]
                heapify(ready.entries)
            self._ready_count = sum(len(ready.entries) for ready in self._ready.values())

    def __len__(self) -> int:
        """Number of transactions that wait for their time, including settled ones."""
        return len(self._first) + len(self._later)

    # --- within ---

    def _is_ordinary(self, txn: Transaction) -> bool:
        """True if it waits for its first check-back with the default immunity."""
        extras = txn.extras
        if txn.options.immunity_ms is not None or (extras is not None and extras.checked_count):
            return False
        return not self.policies.groups or txn.group not in self.policies.groups

    def _entry(self, txn: Transaction) -> _Entry:
        return self._due_ms(txn), txn.first_offset, txn

    def _due_ms(self, txn: Transaction) -> int:
        policy, extras = self.policies.of(txn.group), txn.extras
        immune_ms = immune_until_ms(txn, policy)
        if extras is None or not extras.checked_count:
            return immune_ms
        due_ms = extras.asked_ms + pause_after(extras.checked_count, policy)
        # When its age ends it is due, too, asked or not.
        return min(due_ms, immune_ms + policy.transaction_age_max_ms)

    def _make_ready(self, txn: Transaction) -> None:
        policy = self.policies.of(txn.group)
        end_ms = immune_until_ms(txn, policy) + policy.transaction_age_max_ms
        ready = self._ready.setdefault(txn.group, _Ready())
        heappush(ready.entries, (end_ms, txn.first_offset, txn))
        self._ready_count += 1
        self._next_end_ms = min(self._next_end_ms, end_ms)

    def _forget_idle_groups(self, now_ms: int) -> None:
        """Drop groups with nothing unsettled and a full allowance: a new entry begins with the same one."""
        for ready in self._ready.values():
            # From the oldest to the first open one: so a group with none is emptied, and no entry is looked at twice.
            while ready.entries and ready.entries[0][2].state is not _OPEN:
                heappop(ready.entries)
                self._ready_count -= 1
        self._ready = {
            group: ready for group, ready in self._ready.items() if ready.entries or now_ms - ready.counted_at_ms < _MS
        }
        self._forgot_at_ms = now_ms

    def _take_of(self, group: str, now_ms: int, count_max: int) -> list[Transaction]:
        ready, rate = self._ready[group], self.policies.of(group).check_rate_max
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
            self._ready_count -= 1
            if txn.state is not _OPEN or txn.key in found:
                continue
            if self._due_ms(txn) > now_ms:
                self.add(txn)
                continue
            ready.allowance -= 1
            found[txn.key] = txn
        if not entries:
            ready.entries = []  # a heap keeps the memory of its maximum
        return list(found.values())


def immune_until_ms(txn: Transaction, policy: CheckPolicy) -> int:
    """When the immunity ends in which nobody is asked about `txn`: its own, or its group's, after its append.

    Of many with the group's, `CheckSchedule.ripen`, `UnsettledInHalf.end_immunity` and `DormantTransactions.begin` add it themselves.
    """
    own_ms = txn.options.immunity_ms
    return txn.appended_ms + (policy.check_immunity_ms if own_ms is None else min(own_ms, IMMUNITY_MS_MAX))


def pause_after(checked_count: int, policy: CheckPolicy) -> int:
    """Milliseconds between the check-back of this number and the next: doubling, up to the maximum."""
    doublings = min(checked_count - 1, 40)
    return min(policy.check_interval_ms << doublings, policy.check_interval_max_ms)


def is_undecided(txn: Transaction, policy: CheckPolicy, now_ms: int) -> bool:
    """True if members of its group were asked and did not decide: they answered unknown, or not in time."""
    extras = txn.extras
    if extras is None or not extras.checked_count or txn.state is not _OPEN:
        return False
    is_old = extras.checked_count > 1 or extras.answered_count > 0
    return is_old or now_ms - extras.asked_ms >= policy.check_interval_ms


LIMIT_LOOK_MS = 10_000
"""Interval at which open transactions are counted when there are very many, and at which a limit is sent again."""


class OpenLimits:
    """The producer groups of one partition that have too many open transactions, and how many."""

    def __init__(self) -> None:
        self.groups: dict[str, int] = {}
        self._looked_at_ms = 0

    def look(
        self,
        transactions: Collection[Transaction],
        policies: CheckPolicies,
        *,
        now_ms: int,
        dormant: Mapping[str, tuple[int, int]],
        open_count: int,
    ) -> list[tuple[str, int, bool]]:
        """Groups to tell: how many are open, 0 if they are not too many any more, and whether that is new.

        Looks once in `LIMIT_LOOK_MS`. `dormant`: see `groups_over_limit`. `open_count`: of all transactions.
        """
        if now_ms - self._looked_at_ms < LIMIT_LOOK_MS:
            return []
        self._looked_at_ms = now_ms
        before, over = self.groups, dict[str, int]()
        if before or open_count >= policies.smallest_open_count_max:
            over = groups_over_limit(transactions, policies, now_ms=now_ms, limited=before.keys(), dormant=dormant)
        self.groups = over
        return [(group, over.get(group, 0), (group in over) is not (group in before)) for group in {**before, **over}]


def groups_over_limit(
    transactions: Iterable[Transaction],
    policies: CheckPolicies,
    *,
    now_ms: int,
    limited: Collection[str],
    dormant: Mapping[str, tuple[int, int]],
) -> dict[str, int]:
    """{group: open transactions} of the groups that have too many and whose members do not decide them.

    Half records may name any group, but check-backs go to members only. So a group that decides what it is asked about never
    has too many, whichever principal writes half records in its name. With very many, the rate does not allow asking about all of them:
    half as many undecided ones as can be asked about in one interval are sufficient evidence. `dormant` counts, by group, open
    transactions that are not in `transactions`, and those of them with a check-back. A limited group stays limited until a tenth
    of the limit is free, so that it does not alternate between accepting and refusing.
    """
    counts = {group: [*count] for group, count in dormant.items()}
    for txn in transactions:
        if txn.state is _OPEN:
            count = counts.setdefault(txn.group, [0, 0])
            count[0] += 1
            count[1] += is_undecided(txn, policies.of(txn.group), now_ms)
    over = {}
    for group, (open_count, undecided_count) in counts.items():
        policy = policies.of(group)
        limit = policy.open_count_max
        enough = max(1, min(limit, policy.check_rate_max * policy.check_interval_ms // (2 * _MS)))
        if group in limited:
            limit, enough = limit - limit // 10, enough - enough // 10
        if open_count >= limit and undecided_count >= enough:
            over[group] = open_count
    return over
