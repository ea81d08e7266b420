"""What a cluster may do beside faults, added to the plan of a world: strangers, second copies that come late, brokers
whose clocks differ, a topic that stores batches larger than they were sent. Never: the rest of the plan.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from random import Random
from typing import TYPE_CHECKING

from tests.simulation.plan import SMALL_TARGET, Plan, make_plan
from tests.simulation.world import START_MS
from tests.support.checker import Finding, Kind
from tests.support.fake_records import half_header, op_line
from txlayer.core import codec
from txlayer.core.ids import NONCE_LENGTH
from txlayer.core.messages import HalfHeader
from txlayer.core.partitions import half_partition
from txlayer.errors import TxLayerError

if TYPE_CHECKING:
    from tests.simulation.processes import Process
    from tests.simulation.society import Society

_SALT = 0x0DD_C10C
GROUP = "strangers"
BYTES_MAX = 100_000
SMALL_BYTES = 4_000
"""A batch that grows by half is larger than this when it holds one large message; the coordinator takes that for fitting."""


@dataclass(frozen=True, slots=True)
class Stranger:
    """Somebody's Kafka transaction on half or op."""

    at_s: float
    kind: str  # what it writes: "garbage", "half", "op"
    number: int
    open_s: float
    is_committed: bool
    """False: its writer vanishes, and the broker ends it after its time-out."""


@dataclass(frozen=True, slots=True)
class LateCopy:
    """The broker keeps the n-th batch of a producer once more, so long after the first."""

    slot: str
    number: int
    after_s: float


@dataclass(frozen=True, slots=True)
class Unkind:
    """One world's share of all that."""

    strangers: tuple[Stranger, ...] = ()
    copies: tuple[LateCopy, ...] = ()
    clocks_s: tuple[float, ...] = (0.0,)
    """Of the broker that leads the n-th partition of half, op and doubt: by how much its clock is ahead."""
    growth: float = 1.0
    """How much larger batches of `SMALL_TARGET` are stored than they were sent."""


def make_unkind_plan(seed: int) -> Plan:
    """The plan of a seed in an unkind cluster: its own dice, so that the rest stays as it is."""
    plan, dice = make_plan(seed), Random(seed ^ _SALT)
    kinds = dice.sample(("strangers", "copies", "clocks", "growth"), k=dice.randint(1, 3))
    unkind = Unkind()
    if "strangers" in kinds:
        unkind = replace(
            unkind,
            strangers=tuple(
                Stranger(
                    dice.uniform(0, plan.until_s), dice.choice(("garbage", "half", "half", "op", "op")),
                    dice.randrange(1000), dice.choice((0.0, 0.05, 0.5, 1.5)), dice.random() < 0.5,
                )
                for _ in range(dice.randint(1, 4))
            ),
        )  # fmt: skip
    if "copies" in kinds:
        unkind = replace(
            unkind,
            copies=tuple(
                LateCopy(
                    f"p{dice.randrange(len(plan.producers))}", dice.randint(1, 8),
                    dice.choice((0.05, 0.5, 2.0, 5.0)),
                )
                for _ in range(dice.randint(1, 3))
            ),
        )  # fmt: skip
    if "clocks" in kinds:
        unkind = replace(
            unkind, clocks_s=tuple(dice.choice((0.0, 0.4, -0.4, 20.0, -20.0)) for _ in range(3))
        )
    if "growth" in kinds:
        unkind = replace(unkind, growth=dice.choice((1.4, 2.0)))
    return replace(plan, unkind=unkind)


def judged(findings: list[Finding], unkind: Unkind | None) -> list[Finding]:
    """Without what cannot be told: whose clocks differ, of those no one can say from times which was first."""
    if unkind is None or not any(unkind.clocks_s):
        return findings
    return [finding for finding in findings if finding.kind not in (Kind.EARLY, Kind.ASKED)]


# --- in the world -----------------------------------------------------------------------------------------------------


def begin_unkindness(society: Society, unkind: Unkind) -> None:
    """All of it is on its way."""
    world = society.world
    topics = society.config.topics
    for (topic, number), partition in society.kafka._cluster.partitions.items():
        if topic in (topics.half, topics.op, topics.doubt):
            partition.clock_ahead_ms = int(unkind.clocks_s[number % len(unkind.clocks_s)] * 1000)
    if unkind.growth != 1.0:
        society.kafka._cluster.alter_topic(SMALL_TARGET, {"max.message.bytes": str(SMALL_BYTES)})
        for partition in society.kafka._cluster.topic(SMALL_TARGET).partitions:
            partition.growth = unkind.growth
    for copy in unkind.copies:
        world.network.keep_late(copy.slot, copy.number, after_s=copy.after_s)
    for number, stranger in enumerate(unkind.strangers):
        process = society.new_process(f"s{number}")
        world.start(process, partial(_write, society, process, stranger), after_s=stranger.at_s)


def _write(society: Society, process: Process, stranger: Stranger) -> None:
    """One Kafka transaction, held open for a while; a writer that vanishes leaves it open."""
    if society.is_healing:
        return
    connections = society.kafka.connect_coordinator(society.config, client=process.name)
    writer = connections.make_writer(f"stranger-{process.name}", batch_bytes_max=BYTES_MAX)
    happened = f"{stranger.kind} in a Kafka transaction that {'ends' if stranger.is_committed else 'is left open'}"
    try:
        writer.initialise(timeout_s=1.0)
        writer.begin()
        _produce(society, writer.produce, stranger)
        writer.flush(timeout_s=1.0)
        society.world.happened[happened] += 1
        society.world.note(process.name, "writes", happened)
        society.world.pause(stranger.open_s)
        if stranger.is_committed:
            writer.commit(timeout_s=1.0)
    except TxLayerError as exc:
        society.world.note(process.name, "gives up", str(exc))
    society.world.kill(process)


def _produce(society: Society, produce: object, stranger: Stranger) -> None:
    assert callable(produce)
    topics, count = society.config.topics, society.plan.settings.partition_count
    if stranger.kind == "garbage":
        produce(topics.half, b"a stranger's", b"k", stranger.number % count)
    elif stranger.kind == "half":
        txn_id = f"stranger-{stranger.number}"
        raw = half_header(
            f"{txn_id}/{'5' * NONCE_LENGTH}", group=GROUP, topic="orders", born_ms=START_MS
        )
        home = half_partition(ordering_key=None, txn_id=txn_id, partition_count=count)
        produce(topics.half, b"v", b"k", home, headers=[(codec.HALF_HEADER, raw)])
    else:
        _say(society, produce, stranger)


def _say(society: Society, produce: object, stranger: Stranger) -> None:
    """A line about somebody's transaction: it counts when its Kafka transaction is committed, and only then."""
    assert callable(produce)
    last = []  # of complete transactions
    for record in society.kafka.records(society.config.topics.half):
        header = codec.decode_half_header(codec.half_header_of(record.headers()) or b"")
        if isinstance(header, HalfHeader) and header.index == header.count - 1:
            last.append((record, header))
    if not last:
        return
    record, header = last[stranger.number % len(last)]
    if stranger.is_committed:
        society.contradicted.add(header.key)
    line = op_line(
        "CR"[stranger.number % 2], header.key, record.offset(), group=header.producer_group, born_ms=START_MS
    )  # fmt: skip
    produce(society.config.topics.op, line.encode(), None, record.partition())
