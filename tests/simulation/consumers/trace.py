"""A consumers' world as a table that a person can read: time, actor, action, record. Never: playing it."""

from typing import Any

from tests.simulation.consumers.plan import GROUP, ConsumerPlan
from tests.simulation.consumers.play import play_consumers
from tests.simulation.consumers.society import REAL, SYSTEM_TOPICS, ConsumerSociety, ConsumerVariant
from tests.simulation.play import Played
from tests.simulation.trace import table
from txlayer.core.dead_letters import DeadLetter, dead_letter_of
from txlayer.core.progress import Foreign, decode

DULL = frozenset({"Heartbeat", "Fetch", "ListOffsets", "Metadata"})
"""Requests that are left out when they put nothing into a log and nothing happened to them."""


class ConsumerRecorder:
    """Writes beside each line of the trace which records it put into the logs, and what was stored."""

    def __init__(self, society: ConsumerSociety) -> None:
        self._society = society
        self._counts: dict[tuple[str, int], int] = {}
        self._stored_counts: dict[str, int] = {}
        self.records: dict[int, list[str]] = {}
        society.world.on_act = self._look

    def _look(self) -> None:
        society = self._society
        society.look_at_offsets()
        found = []
        for (topic, number), partition in society.kafka.cluster.partitions.items():
            records = partition._records
            known = self._counts.get((topic, number), 0)
            found += [f"{topic}-{number}@{r.log_offset} {describe(topic, r)}" for r in records[known:]]
            self._counts[topic, number] = len(records)
        newly = [s for crew in society.crews.values() for s in crew.stored[self._stored_counts.get(crew.group, 0) :]]
        for _, place, stored in newly:
            said = decode(stored.offset, stored.metadata)
            if not isinstance(said, Foreign):
                counts = {o: a.ended_count for o, a in said.attempts.items()}
                found.append(
                    f"stored {place[0]}-{place[1]}: {stored.offset} and {list(said.finished)} waiting {said.waiting} attempts {counts} "
                    f"parked {sorted(said.parked.values())} by {said.writer[-4:]}"
                )
        self._stored_counts = {crew.group: len(crew.stored) for crew in society.crews.values()}
        if found:
            self.records.setdefault(len(society.world.trace) - 1, []).extend(found)


def describe(topic: str, record: Any) -> str:
    """A record in few words."""
    if topic == SYSTEM_TOPICS.locks or topic.endswith(".replay"):
        return str((record.value() or b"").decode("ascii", "replace"))
    said = dead_letter_of(record.headers()) if topic.startswith(GROUP) else None
    if isinstance(said, DeadLetter):
        return f"{record.key()!r} {said.reason.value} of {said.origin.offset}, {said.attempt_count} attempts"
    return f"{record.key()!r}"


def play_consumers_for_people(
    plan: ConsumerPlan, *, variant: ConsumerVariant = REAL
) -> tuple[Played[ConsumerPlan], list[str]]:
    """The world again, and its table."""
    recorders: list[ConsumerRecorder] = []
    played = play_consumers(plan, variant=variant, look=lambda society: recorders.append(ConsumerRecorder(society)))
    lines = table(
        played,
        recorders[0].records,
        is_dull=lambda _actor, action, detail: action in DULL and not detail,
        more=f": {plan.settings}",
    )
    return played, list(lines)
