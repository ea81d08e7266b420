"""Adds check-back to the plan of a world: groups, responders, dying producers, operators. Never: the rest of the plan."""

from collections.abc import Sequence
from dataclasses import replace
from random import Random

from tests.simulation.plan import Act, Answers, CheckBack, End, Fault, GroupPlan, Harm, Plan, PlannedTransaction

SHARE = 0.6
"""Of the worlds have check-back."""

_SALT = 0x5EED_0C4E

_ANSWERS = (
    Answers.BARRIER,
    Answers.BARRIER,
    Answers.BARRIER,
    Answers.HONEST,
    Answers.NAIVE,
    Answers.MUTE,
    Answers.TORN,
)
_WORDS = ("commit", "rollback", "ask", "ask", "ask", "abandon")
_NEVER_S = 10_000.0


def with_check_back(plan: Plan, seed: int) -> Plan:
    """The plan with check-back, or as it was: its own dice, so that the rest stays as it is."""
    dice = Random(seed ^ _SALT)
    if dice.random() >= SHARE:
        return plan
    count = len(plan.producers)
    membership = tuple(dice.randrange(number + 1) for number in range(count))
    names = range(max(membership) + 1)
    groups = tuple(_group(dice, f"g{number}", plan.until_s) for number in names)
    acts: tuple[Act, ...] = ()
    if dice.random() < 0.3:
        acts = tuple(
            Act(dice.uniform(0.5, plan.until_s + 2), dice.choice(_WORDS), dice.randrange(1000))
            for _ in range(dice.randint(1, 4))
        )
    producers = tuple(
        tuple(_transaction(dice, transaction) for transaction in transactions) for transactions in plan.producers
    )
    responder_count = sum(len(group.responders) for group in groups)
    faults = plan.faults
    if responder_count and dice.random() < 0.4:
        faults += tuple(
            _fault(dice, f"r{dice.randrange(responder_count)}", plan.until_s) for _ in range(dice.randint(1, 3))
        )
    return replace(plan, producers=producers, faults=faults, check_back=CheckBack(groups, membership, acts))


def _group(dice: Random, name: str, until_s: float) -> GroupPlan:
    answers = dice.choice(_ANSWERS)
    count = dice.choice((0, 1, 1, 1, 2, 2))
    late = dice.random() < 0.25
    responders = tuple(
        dice.uniform(until_s * 0.7, until_s * 1.5) if late else dice.uniform(0, 0.5) for _ in range(count)
    )
    is_patient = answers is not Answers.MUTE and dice.random() < 0.6
    return GroupPlan(
        name=name,
        answers=answers,
        responders=responders,
        immunity_s=dice.choice((0.2, 0.5, 2.0)),
        interval_s=dice.choice((0.3, 1.0)),
        interval_max_s=dice.choice((1.0, 2.0)),
        rate_max=dice.choice((2, 1_000, 1_000)),
        answered_max=15 if is_patient else dice.choice((1, 2, 3)),
        age_max_s=_NEVER_S if is_patient or dice.random() < 0.5 else dice.choice((1.5, 4.0)),
        unresolved=dice.choice(("park", "commit", "rollback")),
        open_count_max=dice.choice((2, 1_000)),
        slow_share=dice.choice((0.0, 0.2, 0.6)),
        slow_s=dice.choice((0.5, 3.0)),
        twice_share=dice.choice((0.0, 0.0, 0.5)),
        failing_share=dice.choice((0.0, 0.1, 0.3)),
    )


_OWN_POLICIES = ("park", "rollback", "commit")


def _transaction(dice: Random, transaction: PlannedTransaction) -> PlannedTransaction:
    end = transaction.end
    if dice.random() < 0.2:
        end = dice.choice(tuple(End))
    return replace(
        transaction,
        end=end,
        is_silent=transaction.is_silent or dice.random() < 0.1,
        work_s=dice.choice((0.5, 1.5, 3.5)) if dice.random() < 0.25 else transaction.work_s,
        immunity_s=dice.choice((0.1, 1.5, 3.0)) if dice.random() < 0.15 else None,
        is_unclear=dice.random() < 0.15,
        is_retried=dice.random() < 0.3,
        unresolved=Random(transaction.txn_id).choice((None, None, None, *_OWN_POLICIES)),
    )


def _fault(dice: Random, slot: str, until_s: float) -> Fault:
    at_s, kind = dice.uniform(0.5, until_s), dice.random()
    seconds = dice.choice((0.3, 2.0, 4.0))
    if kind < 0.2:
        return Fault(Harm.LEAVE, slot, at_s=at_s, seconds=seconds)
    if kind < 0.4:
        return Fault(Harm.DIE, slot, at_s=at_s, seconds=seconds)
    if kind < 0.6:
        return Fault(Harm.FREEZE, slot, at_s=at_s, seconds=seconds, is_beating=dice.random() < 0.3)
    if kind < 0.7:
        return Fault(Harm.CUT, slot, at_s=at_s, seconds=seconds)
    request = dice.choice(("Produce", "Produce", "Fetch", "JoinGroup", "SyncGroup", "Heartbeat"))
    harm = dice.choice(
        (Harm.LOSE_REQUEST, Harm.LOSE_ANSWER, Harm.LATE, Harm.ECHO, Harm.SLOW, Harm.DIE_BEFORE, Harm.DIE_AFTER)
    )
    return Fault(harm, slot, request, 1 + int(dice.random() ** 2 * 6), seconds=seconds)


def policies_of(groups: Sequence[GroupPlan]) -> dict[str, str]:
    """How the groups are asked, as settings."""
    found: dict[str, str] = {}
    for group in groups:
        found |= {
            f"{group.name}.check_immunity": f"{group.immunity_s}s",
            f"{group.name}.check_interval": f"{group.interval_s}s",
            f"{group.name}.check_interval_max": f"{group.interval_max_s}s",
            f"{group.name}.check_rate_max": str(group.rate_max),
            f"{group.name}.check_max": str(group.answered_max),
            f"{group.name}.transaction_age_max": f"{group.age_max_s}s",
            f"{group.name}.unresolved": group.unresolved,
            f"{group.name}.open_count_max": str(group.open_count_max),
        }
    return found
