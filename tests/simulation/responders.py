"""Instances of a producer group that answer check-backs in a simulated world. Never the responder of txlayer itself."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from tests.simulation.plan import Answers, GroupPlan
from tests.simulation.processes import Process
from tests.simulation.world import START_MS
from txlayer.adapters.memory import NoAnswerError, RefusedError
from txlayer.adapters.memory.log import CREATE_TIME, MemoryRecord
from txlayer.adapters.memory.readers import MemoryGroupReader
from txlayer.core import codec
from txlayer.core.messages import (
    COMMIT,
    ROLLBACK,
    UNKNOWN,
    CheckKind,
    CheckRecord,
    OpMessage,
    Resolution,
    Source,
    Undecodable,
)
from txlayer.errors import TxLayerError

if TYPE_CHECKING:
    from tests.simulation.society import Society

READ_S = 0.25
SESSION_MS = 1_500
AGAIN_S = 0.3


class ResponderProcess:
    """A member of a group's check consumer group: reads all questions from the end on, answers those of its share."""

    def __init__(self, society: Society, number: int, group: GroupPlan) -> None:
        self._society = society
        self._world = society.world
        self._slot = f"r{number}"
        self._group = group
        self._opinion = COMMIT if number % 2 else ROLLBACK
        self._topic = society.config.topics.check
        self._process = Process("", "")

    def start(self, *, after_s: float = 0.0) -> None:
        """A new incarnation."""
        self._process = self._society.new_process(self._slot)
        self._process.on_death = self._on_death
        self._world.start(self._process, self._run, after_s=after_s)

    def _on_death(self, away_s: float) -> None:
        self.start(after_s=0.0 if self._society.is_healing else away_s)

    def _run(self) -> None:
        process = self._process
        while not process.is_stopping:
            try:
                self._respond()
            except (TxLayerError, NoAnswerError, RefusedError) as exc:
                self._world.note(process.name, "begins anew", str(exc))
                self._world.pause(AGAIN_S)
        process.on_death = None
        self.start(after_s=0.05 if self._society.is_healing else 2.0)

    def _respond(self) -> None:
        society, process = self._society, self._process
        connections = society.kafka.connect_coordinator(society.config, client=process.name)
        count = len(society.kafka.cluster.topic(self._topic).partitions)
        positions = connections.end_offsets([(self._topic, p) for p in range(count)])
        link = society.kafka._link(process.name, "responder")
        member = MemoryGroupReader(
            link, group=society.config.topics.check_group(self._group.name), session_timeout_ms=SESSION_MS
        )
        member.start([self._topic])
        log = connections.make_reader("read_committed")
        log.assign(positions)
        share: frozenset[tuple[str, int]] = frozenset()
        while not process.is_stopping:
            member.read(record_count_max=1, timeout_s=0.0)
            if member.take_revocation():
                share = frozenset()
            assignment = member.take_assignment()
            if assignment is not None:
                share = frozenset(assignment.partitions)
            is_well = True
            for record in log.read(record_count_max=100, timeout_s=READ_S):
                place, error = (record.topic(), record.partition()), record.error()
                if error is None:
                    positions[place] = record.offset() + 1
                    if place in share:
                        self._hear(codec.decode_check(record.value()))
                else:
                    is_well = is_well and error.name() == "_PARTITION_EOF"
            if not is_well:
                log.assign(positions)
        member.close()

    def _hear(self, check: CheckRecord | Undecodable) -> None:
        if (
            isinstance(check, CheckRecord)
            and check.kind in (CheckKind.QUESTION, CheckKind.PARKED)
            and check.producer_group == self._group.name
        ):
            self._world.begin_in_background(self._process, partial(self._answer, check))

    def _answer(self, check: CheckRecord) -> None:
        world, group, process = self._world, self._group, self._process
        dice = world.random
        if dice.random() < group.slow_share:
            world.pause(dice.uniform(0, group.slow_s))
        said, source = self._resolve(check.key)
        if dice.random() < group.slow_share:
            world.pause(dice.uniform(0, group.slow_s))
        is_question = check.kind is CheckKind.QUESTION
        if said is UNKNOWN and not is_question:
            return
        number = check.number if is_question else None
        op = OpMessage(said, check.key, group.name, check.last_offset, check.born_ms, source, number)
        world.note(process.name, said.name, f"{check.key}, {check.kind.name.lower()} {check.number}")
        for _ in range(2 if dice.random() < group.twice_share else 1):
            try:
                self._write(op, check.partition)
            except (NoAnswerError, RefusedError):
                continue  # it is asked again

    def _write(self, op: OpMessage, partition: int) -> None:
        link = self._society.kafka._link(self._process.name, "responder")
        place = (self._society.config.topics.op, partition)
        value = codec.encode_ops([codec.encode_op(op)])
        record = MemoryRecord(*place, None, value, None, (CREATE_TIME, START_MS))
        link.ask("Produce", lambda: link.cluster.produce(place, [record]))

    def _resolve(self, key: str) -> tuple[Resolution, Source]:
        society, group, dice = self._society, self._group, self._world.random
        if group.answers is Answers.BARRIER:
            return society.barrier_of(group).resolve(key, self._process), Source.BARRIER
        if dice.random() < group.failing_share or group.answers is Answers.MUTE:
            return UNKNOWN, Source.CHECK
        if group.answers is Answers.TORN:
            return self._opinion, Source.CHECK
        said = society.databases.get(key)
        if group.answers is Answers.NAIVE:
            return said or ROLLBACK, Source.CHECK
        if said is None:
            owner = society.owners.get(key)
            if owner is None or not owner.is_dead:
                return UNKNOWN, Source.CHECK
            # Who is dead writes nothing any more.
            said = society.databases.setdefault(key, ROLLBACK)
        return said, Source.CHECK
