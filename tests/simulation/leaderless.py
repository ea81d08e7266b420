"""Adds partitions of half, op and doubt that lose their leaders for a while to the plan of a world. Never: the rest of the plan."""

from dataclasses import replace
from random import Random

from tests.simulation.plan import NAMESPACE, Fault, Harm, Plan, make_plan
from txlayer.config import SystemTopics

_SALT = 0x1EAD_0C4E
_TOPICS = SystemTopics(NAMESPACE)
_AWAY_S = (1.0, 3.0, 8.0)
_AWAY_MAX_S = 10.0


def make_leaderless_plan(seed: int) -> Plan:
    """The plan of a seed, longer and with two partitions or more, in which single ones have no leader; all have one at its end.

    Only txlayer's own processes write there: they try again, and whoever else writes garbage or lines here would not.
    """
    plan, dice = make_plan(seed), Random(seed ^ _SALT)
    count = max(plan.settings.partition_count, 2)
    faults = tuple(
        Fault(
            Harm.LEADERLESS,
            f"{dice.choice((_TOPICS.half, _TOPICS.op, _TOPICS.doubt))}/{dice.randrange(count)}",
            at_s=dice.uniform(0.0, plan.until_s),
            seconds=dice.choice(_AWAY_S),
        )
        for _ in range(dice.randint(1, 4))
    )
    check_back = plan.check_back
    return replace(
        plan,
        settings=replace(plan.settings, partition_count=count),
        producers=tuple(tuple(replace(each, lines=()) for each in those) for those in plan.producers),
        garbage=(),
        faults=plan.faults + faults,
        until_s=plan.until_s + _AWAY_MAX_S,
        check_back=None if check_back is None else replace(check_back, acts=()),
    )
