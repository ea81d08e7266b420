"""Plays one world from its plan to its verdict: faults, healing, rest, judgement."""

import gc
import hashlib
import logging
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from tests.simulation.doors import close_and_drain
from tests.simulation.people import settle_the_rest, unanswered
from tests.simulation.plan import LATE_TARGET, SMALL_TARGET, TARGETS, Plan
from tests.simulation.society import REAL, REAL_TOPICS, TOPICS, Society, Variant
from tests.simulation.unkind import judged
from tests.simulation.world import EndlessError, SimulatedWorld
from tests.support.checker import Finding, Kind
from tests.support.history import History, Logs, Sample
from tests.support.logs import seen
from tests.support.run_checker import judge_history
from txlayer.adapters.errors import Code
from txlayer.adapters.memory.log import Partition

REST_WITHIN_S = 90.0
"""Of the world's time, after it was healed."""
LOOK_S = 0.5
CLOCK_DRIFT = 0.06
"""The fastest clock of a simulated process gains so much."""
SAY_S = 3.1
"""By then everybody has said what they were going to say in the op log."""
FENCES = frozenset({"ILLEGAL_GENERATION", "UNKNOWN_MEMBER_ID", "INVALID_PRODUCER_EPOCH", "UNSTABLE_OFFSET_COMMIT"})
"""Answers that show that a fence was needed, or waited at."""
TOO_LARGE = Code.MSG_SIZE_TOO_LARGE.kafka_name
QUIET = logging.CRITICAL + 1


P = TypeVar("P")


@dataclass(slots=True)
class Played(Generic[P]):
    """What came of one world."""

    plan: P
    findings: list[Finding] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    happened: Counter[str] = field(default_factory=Counter)
    trace: list[tuple[float, str, str, str]] = field(default_factory=list)
    step_count: int = 0
    rest_after_s: float = 0.0

    @property
    def is_clean(self) -> bool:
        """Nothing is wrong."""
        return not self.findings

    def fingerprint(self) -> str:
        """The same for the same world, on every machine."""
        text = repr((self.trace, self.findings, self.step_count))
        return hashlib.sha256(text.encode()).hexdigest()[:16]


def play(plan: Plan, *, variant: Variant = REAL, look: Callable[[Society], object] | None = None) -> Played[Plan]:
    """Let it all happen; `look` is shown everybody before it begins."""
    society = Society(plan, variant=variant)
    if look is not None:
        look(society)
    world = society.world
    played = Played(plan, trace=world.trace, happened=world.happened)
    with quietly(world):
        try:
            society.begin()
            world.run(until_s=plan.until_s)
            society.heal()
            if plan.doors:
                played.findings += close_and_drain(society)
            healed_at = world.now
            while society.busy_producers and world.now < healed_at + REST_WITHIN_S:
                world.run(until_s=world.now + LOOK_S)
            if plan.doors:
                busy = sorted(society.busy_producers)
                played.findings += [
                    Finding(Kind.STUCK, slot, "it has not begun, or ended, all of its") for slot in busy
                ]
            world.run(until_s=world.now + SAY_S)
            while unanswered(society) and world.now < healed_at + REST_WITHIN_S:
                world.run(until_s=world.now + LOOK_S)
            settle_the_rest(society)
            _come_to_rest(society, played)
            if society.memory is not None:
                played.findings += society.memory.end()
        except EndlessError as exc:
            played.findings.append(Finding(Kind.STUCK, "", str(exc)))
        finally:
            world.close()
    for coordinator in society.coordinators:
        played.happened["ledgers rebuilt"] += coordinator.counts.rebuild_count
        played.happened["producers replaced"] += coordinator.counts.publishing.replaced_count
    for *_, detail in world.trace:
        if detail in FENCES or detail == TOO_LARGE:
            played.happened[detail] += 1
    played.findings = judged(played.findings, plan.unkind)
    played.findings += [Finding(Kind.BROKEN, "", failure) for failure in world.failures]
    played.happened["records cleaned away"] += sum(map(len, society.cleaned.values()))
    played.step_count = world.step_count
    return played


def _come_to_rest(society: Society, played: Played[Plan]) -> None:
    world = society.world
    settled_at = world.now
    while True:
        stuck = stuck_processes(society)
        is_late = world.now >= settled_at + REST_WITHIN_S
        if not stuck or is_late:
            verdict = judge_history(history_of(society))
            if is_late or all(f.kind is not Kind.STUCK for f in verdict.findings):
                break
        world.run(until_s=world.now + LOOK_S)
    played.findings += verdict.findings
    played.counts = verdict.counts
    played.findings += [Finding(Kind.STUCK, "", what) for what in stuck]
    played.rest_after_s = world.now - settled_at


def stuck_processes(society: Society) -> list[str]:
    """What is still to be done, as far as one can see without reading everything."""
    kafka = society.kafka
    if kafka.cluster.markers:
        return [f"{len(kafka.cluster.markers)} markers under way"]
    stored = kafka.stored_offsets(TOPICS.coordinator_group)
    found = [
        f"{topic}-{p}: an open Kafka transaction"
        for (topic, p), partition in kafka.cluster.partitions.items()
        if partition.last_stable_offset != partition.next_offset
    ]
    for partition in range(society.plan.settings.partition_count):
        op = kafka.cluster.partitions[TOPICS.op, partition]
        at = stored[TOPICS.op, partition]
        op_next = _last_readable(op)
        if at.offset < op_next:
            found.append(f"op-{partition}: {at.offset} of {op_next}")
        half = kafka.cluster.partitions[TOPICS.half, partition]
        half_next = int(at.metadata.split("|")[2]) if at.metadata else 0
        if half_next < _last_readable(half):
            found.append(f"half-{partition}: {half_next} of {half.next_offset}")
    return found


def _last_readable(log: Partition) -> int:
    """The offset behind the last record that somebody reads: not the markers behind it, nor what was aborted."""
    return max((record.log_offset + 1 for record in log._records if not record.is_aborted), default=0)


def history_of(society: Society) -> History:
    """What is known of it."""
    kafka, settings = society.kafka, society.plan.settings
    there = [topic for topic in REAL_TOPICS if topic in kafka.cluster.topics]
    half, op, doubt, check = (
        [seen(record) for record in society.records(topic)]
        for topic in (TOPICS.half, TOPICS.op, TOPICS.doubt, TOPICS.check)
    )
    real = [seen(record) for topic in there for record in kafka.records(topic)]
    counts = {LATE_TARGET: 1, **dict.fromkeys((*TARGETS, SMALL_TARGET), settings.target_partitions)}
    partitions = kafka.cluster.partitions
    last = Sample(
        kafka.stored_offsets(TOPICS.coordinator_group),
        {place: p.next_offset for place, p in partitions.items() if place[0] in (*there, TOPICS.check)},
    )
    return History(
        Logs(half, op, doubt, real, counts, check),
        half_topic=TOPICS.half,
        op_topic=TOPICS.op,
        partition_count=settings.partition_count,
        samples=[*society.samples, last],
        witnessed=society.witnessed,
        ends={place: (p.last_stable_offset, p.next_offset) for place, p in partitions.items()},
        acknowledged=society.acknowledged,
        local=society.judged_local(),
        check_topic=TOPICS.check,
        must_end=society.must_end(),
        absences=society.absences,
        policies=society.policies,
        clock_drift=CLOCK_DRIFT,
    )


@contextmanager
def quietly(world: SimulatedWorld) -> Iterator[None]:
    """No log lines, and no collector that runs at moments of its own."""
    del world
    logger = logging.getLogger("txlayer")
    level, is_collecting = logger.level, gc.isenabled()
    logger.setLevel(QUIET)
    gc.disable()
    try:
        yield
    finally:
        logger.setLevel(level)
        if is_collecting:
            gc.enable()
