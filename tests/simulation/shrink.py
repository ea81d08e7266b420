"""Makes a found fault small: leaves out what it does not need, as long as the same kind of finding stays."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, TypeVar

from tests.simulation.consumers.plan import ConsumerPlan
from tests.simulation.plan import Plan
from tests.simulation.restarts import play_plan
from tests.support.checker import Kind
from txlayer.core.key_queue import QueueOrder

OTHER_SEEDS = 4
"""What is left out changes what is drawn afterwards; with other dice the fault may still be there."""
CALM: dict[str, Any] = {
    "slow_share": 0.0,
    "marker_delay_s": 0.0,
    "partition_count": 1,
    "lateness": 0.1,
    "skews": (1.0,) * 3,
    "wall_skews": (0.0,) * 3,
}
"""Settings of a world in which less happens."""
CALM_COORDINATORS = {**CALM, "target_partitions": 1, "content_bytes_max": 100_000, "batch_lines_max": 10_000}
CALM_CONSUMERS = {
    **CALM,
    "topic_count": 1,
    "metadata_bytes_max": 4096,
    "batch_count_max": 0,
    "has_own_breaker": False,
    "breaker": None,
    "taker_count": 0,
}

P = TypeVar("P", bound=Plan | ConsumerPlan)


def shrink(plan: P, *, play_count_max: int = 600, **how: Any) -> P:
    """A smaller plan with a finding of the same kind, as small as so many tries find it; `plan` itself if none is.

    `how` it is played: with another variant, for example.
    """
    smaller: Any = _smaller_consumers if isinstance(plan, ConsumerPlan) else _smaller
    kinds = _kinds_of(plan, how)
    left = play_count_max
    is_smaller = True
    while is_smaller and left > 0:
        is_smaller = False
        for candidate in smaller(plan):
            found, tried = _still_wrong(candidate, kinds, how)
            left -= tried
            if found is not None:
                plan, is_smaller = found, True
                break
            if left <= 0:
                break
    return plan


def _kinds_of(plan: Plan | ConsumerPlan, how: dict[str, Any]) -> set[Kind]:
    return {finding.kind for finding in play_plan(plan, **how).findings}


def _still_wrong(plan: Any, kinds: set[Kind], how: dict[str, Any]) -> tuple[Any, int]:
    for number in range(1 + OTHER_SEEDS):
        tried = replace(plan, seed=plan.seed + number * 1_000_003)
        if kinds & _kinds_of(tried, how):
            return tried, number + 1
    return None, 1 + OTHER_SEEDS


def _without_one(plan: Any, *names: str) -> Iterator[Any]:
    """The plan without each one of what it has of these."""
    for name in names:
        planned = getattr(plan, name)
        for i in range(len(planned)):
            yield replace(plan, **{name: planned[:i] + planned[i + 1 :]})


def _smaller(plan: Plan) -> Iterator[Plan]:
    if plan.doors:
        yield replace(plan, doors=())
    yield from _without_one(plan, "faults", "garbage")
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
    for name, value in CALM_COORDINATORS.items():
        if getattr(plan.settings, name) != value:
            yield replace(plan, settings=replace(plan.settings, **{name: value}))


def _smaller_consumers(plan: ConsumerPlan) -> Iterator[ConsumerPlan]:
    yield from _without_one(plan, "faults", "requests", "outages")
    if plan.hearers:
        yield replace(plan, hearers=plan.hearers[:-1])
    if len(plan.consumers) > 1:
        yield replace(plan, consumers=plan.consumers[:-1])
    half = len(plan.messages) // 2
    if half:
        yield replace(plan, messages=plan.messages[:half])
        yield replace(plan, messages=plan.messages[half:])
    yield from _without_one(plan, "messages")
    settings = plan.settings
    moved: dict[str, dict[str, Any]] = {"partition_count": {"partition": 0}, "topic_count": {"topic": "orders"}}
    for name, value in CALM_CONSUMERS.items():
        if getattr(settings, name) != value and not (name == "topic_count" and settings.order is QueueOrder.NONE):
            yield replace(
                plan,
                settings=replace(settings, **{name: value}),
                messages=tuple(replace(message, **moved.get(name, {})) for message in plan.messages),
            )
