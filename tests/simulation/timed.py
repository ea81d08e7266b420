"""Adds times to the plan of a world, and people who cancel and move such messages. Never: the rest of the plan."""

from dataclasses import replace
from random import Random

from tests.simulation.plan import Act, CheckBack, Plan, PlannedTransaction, make_plan
from tests.simulation.unkind import make_unkind_plan

_SALT = 0x71E5_0C4E
_DELAYS_S = (0.0, 0.2, 0.2, 1.0, 3.0)
_WAIT_S = 8.0


def with_times(plan: Plan, seed: int) -> Plan:
    """The plan in which many messages have a time; its own dice, so that the rest stays as it is."""
    dice = Random(seed ^ _SALT)
    producers = tuple(tuple(_timed(dice, each) for each in transactions) for transactions in plan.producers)
    check_back = plan.check_back
    if check_back is not None:
        check_back = CheckBack(check_back.groups, check_back.membership, (*check_back.acts, *_acts(dice, plan.until_s)))
    return replace(plan, producers=producers, check_back=check_back)


def _acts(dice: Random, until_s: float) -> list[Act]:
    count = dice.choice((0, 3, 8, 20))
    words = ("move", "move", "move", "abandon")
    return [Act(dice.uniform(0.5, until_s + 2), dice.choice(words), dice.randrange(1000)) for _ in range(count)]


def _timed(dice: Random, transaction: PlannedTransaction) -> PlannedTransaction:
    if dice.random() < 0.4:
        return transaction
    delays = tuple(None if dice.random() < 0.3 else dice.choice(_DELAYS_S) for _ in transaction.messages)
    return replace(transaction, delays_s=delays)


def make_timed_plan(seed: int) -> Plan:
    """The plan of a seed, with times."""
    return with_times(make_plan(seed), seed)


def make_waiting_plan(seed: int) -> Plan:
    """The plan of a seed in an unkind cluster, in which all messages wait together until their time."""
    plan = make_unkind_plan(seed)
    producers = tuple(
        tuple(replace(each, delays_s=(_WAIT_S,) * len(each.messages)) for each in transactions)
        for transactions in plan.producers
    )
    return replace(plan, producers=producers)
