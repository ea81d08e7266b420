"""A world's course as a table that a person can read: time, actor, action, record. Never: playing it."""

from collections.abc import Iterable
from typing import Any

from tests.simulation.consumers.plan import GROUP, ConsumerPlan
from tests.simulation.consumers.society import SYSTEM_TOPICS
from tests.simulation.plan import Plan
from tests.simulation.play import Played
from tests.simulation.restarts import play_plan
from tests.simulation.society import TOPICS
from txlayer.core import codec
from txlayer.core.dead_letters import DeadLetter, dead_letter_of
from txlayer.core.messages import HalfHeader, OpMessage
from txlayer.core.progress import Foreign, decode

TAIL_S = 2.0
"""After the last record the table ends: what follows is idle."""
DULL = frozenset({"Heartbeat", "Fetch", "ListOffsets", "Metadata"})
"""Requests of consumers that are left out when they put nothing into a log and nothing happened to them."""


class Recorder:
    """Writes beside each line of the trace which records it put into the logs, and what was stored."""

    def __init__(self, society: Any) -> None:
        self._society = society
        self._counts: dict[tuple[str, int], int] = {}
        self._stored: dict[Any, Any] = {}
        self.records: dict[int, list[str]] = {}
        society.world.on_act = self._look

    def _look(self) -> None:
        stored, found = self._newly_stored(), []
        for (topic, number), partition in self._society.kafka.cluster.partitions.items():
            records = partition._records
            known = self._counts.get((topic, number), 0)
            found += [f"{topic}-{number}@{r.log_offset} {self._describe(topic, r)}" for r in records[known:]]
            self._counts[topic, number] = len(records)
        if found := [*found, *stored]:
            self.records.setdefault(len(self._society.world.trace) - 1, []).extend(found)

    def is_dull(self, actor: str, _action: str, _detail: str) -> bool:
        """Whether a line is left out if it put nothing into a log."""
        return actor.startswith("w0")

    def _newly_stored(self) -> list[str]:
        stored = self._society.kafka.stored_offsets(TOPICS.coordinator_group)
        found = []
        for place, offset in stored.items():
            if self._stored.get(place) != offset and place[0] == TOPICS.op and offset.metadata:
                _, writer, half_next, line, *_ = offset.metadata.split("|")
                low = stored[TOPICS.half, place[1]].offset
                found.append(
                    f"stored {place[1]}: op {offset.offset}:{line}, half {low} to {half_next}, by {writer[-6:]}"
                )
        self._stored = stored
        return found

    def _describe(self, topic: str, record: Any) -> str:
        """A record in few words."""
        if topic == TOPICS.half:
            header = codec.decode_half_header(codec.half_header_of(record.headers()) or b"")
            if isinstance(header, HalfHeader):
                order = f" key {header.options.key_hash[:4]}" if header.options.key_hash else ""
                return f"{header.key} {header.index}/{header.count} to {header.topic}{order}"
            return "garbage"
        if topic == TOPICS.op:
            lines = (record.value() or b"").decode("ascii", "replace").split("\n")
            decoded = [codec.decode_op(line) for line in lines]
            return ", ".join(
                f"{op.resolution.name} {op.key} at {op.last_offset}" if isinstance(op, OpMessage) else "garbage"
                for op in decoded
            )
        if topic == TOPICS.doubt:
            key = (record.key() or b"").decode()
            if record.value() is None:
                return f"{key} ends"
            state = record.value().split(b"|")[1:3] if key.count("/") == 1 else []
            return f"{key} {b' '.join(state).decode()}".rstrip()
        return str((record.value() or b"").decode("ascii", "replace"))[:40]


class ConsumerRecorder(Recorder):
    """The same of a world of consumers."""

    def is_dull(self, _actor: str, action: str, detail: str) -> bool:
        """Whether a line is left out if it put nothing into a log."""
        return action in DULL and not detail

    def _newly_stored(self) -> list[str]:
        society, found = self._society, []
        society.look_at_offsets()
        newly = [s for crew in society.crews.values() for s in crew.stored[self._stored.get(crew.group, 0) :]]
        for _, place, stored in newly:
            said = decode(stored.offset, stored.metadata)
            if not isinstance(said, Foreign):
                counts = {o: a.ended_count for o, a in said.attempts.items()}
                found.append(
                    f"stored {place[0]}-{place[1]}: {stored.offset} and {list(said.finished)} waiting {said.waiting} attempts {counts} "
                    f"parked {sorted(said.parked.values())} by {said.writer[-4:]}"
                )
        self._stored = {crew.group: len(crew.stored) for crew in society.crews.values()}
        return found

    def _describe(self, topic: str, record: Any) -> str:
        if topic == SYSTEM_TOPICS.locks or topic.endswith(".replay"):
            return str((record.value() or b"").decode("ascii", "replace"))
        said = dead_letter_of(record.headers()) if topic.startswith(GROUP) else None
        if isinstance(said, DeadLetter):
            return f"{record.key()!r} {said.reason.value} of {said.origin.offset}, {said.attempt_count} attempts"
        return f"{record.key()!r}"


def play_for_people(plan: Plan | ConsumerPlan, **how: Any) -> tuple[Played[Any], list[str]]:
    """The world again, and its table."""
    kind = ConsumerRecorder if isinstance(plan, ConsumerPlan) else Recorder
    recorders: list[Recorder] = []
    played = play_plan(plan, look=lambda society: recorders.append(kind(society)), **how)
    return played, list(_table(played, recorders[0]))


def _table(played: Played[Any], recorder: Recorder) -> Iterable[str]:
    """What happened, line by line; of what is dull only what wrote a record."""
    plan, records = played.plan, recorder.records
    yield f"seed {plan.seed}: {plan.settings}" if isinstance(plan, ConsumerPlan) else f"seed {plan.seed}"
    for fault in plan.faults:
        yield f"  planned: {fault}"
    yield f"{'time':>9}  {'actor':<8}  {'action':<34}  record"
    last_s = max((played.trace[i][0] for i in records), default=0.0) + TAIL_S
    for index, (at, actor, action, detail) in enumerate(played.trace):
        if at > last_s:
            break
        if index not in records and recorder.is_dull(actor, action, detail):
            continue
        what = f"{action} {detail}".rstrip()
        first, *others = records.get(index, [""])
        yield f"{at:9.4f}  {actor:<8}  {what:<34}  {first}".rstrip()
        for other in others:
            yield f"{'':9}  {'':<8}  {'':<34}  {other}"
    for finding in played.findings:
        yield f"FINDING {finding.kind.value}: {finding.txn_key} {finding.detail}"
    if played.is_clean:
        yield f"clean: {dict(played.counts)}"
