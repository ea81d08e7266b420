"""Who else acts in a world: people who decide, vandals who write garbage, onlookers who read. Never: producers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tests.simulation.plan import SMALL_TARGET, TARGETS, Act, Garbage, Line
from tests.simulation.world import START_MS
from tests.support.history import Sample
from tests.support.logs import seen
from txlayer.adapters.ports import StoredOffset
from txlayer.core import codec
from txlayer.core.ledger.transitions import TxnState
from txlayer.core.messages import (
    COMMIT,
    NO_OPTIONS,
    ROLLBACK,
    UNKNOWN,
    DoubtSummary,
    HalfHeader,
    Headers,
    OpMessage,
    Resolution,
    Source,
)
from txlayer.core.partitions import half_partition
from txlayer.errors import TxLayerError

if TYPE_CHECKING:
    from tests.simulation.society import Society

GROUP = "g"


# --- people -----------------------------------------------------------------------------------------------------------


def say_line(
    society: Society,
    key: str,
    partition: int,
    last_offset: int,
    line: Line,
    *,
    is_abandon: bool = False,
    time_ms: int | None = None,
) -> None:
    """Somebody writes an op line with a plain producer."""
    group = society.groups.get(key)
    op = OpMessage(
        line.resolution,
        key,
        GROUP if group is None else group.name,
        last_offset + line.wrong_offset,
        START_MS,
        Source.OPERATOR,
        is_abandon=is_abandon,
        time_ms=time_ms,
    )
    _write(society, society.config.topics.op, codec.encode_ops([codec.encode_op(op)]), partition)
    society.world.note("somebody", line.resolution.name, f"{key} names {op.last_offset}")


def settle(
    society: Society, key: str, resolution: Resolution, *, is_abandon: bool = False, time_ms: int | None = None
) -> None:
    """A person looks for the transaction and decides it, as the user's database says."""
    index, offset, partition = -1, -1, 0
    for record in society.records(society.config.topics.half):
        header = codec.decode_half_header(codec.half_header_of(record.headers()) or b"")
        if isinstance(header, HalfHeader) and header.key == key and header.index > index:
            index, offset, partition = header.index, record.offset(), record.partition()
    if offset >= 0:
        line = Line(resolution, 0.0)
        say_line(society, key, partition, offset, line, is_abandon=is_abandon, time_ms=time_ms)


MOVES_MS = (-5_000, 0, 300, 1_500, 4_000)
"""How far from now messages are moved."""
_WORDS = {"commit": COMMIT, "rollback": ROLLBACK, "ask": UNKNOWN, "abandon": ROLLBACK}


def act(society: Society, planned: Act) -> None:
    """An operator picks one of the producers' transactions and does something to it by hand."""
    keys = list(society.owners)
    if not keys or society.is_healing:
        return
    key = keys[planned.number % len(keys)]
    if planned.word == "move":
        settle(society, key, UNKNOWN, time_ms=society.world.now_ms() + MOVES_MS[planned.number % len(MOVES_MS)])
        return
    if planned.word != "ask":  # nobody looks into the database
        society.contradicted.add(key)
    settle(society, key, _WORDS[planned.word], is_abandon=planned.word == "abandon")


def decided(society: Society) -> set[str]:
    """Keys of which somebody said commit or rollback."""
    found = set()
    for record in society.records(society.config.topics.op):
        for text in (record.value() or b"").decode("ascii", "replace").split("\n"):
            op = codec.decode_op(text)
            if isinstance(op, OpMessage) and op.resolution is not UNKNOWN:
                found.add(op.key)
    return found


def unanswered(society: Society) -> set[str]:
    """Keys that check-back must bring to an end and has not: neither decided nor parked."""
    waiting = society.must_end() - decided(society)
    if waiting:
        for record in society.records(society.config.topics.doubt):
            key = (record.key() or b"").decode("ascii", "replace")
            if key in waiting and record.value():
                summary = codec.decode_summary(key, record.value() or b"")
                if isinstance(summary, DoubtSummary) and summary.state == TxnState.PARKED.value:
                    waiting.discard(key)
    return waiting


def settle_the_rest(society: Society) -> None:
    """Of what nobody decided, and of what is parked, a share is decided now."""
    spared = decided(society) | unanswered(society)
    for key, local in sorted(society.local(is_final=True).items()):
        if key not in spared and society.world.random.random() < society.plan.settings.settle_share:
            settle(society, key, local)


# --- vandals ----------------------------------------------------------------------------------------------------------


def write_garbage(society: Society, garbage: Garbage) -> None:
    """Somebody writes what is none of ours."""
    topics, count = society.config.topics, society.plan.settings.partition_count
    partition, kind = garbage.number % count, garbage.kind
    key = f"ghost-{garbage.number}/{garbage.number:08x}"
    home = half_partition(ordering_key=None, txn_id=key[:-9], partition_count=count)
    society.world.note("vandal", kind, f"partition {partition}")
    if kind == "half without header":
        _write(society, topics.half, b"garbage", partition)
    elif kind == "half garbage":
        _write(society, topics.half, b"x", partition, headers=[(codec.HALF_HEADER, b"1|||\xff")])
    elif kind == "half misplaced":
        if count > 1:
            _write_half(society, key, (home + 1) % count)
    elif kind == "half twin":
        _write_half(society, key, home)
        _write_half(society, key, home)
        society.databases[key] = COMMIT
    elif kind == "half incomplete":
        offset = _write_half(society, key, home, count=2)
        say_line(society, key, home, offset, Line(COMMIT, 0.0))
    elif kind == "op garbage":
        _write(society, topics.op, b"1|C|nobody\n\xff\xfe|\n", partition)
    elif kind == "op unknown":
        say_line(society, key, partition, 0, Line(COMMIT, 0.0))
    elif kind == "op beyond":
        say_line(society, key, home, 1_000, Line(COMMIT, 0.0))
    elif kind == "op null":
        _write(society, topics.op, None, partition)


def _write_half(society: Society, key: str, partition: int, *, count: int = 1) -> int:
    header = HalfHeader(key, GROUP, TARGETS[0], 0, count, START_MS, NO_OPTIONS)
    headers = [(codec.HALF_HEADER, codec.encode_half_header(header))]
    return _write(society, society.config.topics.half, key.encode(), partition, headers=headers)


def _write(society: Society, topic: str, value: bytes | None, partition: int, *, headers: Headers | None = None) -> int:
    cluster = society.kafka.cluster
    if not (cluster.is_up and cluster.partitions[topic, partition].is_led):
        return -1
    offset = society.kafka.append(topic, value, partition=partition, headers=headers)
    society.world.acted("Produce")
    return offset


# --- onlookers --------------------------------------------------------------------------------------------------------


class Onlooker:
    """A `read_committed` reader of the real topics that also asks what the group stored."""

    def __init__(self, society: Society) -> None:
        self._society = society
        self._process = society.new_process("w0")
        count = society.plan.settings.target_partitions
        self._positions = {(t, p): 0 for t in (*TARGETS, SMALL_TARGET) for p in range(count)}
        topics = society.config.topics
        self._ends = [*self._positions, *((topics.check, p) for p in range(society.check_partitions))]
        self._stored = [
            (topic, p) for topic in (topics.half, topics.op) for p in range(society.plan.settings.partition_count)
        ]

    def start(self) -> None:
        """Look on until the world ends."""
        self._society.world.start(self._process, self._look_on)

    def _look_on(self) -> None:
        society, world = self._society, self._society.world
        connections = society.kafka.connect_coordinator(society.config, client=self._process.name)
        reader = connections.make_reader("read_committed")
        reader.assign(self._positions)
        while True:
            world.pause(0.1 + world.random.random())
            society.look_who_answers()
            is_well = True
            for record in reader.read(record_count_max=100, timeout_s=0.0):
                place, error = (record.topic(), record.partition()), record.error()
                if error is None:
                    society.witnessed.append(seen(record))
                    self._positions[place] = record.offset() + 1
                else:
                    is_well = is_well and error.name() == "_PARTITION_EOF"
            if not is_well:
                reader.assign(self._positions)
            try:
                society.samples.append(self._sample(connections))
            except TxLayerError:
                continue

    def _sample(self, connections: Any) -> Sample:
        group = self._society.config.topics.coordinator_group
        stored: dict[tuple[str, int], StoredOffset | None] = connections.stored_offsets(
            group, self._stored, is_stable=False
        )
        ends = connections.end_offsets(self._ends, is_committed=False)
        return Sample({p: offset for p, offset in stored.items() if offset is not None}, ends)
