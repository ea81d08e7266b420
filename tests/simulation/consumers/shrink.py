"""Makes a found fault of consumers small. Never: when a smaller world still shows it (tests/simulation/shrink.py)."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from tests.simulation.consumers.plan import ConsumerPlan
from tests.simulation.consumers.play import play_consumers
from tests.simulation.consumers.society import REAL, ConsumerVariant
from tests.simulation.shrink import shrunk
from tests.support.checker import Kind
from txlayer.core.key_queue import QueueOrder


def shrink_consumers(plan: ConsumerPlan, *, variant: ConsumerVariant = REAL, play_count_max: int = 600) -> ConsumerPlan:
    """A smaller plan with a finding of the same kind, as small as so many tries find it; `plan` itself if none is."""

    def kinds_of(tried: ConsumerPlan) -> set[Kind]:
        return {finding.kind for finding in play_consumers(tried, variant=variant).findings}

    return shrunk(plan, kinds_of=kinds_of, smaller=_smaller, play_count_max=play_count_max)


def _smaller(plan: ConsumerPlan) -> Iterator[ConsumerPlan]:
    for i in range(len(plan.faults)):
        yield replace(plan, faults=plan.faults[:i] + plan.faults[i + 1 :])
    for i in range(len(plan.requests)):
        yield replace(plan, requests=plan.requests[:i] + plan.requests[i + 1 :])
    for i in range(len(plan.outages)):
        yield replace(plan, outages=plan.outages[:i] + plan.outages[i + 1 :])
    if plan.hearers:
        yield replace(plan, hearers=plan.hearers[:-1])
    if len(plan.consumers) > 1:
        yield replace(plan, consumers=plan.consumers[:-1])
    half = len(plan.messages) // 2
    if half:
        yield replace(plan, messages=plan.messages[:half])
        yield replace(plan, messages=plan.messages[half:])
    for i in range(len(plan.messages)):
        yield replace(plan, messages=plan.messages[:i] + plan.messages[i + 1 :])
    calm: dict[str, Any] = {
        "slow_share": 0.0,
        "marker_delay_s": 0.0,
        "partition_count": 1,
        "topic_count": 1,
        "lateness": 0.1,
        "skews": (1.0,) * 3,
        "wall_skews": (0.0,) * 3,
        "metadata_bytes_max": 4096,
        "batch_count_max": 0,
        "has_own_breaker": False,
        "breaker": None,
        "taker_count": 0,
    }
    settings = plan.settings
    for name, value in calm.items():
        if getattr(settings, name) != value and not (name == "topic_count" and settings.order is QueueOrder.NONE):
            yield replace(
                plan,
                settings=replace(settings, **{name: value}),
                messages=tuple(
                    replace(m, partition=0)
                    if name == "partition_count"
                    else replace(m, topic="orders")
                    if name == "topic_count"
                    else m
                    for m in plan.messages
                ),
            )
