"""A world's course as a table that a person can read: time, actor, action, record. Never: playing it."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from tests.simulation.plan import Plan
from tests.simulation.play import Played, play
from tests.simulation.society import REAL, TOPICS, Society, Variant
from txlayer.core import codec
from txlayer.core.messages import HalfHeader, OpMessage

TAIL_S = 2.0
"""After the last record the table ends: what follows is idle."""


class Recorder:
    """Writes beside each line of the trace which records it put into the logs."""

    def __init__(self, society: Society) -> None:
        self._society = society
        self._counts: dict[tuple[str, int], int] = {}
        self._stored: dict[tuple[str, int], Any] = {}
        self.records: dict[int, list[str]] = {}
        society.world.on_act = self._look

    def _look(self) -> None:
        found = []
        for (topic, number), partition in self._society.kafka.cluster.partitions.items():
            records = partition._records
            known = self._counts.get((topic, number), 0)
            found += [f"{topic}-{number}@{record.log_offset} {describe(topic, record)}" for record in records[known:]]
            self._counts[topic, number] = len(records)
        stored = self._society.kafka.stored_offsets(TOPICS.coordinator_group)
        for place, offset in stored.items():
            if self._stored.get(place) != offset and place[0] == TOPICS.op and offset.metadata:
                _, writer, half_next, line, *_ = offset.metadata.split("|")
                low = stored[TOPICS.half, place[1]].offset
                found.append(
                    f"stored {place[1]}: op {offset.offset}:{line}, half {low} to {half_next}, by {writer[-6:]}"
                )
        self._stored = stored
        if found:
            self.records.setdefault(len(self._society.world.trace) - 1, []).extend(found)


def describe(topic: str, record: Any) -> str:
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


def play_for_people(plan: Plan, *, variant: Variant = REAL) -> tuple[Played[Plan], list[str]]:
    """The world again, and its table."""
    recorders: list[Recorder] = []
    played = play(plan, variant=variant, look=lambda society: recorders.append(Recorder(society)))
    return played, list(
        table(played, recorders[0].records, is_dull=lambda actor, _action, _detail: actor.startswith("w0"))
    )


def table(
    played: Played[Any], records: Mapping[int, list[str]], *, is_dull: Callable[[str, str, str], bool], more: str = ""
) -> Iterable[str]:
    """What happened, line by line; of what `is_dull` only what wrote a record."""
    yield f"seed {played.plan.seed}{more}"
    for fault in played.plan.faults:
        yield f"  planned: {fault}"
    yield f"{'time':>9}  {'actor':<8}  {'action':<34}  record"
    last_s = max((played.trace[i][0] for i in records), default=0.0) + TAIL_S
    for index, (at, actor, action, detail) in enumerate(played.trace):
        if at > last_s:
            break
        if index not in records and is_dull(actor, action, detail):
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
