"""Plays one world of consumers from its plan to its verdict: faults, healing, rest, judgement."""

from collections.abc import Callable

from tests.simulation.consumers.handling import waiting_in
from tests.simulation.consumers.plan import ConsumerPlan
from tests.simulation.consumers.society import REAL, SYSTEM_TOPICS, ConsumerSociety, ConsumerVariant, Crew
from tests.simulation.play import FENCES, LOOK_S, REST_WITHIN_S, Played, quietly
from tests.simulation.world import EndlessError
from tests.support.checker import Finding, Kind
from tests.support.consumer_history import ConsumerHistory, ConsumerLogs
from tests.support.consumer_judge import judge_consumers
from tests.support.logs import Seen, seen
from txlayer.config import milliseconds
from txlayer.core.dead_letters import dead_letter_topic, replay_topic
from txlayer.core.progress import Foreign, decode
from txlayer.core.retry import AfterExhausted

BUSY_COUNT_MAX = 100
"""Asking again and again what to do, without waiting, takes a whole core: 20 times in vain are one here."""


def play_consumers(
    plan: ConsumerPlan, *, variant: ConsumerVariant = REAL, look: Callable[[ConsumerSociety], object] | None = None
) -> Played[ConsumerPlan]:
    """Let it all happen; `look` is shown everybody before it begins."""
    society = ConsumerSociety(plan, variant=variant)
    if look is not None:
        look(society)
    world = society.world
    played = Played(plan, trace=world.trace, happened=world.happened)
    with quietly(world), waiting_in(world):
        try:
            society.begin()
            world.run(until_s=plan.until_s)
            society.heal()
            _come_to_rest(society, played)
        except EndlessError as exc:
            played.findings.append(Finding(Kind.STUCK, "", str(exc)))
        finally:
            world.close()
    played.happened += society.figures
    played.happened["records cleaned away"] += sum(map(len, society.cleaned.values()))
    for *_, detail in world.trace:
        if detail in FENCES:
            played.happened[detail] += 1
    if world.busy_count > BUSY_COUNT_MAX:
        detail = f"processes that never wait, {world.busy_count} times"
        played.findings.append(Finding(Kind.STUCK, "", detail))
    played.findings += [Finding(Kind.BROKEN, "", failure) for failure in world.failures]
    played.step_count = world.step_count
    return played


def _come_to_rest(society: ConsumerSociety, played: Played[ConsumerPlan]) -> None:
    world = society.world
    healed_at = world.now
    while True:
        world.run(until_s=world.now + LOOK_S)
        society.look_at_offsets()
        is_late = world.now >= healed_at + REST_WITHIN_S
        if not is_late and stuck_processes(society):
            continue
        verdicts = [judge_consumers(history_of(society, crew)) for crew in society.crews.values()]
        findings = [finding for verdict in verdicts for finding in verdict.findings]
        if is_late or all(finding.kind not in _PASSING for finding in findings):
            break
    played.findings += findings
    for verdict in verdicts:
        played.counts += verdict.counts
    played.rest_after_s = world.now - healed_at


_PASSING = frozenset({Kind.STUCK, Kind.HANGING})
"""Of a world that is not at rest yet."""


def stuck_processes(society: ConsumerSociety) -> bool:
    """True when something is still to be done, as far as one can see without judging."""
    if society.kafka.cluster.markers:
        return True
    return any(_is_behind(society, crew) for crew in society.crews.values() if not crew.is_over)


def _is_behind(society: ConsumerSociety, crew: Crew) -> bool:
    stored = society.stored_now(crew)
    for topic in crew.topics:
        needed: dict[tuple[str, int], int] = {}
        for record in society.records(topic):
            if record.offset() >= crew.begins_behind.get((topic, record.partition()), 0):
                needed[topic, record.partition()] = record.offset() + 1
        replays = replay_topic(crew.group, topic)
        for record in [] if society.plan.settings.is_broadcast else society.records(replays):
            if b"|E|" not in (record.value() or b""):  # answers are passed over at leisure
                needed[replays, record.partition()] = record.offset() + 1
        for place, end in needed.items():
            if place not in stored or stored[place].offset < end:
                return True
        for place, held in stored.items():
            found = decode(held.offset, held.metadata)
            if place[0] == topic and (isinstance(found, Foreign) or found.parked or found.is_paused):
                return True
    return False


def history_of(society: ConsumerSociety, crew: Crew) -> ConsumerHistory:
    """What is known of one group of it."""
    kafka, plan = society.kafka, society.plan
    settings, group = plan.settings, crew.group

    def log(*names: str) -> list[Seen]:
        return [seen(record) for name in names if name in plan.all_topics for record in society.records(name)]

    return ConsumerHistory(
        ConsumerLogs(
            log(*crew.topics),
            log(*(dead_letter_topic(group, topic) for topic in crew.topics)),
            log(*(replay_topic(group, topic) for topic in crew.topics)),
            log(SYSTEM_TOPICS.locks),
        ),
        group=group,
        topics=crew.topics,
        partition_count=settings.partition_count,
        order=settings.order,
        null_keys=settings.null_keys,
        is_parking=settings.after_exhausted is AfterExhausted.PARK and not crew.hears,
        attempt_count_max=settings.attempt_count_max,
        attempt_timeout_ms=settings.attempt_timeout_s * 1000,
        lease_expiry_ms=milliseconds(society.config.lease_expiry),
        is_leased=settings.is_leased,
        is_calm=plan.is_calm,
        is_broadcast=settings.is_broadcast,
        is_over=crew.is_over,
        begins_behind=crew.begins_behind,
        hears_of=(plan.heard_group,) if crew.hears else None,
        calls=crew.calls,
        stored=crew.stored,
        effects=crew.effects,
        learned=crew.learned,
        holders=crew.holders,
        ends={place: (p.last_stable_offset, p.next_offset) for place, p in kafka.cluster.partitions.items()},
    )
