"""What a cluster may do beside faults, added to the plan of a world: strangers, second copies that come late, brokers
whose clocks differ, a topic that stores batches larger than they were sent, bytes that cost time and memory, retention
and compaction. Never: the rest of the plan.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from itertools import takewhile
from random import Random
from typing import TYPE_CHECKING

from tests.simulation.memory import Memory
from tests.simulation.plan import SMALL_TARGET, Fault, Harm, Plan, PlannedTransaction, make_plan
from tests.simulation.world import START_MS
from tests.support.checker import Finding, Kind
from tests.support.core_records import half_header, op_line
from txlayer.adapters.memory.log import Partition
from txlayer.core import codec
from txlayer.core.messages import NONCE_LENGTH, HalfHeader
from txlayer.core.partitions import half_partition
from txlayer.errors import TxLayerError

if TYPE_CHECKING:
    from tests.simulation.processes import Process
    from tests.simulation.society import Society

_SALT = 0x0DD_C10C
_SALT_OF_COSTS = 0xB17E5
GROUP = "strangers"
BYTES_MAX = 100_000
SMALL_BYTES = 4_000
"""A batch that grows by half is larger than this when it holds one large message; the coordinator takes that for fitting."""

CLEAN_S = 0.7
"""How often retention and compaction run."""
KEPT_S = 4.5
"""Retention, and the lag of compaction, are longer than any process sleeps (4 s), as in production."""
LONGER_S = 3.5
"""So much longer is a world with retention, and then a coordinator must begin on what is left."""


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
    bytes_per_s: float = 0.0
    """How fast bytes are carried, to a broker and from it; 0: at once. Then memory is judged, too."""
    is_cleaned: bool = False
    """Retention of half and op, and compaction of doubt, run."""


def make_unkind_plan(seed: int, *, has_costs: bool = True) -> Plan:
    """The plan of a seed in an unkind cluster: its own dice, so that the rest stays as it is.

    `has_costs` is False: as it was before bytes cost anything and topics were cleaned.
    """
    plan = _with_strangers(make_plan(seed), seed)
    return _with_costs(plan, seed) if has_costs else plan


def late_death(dice: Random, *, count: int, until_s: float) -> Fault:
    """One of `count` coordinators or consumers dies near the end: another one begins on what retention left."""
    slot = f"c{dice.randrange(count)}"
    at_s = until_s - dice.uniform(0, 2)
    return Fault(Harm.DIE, slot, at_s=at_s, seconds=dice.choice((0.0, 0.3, 1.0)))


def unequal_clocks(dice: Random) -> tuple[float, ...]:
    """By how much the clocks of three brokers are ahead."""
    return tuple(dice.choice((0.0, 0.4, -0.4, 20.0, -20.0)) for _ in range(3))


def _with_costs(plan: Plan, seed: int) -> Plan:
    """Bytes cost time and memory, or half, op and doubt are cleaned, or both, or neither."""
    dice, unkind = Random(seed ^ _SALT_OF_COSTS), plan.unkind or Unkind()
    if dice.random() < 0.5:
        unkind = replace(unkind, bytes_per_s=dice.choice((20_000.0, 100_000.0)))
        settings = replace(plan.settings, content_bytes_max=dice.choice((200, 3_000, 8_000)))
        producers = tuple(
            tuple(_heavier(dice, transaction) for transaction in transactions) for transactions in plan.producers
        )
        plan = replace(plan, settings=settings, producers=producers)
    if dice.random() < 0.5:
        unkind = replace(unkind, is_cleaned=True)
        until_s = plan.until_s + LONGER_S
        death = late_death(dice, count=len(plan.coordinators), until_s=until_s)
        plan = replace(plan, until_s=until_s, faults=(*plan.faults, death))
    return replace(plan, unkind=unkind)


def _heavier(dice: Random, transaction: PlannedTransaction) -> PlannedTransaction:
    messages = tuple(
        (topic, max(size, dice.choice((5, 500, 2_000))), has_key) for topic, size, has_key in transaction.messages
    )
    return replace(transaction, messages=messages)


def _with_strangers(plan: Plan, seed: int) -> Plan:
    dice = Random(seed ^ _SALT)
    kinds = dice.sample(("strangers", "copies", "clocks", "growth"), k=dice.randint(1, 3))
    unkind = Unkind()
    if "strangers" in kinds:
        unkind = replace(
            unkind,
            strangers=tuple(
                Stranger(
                    dice.uniform(0, plan.until_s),
                    dice.choice(("garbage", "half", "half", "op", "op")),
                    dice.randrange(1000),
                    dice.choice((0.0, 0.05, 0.5, 1.5)),
                    dice.random() < 0.5,
                )
                for _ in range(dice.randint(1, 4))
            ),
        )
    if "copies" in kinds:
        unkind = replace(
            unkind,
            copies=tuple(
                LateCopy(
                    f"p{dice.randrange(len(plan.producers))}", dice.randint(1, 8), dice.choice((0.05, 0.5, 2.0, 5.0))
                )
                for _ in range(dice.randint(1, 3))
            ),
        )
    if "clocks" in kinds:
        unkind = replace(unkind, clocks_s=unequal_clocks(dice))
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
    for (topic, number), partition in society.kafka.cluster.partitions.items():
        if topic in (topics.half, topics.op, topics.doubt):
            partition.clock_ahead_ms = int(unkind.clocks_s[number % len(unkind.clocks_s)] * 1000)
    if unkind.growth != 1.0:
        society.kafka.cluster.alter_topic(SMALL_TARGET, {"max.message.bytes": str(SMALL_BYTES)})
        for partition in society.kafka.cluster.topic(SMALL_TARGET).partitions:
            partition.growth = unkind.growth
    if unkind.bytes_per_s:
        world.network.bytes_per_s = unkind.bytes_per_s
        society.memory = Memory(society)
        society.memory.begin()
    if unkind.is_cleaned:
        society.kafka.cluster._clean_at_ms = 1 << 62  # what it took away nobody would keep
        world.after(CLEAN_S, Cleaning(society).clean)
    for copy in unkind.copies:
        world.network.keep_late(copy.slot, copy.number, after_s=copy.after_s)
    for number, stranger in enumerate(unkind.strangers):
        process = society.new_process(f"s{number}")
        world.start(process, partial(_write, society, process, stranger), after_s=stranger.at_s)


def compact(partition: Partition, *, now_ms: int) -> None:
    """As Kafka's cleaner: nothing younger than the lag goes, nor does what only a younger record replaces."""
    kept_ms = int(KEPT_S * 1000)
    before_ms = now_ms + partition.clock_ahead_ms - kept_ms
    stable, records = partition.last_stable_offset, partition._records
    old = list(takewhile(lambda r: r.log_offset < stable and r.timestamp()[1] <= before_ms, records))
    newest = {record.key(): record.log_offset for record in old if not record.is_aborted}
    records[: len(old)] = [
        record
        for record in old
        if newest.get(record.key()) == record.log_offset
        and (record.value() is not None or record.timestamp()[1] > before_ms - kept_ms)
    ]


class Cleaning:
    """Retention of half and op, compaction of doubt; what they take away is kept for the judge alone.

    Half and op lose whatever nobody needs who looks at what was stored `KEPT_S` ago. Where a broker may keep batches twice,
    half keeps what a second copy is known by.
    """

    def __init__(self, society: Society) -> None:
        self._society = society
        self._positions: list[tuple[float, dict[tuple[str, int], int]]] = []

    def clean(self) -> None:
        """Now, and again and again."""
        society, world = self._society, self._society.world
        if society.kafka.cluster.is_up:
            topics = society.config.topics
            self._positions.append((world.now, self._needed_from()))
            old = [starts for at_s, starts in self._positions if at_s <= world.now - KEPT_S]
            for place, offset in old[-1].items() if old else ():
                with society.keeping(place) as partition:
                    partition.delete_before(offset)
            for place in [place for place in society.kafka.cluster.partitions if place[0] == topics.doubt]:
                with society.keeping(place) as partition:
                    compact(partition, now_ms=world.now_ms())
        world.after(CLEAN_S, self.clean)

    def _needed_from(self) -> dict[tuple[str, int], int]:
        topics, unkind = self._society.config.topics, self._society.plan.unkind
        found = {}
        for place, stored in self._society.kafka.stored_offsets(topics.coordinator_group).items():
            if not stored.metadata:
                continue
            fields = stored.metadata.split("|")
            if place[0] == topics.op:
                found[place] = int(fields[4].partition(":")[0])
            elif place[0] == topics.half:
                has_copies = unkind is not None and bool(unkind.copies)
                found[place] = min(stored.offset, int(fields[2])) if has_copies else stored.offset
        return found


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
        raw = half_header(f"{txn_id}/{'5' * NONCE_LENGTH}", group=GROUP, topic="orders", born_ms=START_MS)
        home = half_partition(ordering_key=None, txn_id=txn_id, partition_count=count)
        produce(topics.half, b"v", b"k", home, headers=[(codec.HALF_HEADER, raw)])
    else:
        _say(society, produce, stranger)


def _say(society: Society, produce: object, stranger: Stranger) -> None:
    """A line about somebody's transaction: it counts when its Kafka transaction is committed, and only then."""
    assert callable(produce)
    last = []  # of complete transactions
    for record in society.records(society.config.topics.half):
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
    )
    produce(society.config.topics.op, line.encode(), None, record.partition())
