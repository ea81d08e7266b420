"""What may be seen of a coordinator from outside: its figures and its health. Never changing anything.

Read by the threads that answer scrapes and probes, while the loop works. Every look is bounded: of very many open
transactions an even sample is looked at, and not more often than every few seconds.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import chain
from typing import NamedTuple

from txlayer.adapters.meters import OTHER, Health, Sample, everybodys, with_few_labels
from txlayer.adapters.ports import Assignment
from txlayer.config import SystemTopics
from txlayer.coordinator import families as f
from txlayer.coordinator.measures import Measures
from txlayer.coordinator.shard import Shard
from txlayer.core.asleep import transaction_of
from txlayer.core.ledger import Ledger
from txlayer.core.messages import Resolution
from txlayer.core.target import Target
from txlayer.core.transaction import Transaction
from txlayer.core.transitions import TxnState

STALL_S = 60.0
"""A loop that has not turned for so long hangs: the slowest turn that may still end well waits 10 s for records, 10 s for
offsets and 20 s for a commit."""

LOOK_COUNT_MAX = 20_000
"""Transactions of one partition that one look goes through; of more an even sample, each standing for its neighbours."""

SLEEPER_COUNT_MAX = 1_000
"""The same of those that sleep: each has to be decoded for it."""

LOOK_EVERY_S = 10.0
"""How long the ages of very many open transactions are believed; with fewer than `LOOK_COUNT_MAX` they are always new."""

AGES = (("10s", 10), ("1m", 60), ("10m", 600), ("1h", 3_600), ("1d", 86_400))
"""(label, younger than so many seconds)."""
OLDER = "older"

_STANDING = (TxnState.WAITING, TxnState.HELD, TxnState.PARKED, TxnState.PARKED_COMMITTED)


class View(NamedTuple):
    """One moment of a coordinator; what it refers to goes on changing."""

    namespace: str
    measures: Measures
    shards: Mapping[int, Shard]
    assignment: Assignment | None
    targets: Mapping[str, Target]


@dataclass(slots=True)
class Ages:
    """The transactions that are not settled, counted."""

    open_by_group: dict[str, dict[str, int]] = field(default_factory=dict)
    """{age: {producer group: how many are undecided}}."""
    by_state: dict[TxnState, int] = field(default_factory=dict)
    oldest_open_ms: int = 0

    def add(self, txn: Transaction, count: int, now_ms: int) -> None:
        """`txn` stands for `count`."""
        state = txn.state
        if state is not TxnState.OPEN:
            self.by_state[state] = self.by_state.get(state, 0) + count
            return
        age_ms = max(now_ms - txn.appended_ms, 0)
        self.oldest_open_ms = max(self.oldest_open_ms, age_ms)
        groups = self.open_by_group.setdefault(age_label(age_ms), {})
        groups[txn.group] = groups.get(txn.group, 0) + count


def age_label(age_ms: int) -> str:
    """Which of `AGES` it is."""
    return next((label for label, limit_s in AGES if age_ms < limit_s * 1000), OLDER)


def ages_of(shards: Iterable[Shard]) -> Ages:
    """A look at all that is not settled; the loop may go on meanwhile."""
    ages = Ages()
    for shard in shards:
        ledger, now_ms = shard.ledger, shard.time.peek_ms()
        awake = ledger.transactions.snapshot()
        step = len(awake) // LOOK_COUNT_MAX + 1
        for number in range(0, len(awake), step):
            ages.add(awake[number], min(step, len(awake) - number), now_ms)
        # list() of a dict's items is one step for the interpreter: the loop cannot change it in between.
        asleep = list(ledger.asleep.sleepers.items())
        step = len(asleep) // SLEEPER_COUNT_MAX + 1
        for number in range(0, len(asleep), step):
            txn = transaction_of(*asleep[number])
            ages.add(txn, min(step, len(asleep) - number), now_ms)
    return ages


class ObservedCoordinator:
    """A coordinator for whoever scrapes and probes. Any thread may ask.

    Args:
        look: the coordinator's `view`.
        version: of txlayer.
        clock: monotonic seconds, the same as the coordinator's.
        wall_clock: seconds since 1970.
    """

    def __init__(
        self,
        look: Callable[[], View],
        *,
        version: str,
        clock: Callable[[], float] = time.monotonic,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        self._look = look
        self._wall_clock = wall_clock
        self._version = version
        self._clock = clock
        self._ages = Ages()
        self._looked_at = float("-inf")

    def health(self) -> Health:
        """Alive while the loop turns; ready when its partitions have been read to the ends taken at their assignment."""
        return health_of(self._look(), now=self._clock())

    def samples(self) -> Iterator[Sample]:
        """Every figure."""
        view, now = self._look(), self._clock()
        ledgers = [shard.ledger for shard in view.shards.values()]
        is_small = sum(ledger.open_count for ledger in ledgers) < LOOK_COUNT_MAX
        if is_small or now - self._looked_at >= LOOK_EVERY_S:
            self._ages, self._looked_at = ages_of(view.shards.values()), now
        health = health_of(view, now=now)
        return chain(
            everybodys(health, role="coordinator", version=self._version, name=view.namespace),
            _counts(view.measures),
            _times(view.measures, to_wall_s=self._wall_clock() - now),
            _partitions(view),
            _open(self._ages),
            _state(view, ledgers),
        )


def health_of(view: View, *, now: float) -> Health:
    """Its health at monotonic `now`."""
    turned_at, shards = view.measures.turned_at, list(view.shards.values())
    if turned_at is None:
        return Health("", "it waits for a broker")
    stalled = (
        "" if now - turned_at < STALL_S else f"the loop has not turned for {now - turned_at:.0f} s"
    )
    if view.assignment is None:
        return Health(stalled, "the group has assigned nothing yet")
    if not view.assignment.partitions:
        return Health(stalled, "")  # more coordinators than partitions: it stands by
    if not shards:
        return Health(stalled, "its state is being built from the stored offsets")
    behind = sum(not shard.is_caught_up for shard in shards)
    waiting = f"{behind} of {len(shards)} partitions are not read to their ends yet"
    return Health(stalled, waiting if behind else "")


def _counts(measures: Measures) -> Iterator[Sample]:
    published, reports = measures.publishing, dict(measures.reports)
    yield Sample(f.HALF_RECORDS, measures.half_count)
    yield Sample(f.OP_RECORDS, measures.op_count)
    yield Sample(f.FORWARDED_RECORDS, published.forwarded_record_count)
    yield Sample(f.SETTLED, published.forwarded_count, (Resolution.COMMIT.name.lower(),))
    yield Sample(f.SETTLED, measures.rollback_count, (Resolution.ROLLBACK.name.lower(),))
    for family, kind in f.OF_REPORTS.items():
        yield Sample(family, sum(n for (k, _), n in reports.items() if k is kind))
    for family, kind, reasons in f.OF_REPORTS_BY_REASON:
        counts = dict.fromkeys(reasons, 0) | {r: n for (k, r), n in reports.items() if k is kind}
        for reason, count in counts.items():
            yield Sample(family, count, (reason,))
    for kind in f.WITHOUT_EFFECT:
        yield Sample(f.LINES_WITHOUT_EFFECT, reports.get((kind, ""), 0), (kind.value,))
    answers = dict(measures.answers)
    for resolution in Resolution:
        yield Sample(f.ANSWERS, answers.get(resolution, 0), (resolution.name.lower(),))
    yield Sample(f.REPLACEMENTS, published.replaced_count)
    yield Sample(f.REBALANCES, measures.rebalance_count)
    yield Sample(f.REBUILDS, measures.rebuild_count)
    yield Sample(f.UNTIMELY, measures.untimely_count)


def _times(measures: Measures, *, to_wall_s: float) -> Iterator[Sample]:
    yield Sample(f.DURATION, measures.seconds.view())
    for stage, seconds in measures.stage_seconds.items():
        yield Sample(f.STAGE_DURATION, seconds.view(), (stage,))
    published = measures.publishing
    yield Sample(f.KAFKA_DURATION, published.seconds.view())
    for stage, seconds in published.stage_seconds.items():
        yield Sample(f.KAFKA_STAGE_DURATION, seconds.view(), (stage,))
    if published.ended_at is not None:
        yield Sample(f.STORED_AT, to_wall_s + published.ended_at)


def _partitions(view: View) -> Iterator[Sample]:
    topics, ends = SystemTopics(view.namespace), view.measures.ends
    yield Sample(f.PARTITIONS, len(view.shards))
    for partition, shard in view.shards.items():
        ledger, name = shard.ledger, str(partition)
        for label, topic, position in (
            ("half", topics.half, ledger.half_next),
            ("op", topics.op, ledger.op_next[0]),
        ):
            end = ends.get((topic, partition))
            if end is not None:
                yield Sample(f.LAG, max(end - position, 0), (label, name))
        yield Sample(f.REPLAY, max(ledger.half_next - shard.stored.low_water, 0), ("half", name))
        doubt = max(ledger.shelf.next_offset - shard.stored.doubt_low, 0)
        yield Sample(f.REPLAY, doubt, ("doubt", name))


def _open(ages: Ages) -> Iterator[Sample]:
    # Which groups keep their names must not differ between ages: the sum over all of them decides.
    totals: dict[str, int] = {}
    for groups in ages.open_by_group.values():
        for group, count in groups.items():
            totals[group] = totals.get(group, 0) + count
    named = with_few_labels(totals)
    for age in (*(label for label, _ in AGES), OLDER):
        counts: dict[str, int] = {}
        for group, count in ages.open_by_group.get(age, {}).items():
            label = group if group in named else OTHER
            counts[label] = counts.get(label, 0) + count
        for group in named:
            yield Sample(f.OPEN, counts.get(group, 0), (group, age))
    yield Sample(f.OLDEST_OPEN, ages.oldest_open_ms / 1000)
    for state in _STANDING:
        yield Sample(f.STANDING, ages.by_state.get(state, 0), (state.value,))


def _state(view: View, ledgers: list[Ledger]) -> Iterator[Sample]:
    yield Sample(f.ON_DOUBT, sum(ledger.shelf.count for ledger in ledgers))
    yield Sample(f.CONTENT_BYTES, sum(ledger.content_bytes for ledger in ledgers))
    yield Sample(f.UNSETTLED_BYTES, sum(ledger.unsettled_bytes for ledger in ledgers))
    paused_count = sum(shard.is_half_paused for shard in view.shards.values())
    yield Sample(f.PAUSED_PARTITIONS, paused_count)
    refusing = sum(target.refusal is not None for target in view.targets.values())
    yield Sample(f.REFUSING_TOPICS, refusing)
    yield Sample(f.LIMITED_GROUPS, len({g for ledger in ledgers for g in ledger.limited_groups}))
