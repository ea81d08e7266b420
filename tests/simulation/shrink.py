"""Makes a found fault small: leaves out what it does not need, as long as the same kind of finding stays."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, Protocol, TypeVar

from tests.simulation.plan import Plan
from tests.simulation.play import play
from tests.simulation.society import REAL, Variant
from tests.support.checker import Kind

OTHER_SEEDS = 4
"""What is left out changes what is drawn afterwards; with other dice the fault may still be there."""


def shrink(plan: Plan, *, variant: Variant = REAL, play_count_max: int = 600) -> Plan:
    """A smaller plan with a finding of the same kind, as small as so many tries find it; `plan` itself if none is."""

    def kinds_of(tried: Plan) -> set[Kind]:
        return {finding.kind for finding in play(tried, variant=variant).findings}

    return shrunk(plan, kinds_of=kinds_of, smaller=_smaller, play_count_max=play_count_max)


class Seeded(Protocol):
    """A plan of any kind of world."""

    @property
    def seed(self) -> int:
        """Of everything that is drawn while it runs."""
        ...


P = TypeVar("P", bound=Seeded)


def shrunk(
    plan: P, *, kinds_of: Callable[[P], set[Kind]], smaller: Callable[[P], Iterator[P]], play_count_max: int
) -> P:
    """The same for plans of any kind of world: `kinds_of` plays one, `smaller` leaves something out of it."""
    kinds = kinds_of(plan)
    left = play_count_max
    is_smaller = True
    while is_smaller and left > 0:
        is_smaller = False
        for candidate in smaller(plan):
            found, tried = _still_wrong(candidate, kinds, kinds_of)
            left -= tried
            if found is not None:
                plan, is_smaller = found, True
                break
            if left <= 0:
                break
    return plan


def _still_wrong(plan: P, kinds: set[Kind], kinds_of: Callable[[P], set[Kind]]) -> tuple[P | None, int]:
    for number in range(1 + OTHER_SEEDS):
        tried: P = replace(plan, seed=plan.seed + number * 1_000_003)  # type: ignore[type-var]  # plans are dataclasses
        if kinds & kinds_of(tried):
            return tried, number + 1
    return None, 1 + OTHER_SEEDS


def _smaller(plan: Plan) -> Iterator[Plan]:
    if plan.doors:
        yield replace(plan, doors=())
    for i in range(len(plan.faults)):
        yield replace(plan, faults=plan.faults[:i] + plan.faults[i + 1 :])
    for i in range(len(plan.garbage)):
        yield replace(plan, garbage=plan.garbage[:i] + plan.garbage[i + 1 :])
    if len(plan.coordinators) > 1:
        yield replace(plan, coordinators=plan.coordinators[:-1])
    for p, transactions in enumerate(plan.producers):
        for i in range(len(transactions)):
            fewer = transactions[:i] + transactions[i + 1 :]
            yield replace(plan, producers=(*plan.producers[:p], fewer, *plan.producers[p + 1 :]))
    for p, transactions in enumerate(plan.producers):
        for i, transaction in enumerate(transactions):
            if transaction.lines:
                silent = (*transactions[:i], replace(transaction, lines=()), *transactions[i + 1 :])
                yield replace(plan, producers=(*plan.producers[:p], silent, *plan.producers[p + 1 :]))
    calm: dict[str, Any] = {
        "slow_share": 0.0,
        "marker_delay_s": 0.0,
        "partition_count": 1,
        "target_partitions": 1,
        "lateness": 0.1,
        "skews": (1.0,) * 3,
        "wall_skews": (0.0,) * 3,
        "content_bytes_max": 100_000,
        "batch_lines_max": 10_000,
    }
    for name, value in calm.items():
        if getattr(plan.settings, name) != value:
            yield replace(plan, settings=replace(plan.settings, **{name: value}))
