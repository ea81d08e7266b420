"""Adds other ways of consuming to a world: broadcasts, programs that take messages themselves, groups that hear of dead letters."""

from collections.abc import Callable
from dataclasses import replace
from random import Random

from tests.simulation.consumers.plan import ConsumerPlan, make_consumer_plan
from tests.simulation.plan import Harm
from txlayer.core.retry import AfterExhausted

WAYS = ("broadcast", "pull", "broadcast and pull", "hear", "hear and pull")
_SALT = 0x3A75_C0_15


def make_way_plan(seed: int, make: Callable[[int], ConsumerPlan] = make_consumer_plan) -> ConsumerPlan:
    """The plan of a seed in which messages are consumed in another way: its own dice, so that the rest stays as it is."""
    plan, dice = make(seed), Random(seed ^ _SALT)
    way = WAYS[seed % len(WAYS)]
    settings = plan.settings
    if "broadcast" in way:
        keeps_position = dice.random() < 0.6
        settings = replace(
            settings,
            is_broadcast=True,
            keeps_position=keeps_position,
            start_at="earliest" if keeps_position else dice.choice(("earliest", "latest")),
            is_leased=False,
            after_exhausted=AfterExhausted.GO_ON,
        )
        faults = tuple(f for f in plan.faults if f.harm is not Harm.LEADERLESS or f.slot in plan.topics)
        plan = replace(plan, requests=(), faults=faults)
    if "pull" in way:
        settings = replace(
            settings,
            batch_count_max=0,
            has_own_breaker=False,
            taker_count=dice.choice((1, 2, 3)),
            closes_at_once=dice.random() < 0.5,
        )
    if "hear" in way:
        hearers = (0.0, *(dice.uniform(0, plan.until_s) for _ in range(dice.choice((0, 0, 1)))))
        faults = tuple(replace(f, slot="h0") if f.slot == "c0" and dice.random() < 0.5 else f for f in plan.faults)
        settings = replace(settings, batch_count_max=0)
        plan = replace(plan, hearers=hearers, heard_group=dice.choice(("shop", None)), faults=faults)
    return replace(plan, settings=settings)
