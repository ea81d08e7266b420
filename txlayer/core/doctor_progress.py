"""Rules about the coordinators: who is there, how far they are, and what holds half back."""

from __future__ import annotations

from collections.abc import Iterator

from txlayer.core.cluster_facts import ClusterFacts, Limits
from txlayer.core.doctor_findings import Finding, Level, counted, fine, length

LAG_MAX = 100_000
"""Op offsets not applied: some seconds of a busy coordinator."""
SPAN_MAX = 1_000_000
"""Half offsets that a restart reads again: some ten seconds."""
LOW_WATER_TIMES = 5
"""A transaction leaves half after `doubt_after`; so many times that is not its age any more, something is stuck."""


def group(facts: ClusterFacts, _limits: Limits) -> Iterator[Finding]:
    """Coordinators run, and own every partition."""
    check, found = "coordinator.group", facts.group
    if found is None:
        return
    run = f"txlayer coordinator run --namespace {facts.namespace}"
    if not found.member_count:
        reason = f"no coordinator runs (the group is {found.state}): nothing is forwarded, nobody is asked"
        yield Finding(check, Level.ERROR, found.name, reason, run)
        return
    if found.state not in ("stable", "assigning", "reconciling"):
        reason = f"{counted(found.member_count, 'member')}, {found.state}: partitions are just being given out"
        yield Finding(check, Level.WARNING, found.name, reason, "run doctor again; when it stays so, look at the coordinators' log for sessions that end")  # fmt: skip
        return
    unowned = [p.partition for p in facts.partitions if not p.owner]
    if unowned:
        reason = f"{counted(found.member_count, 'member')}, but nobody owns partitions {', '.join(map(str, unowned))}"
        yield Finding(check, Level.ERROR, found.name, reason, "restart the coordinators; all must be of one release and subscribe alike")  # fmt: skip
    elif found.member_count > len(facts.partitions):
        reason = f"{counted(found.member_count, 'member')} for {counted(len(facts.partitions), 'partition')}: some have nothing to do"
        yield Finding(check, Level.INFO, found.name, reason)
    elif found.member_count == 1:
        reason = "one member: until somebody restarts it, its end is everybody's"
        yield Finding(check, Level.WARNING, found.name, reason, run)
    else:
        yield fine(check, found.name, f"{found.member_count} members own every partition")


def lag(facts: ClusterFacts, _limits: Limits) -> Iterator[Finding]:
    """Resolutions are applied as they come."""
    check = "coordinator.lag"
    lags = {p.partition: p.op_end - p.op_next for p in facts.partitions if p.op_next is not None}
    if not lags:
        return
    total, worst = sum(lags.values()), max(lags, key=lambda p: lags[p])
    is_alone = facts.group is not None and not facts.group.member_count
    reason = f"{total:,} op records are not applied, {lags[worst]:,} of them in partition {worst}"
    if total and is_alone:
        yield Finding(check, Level.ERROR, facts.op, f"{reason}, and no coordinator runs", f"txlayer coordinator run --namespace {facts.namespace}")  # fmt: skip
    elif lags[worst] > LAG_MAX:
        yield Finding(check, Level.WARNING, facts.op, reason, f"txlayer coordinator status --namespace {facts.namespace}; more coordinators, or --workers")  # fmt: skip
    else:
        yield fine(check, facts.op, reason)


def log_start(facts: ClusterFacts, _limits: Limits) -> Iterator[Finding]:
    """What coordinators still have to read is there."""
    check = "coordinator.log-start"
    gone = []
    for p in facts.partitions:
        if p.low_water is not None and p.low_water < p.half_start:
            gone.append(f"{facts.half}-{p.partition} begins at {p.half_start}, low water is {p.low_water}")  # fmt: skip
        if p.op_next is not None and p.op_next < p.op_start:
            gone.append(f"{facts.op}-{p.partition} begins at {p.op_start}, the next to apply is {p.op_next}")  # fmt: skip
    for reason in gone:
        yield Finding(
            check, Level.ERROR, facts.namespace, f"{reason}: retention took what was not read (P1); no coordinator starts",
            f"txlayer coordinator reset --namespace {facts.namespace} --to earliest",
        )  # fmt: skip
    if facts.partitions and not gone:
        yield fine(check, facts.namespace, "everything that is still to be read is there")


def low_water(facts: ClusterFacts, limits: Limits) -> Iterator[Finding]:
    """No old transaction holds half back."""
    check = "half.low-water"
    half = facts.topic(facts.half)
    kept = None if half is None else half.number("retention.ms")
    is_fine = True
    for p in facts.partitions:
        if p.low_water is None:
            continue
        about, span = f"{facts.half}-{p.partition}", p.half_end - p.low_water
        age = 0 if p.low_water_ms is None else facts.now_ms - p.low_water_ms
        look = f"txlayer tx list --namespace {facts.namespace} --older-than {max(limits.doubt_after_ms // 1000, 1)}s"
        if kept is not None and kept > 0 and age > kept // 2:
            is_fine = False
            reason = f"held back for {length(age)} by a transaction; retention takes it after {length(kept)} (P1)"
            yield Finding(check, Level.ERROR, about, reason, look)
        elif age > LOW_WATER_TIMES * limits.doubt_after_ms:
            is_fine = False
            reason = f"held back for {length(age)}: a restart reads {span:,} offsets again, and old transactions do not move to doubt"
            yield Finding(check, Level.WARNING, about, reason, look)
        elif span > SPAN_MAX:
            is_fine = False
            reason = f"a restart reads {span:,} offsets again"
            yield Finding(check, Level.WARNING, about, reason, "a shorter TXLAYER_DOUBT_AFTER, or more partitions in a new namespace")  # fmt: skip
    if facts.partitions and is_fine:
        spans = [p.half_end - p.low_water for p in facts.partitions if p.low_water is not None]
        yield fine(check, facts.half, f"a restart reads {sum(spans):,} offsets again")
