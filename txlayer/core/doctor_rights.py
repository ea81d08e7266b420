"""Rules about who may do what, how much of it, and what time it is; and what could not be found out."""

from __future__ import annotations

from collections.abc import Iterator

from txlayer.core.cluster_facts import ClusterFacts, Limits
from txlayer.core.doctor_findings import Finding, Level, fine, length

CLOCK_WARN_MS = 2_000
"""Timestamps of messages and of logs cannot be compared any more."""
CLOCK_ERROR_MS = 60_000
"""`tx list`, `verify --since` and the user's own times are wrong by more than a grace."""


def clock(facts: ClusterFacts, _limits: Limits) -> Iterator[Finding]:
    """This machine's clock and the broker's."""
    check, (least, most) = "clock.difference", facts.clock
    # What is certain: the difference lies between the two.
    ahead = max(least or 0, 0)
    behind = max(-most, 0) if most is not None else 0
    off = max(ahead, behind)
    shown = f"the broker's clock is {'ahead of' if ahead >= behind else 'behind'} this machine's by at least {length(off)}"
    mend = "chronyc tracking (or timedatectl) on this machine and on the brokers"
    if off > CLOCK_ERROR_MS:
        yield Finding(check, Level.ERROR, "clock", shown, mend)
    elif off > CLOCK_WARN_MS:
        yield Finding(check, Level.WARNING, "clock", shown, mend)
    elif least is None and most is None:
        yield Finding(check, Level.INFO, "clock", "no record from which the broker's time could be told", "txlayer doctor --try")  # fmt: skip
    elif least is None or most is None:
        side = "ahead" if most is None else "behind"
        yield Finding(check, Level.INFO, "clock", f"the broker's is not {side} by more than {length(CLOCK_WARN_MS)}; the other direction is not known", "txlayer doctor --try")  # fmt: skip
    else:
        yield fine(check, "clock", f"they differ by {least} to {most} ms")


def rights(facts: ClusterFacts, _limits: Limits) -> Iterator[Finding]:
    """What these credentials may do, as each role needs it."""
    check = "acl"
    for right in facts.rights:
        name, about = f"{check}.{right.role}", f"{right.kind} {right.resource}"
        if right.is_allowed:
            yield fine(name, about, f"{right.operation} ({right.tried})")
        elif right.is_allowed is None:
            yield Finding(name, Level.INFO, about, f"{right.operation} could not be found out: {right.detail}")  # fmt: skip
        else:
            # Whoever runs doctor need not be every role at once.
            level = Level.ERROR if right.role == "coordinator" else Level.WARNING
            option = {"topic": "--topic", "group": "--group"}.get(right.kind, "--transactional-id")
            yield Finding(
                name, level, about, f"{right.operation} is refused to these credentials ({right.tried})",
                f"kafka-acls.sh --bootstrap-server HOST:PORT --add --allow-principal User:NAME --operation {right.operation} {option} {right.resource}",
            )  # fmt: skip


def untold(facts: ClusterFacts, _limits: Limits) -> Iterator[Finding]:
    """What could not be found out."""
    for what, why in facts.untold.items():
        yield Finding("untold", Level.INFO, what, why)
