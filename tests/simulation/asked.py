"""Adds what questions carry to the plan of a world. Never: the rest of the plan."""

from dataclasses import replace

from tests.simulation.plan import Plan, make_plan

PARTS = ("key", "query_id", "content")


def make_asked_plan(seed: int) -> Plan:
    """The plan of a seed, in which questions about every second transaction carry something, and ask sooner."""
    plan = make_plan(seed)
    producers = tuple(
        tuple(
            replace(each, check_with=PARTS[: 1 + number // 2 % 3]) if number % 2 else each
            for number, each in enumerate(transactions)
        )
        for transactions in plan.producers
    )
    return replace(plan, producers=producers)
