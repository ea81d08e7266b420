"""What a cluster may do beside faults to consumers: retention, brokers whose clocks differ, bytes that take time. Never: the rest of the plan."""

from __future__ import annotations

from dataclasses import dataclass, replace
from random import Random
from typing import TYPE_CHECKING

from tests.simulation.consumers.plan import GROUP, ConsumerPlan, make_consumer_plan
from tests.simulation.unkind import CLEAN_S, KEPT_S, LONGER_S, late_death, unequal_clocks
from txlayer.core.dead_letters import replay_topic

if TYPE_CHECKING:
    from tests.simulation.consumers.society import ConsumerSociety

_SALT = 0xC0_57_1E55


@dataclass(frozen=True, slots=True)
class UnkindToConsumers:
    """One world's share of all that."""

    is_cleaned: bool = False
    """Messages and requests go once what is stored passed them `KEPT_S` ago."""
    clocks_s: tuple[float, ...] = (0.0,)
    """Of the broker that leads the n-th partition of what is consumed: by how much its clock is ahead."""
    bytes_per_s: float = 0.0
    """How fast bytes are carried; 0: at once."""


def make_unkind_consumer_plan(seed: int) -> ConsumerPlan:
    """The plan of a seed in an unkind cluster: its own dice, so that the rest stays as it is."""
    plan, dice = make_consumer_plan(seed), Random(seed ^ _SALT)
    kinds = dice.sample(("cleaning", "clocks", "bytes"), k=dice.randint(1, 3))
    unkind = UnkindToConsumers()
    if "clocks" in kinds:
        unkind = replace(unkind, clocks_s=unequal_clocks(dice))
    if "bytes" in kinds:
        unkind = replace(unkind, bytes_per_s=dice.choice((5_000.0, 20_000.0)))
    if "cleaning" in kinds:
        unkind = replace(unkind, is_cleaned=True)
        until_s = plan.until_s + LONGER_S
        death = late_death(dice, count=len(plan.consumers), until_s=until_s)
        plan = replace(plan, until_s=until_s, faults=(*plan.faults, death))
    return replace(plan, unkind=unkind)


def begin_unkindness(society: ConsumerSociety, unkind: UnkindToConsumers) -> None:
    """All of it is on its way."""
    world = society.world
    for (topic, number), partition in society.kafka.cluster.partitions.items():
        if topic in society.plan.topics:
            partition.clock_ahead_ms = int(unkind.clocks_s[number % len(unkind.clocks_s)] * 1000)
    world.network.bytes_per_s = unkind.bytes_per_s
    if unkind.is_cleaned:
        world.after(CLEAN_S, _Retention(society).clean)


class _Retention:
    """Takes from topics and their replay topics what everybody has passed for long; the judge still knows it."""

    def __init__(self, society: ConsumerSociety) -> None:
        self._society = society
        self._passed: list[tuple[float, dict[tuple[str, int], int]]] = []

    def clean(self) -> None:
        """Now, and again and again."""
        society, world = self._society, self._society.world
        if society.kafka.cluster.is_up:
            self._passed.append((world.now, self._passed_so_far()))
            old = [passed for at_s, passed in self._passed if at_s <= world.now - KEPT_S]
            for place, offset in old[-1].items() if old else ():
                with society.keeping(place) as partition:
                    partition.delete_before(offset)
        world.after(CLEAN_S, self.clean)

    def _passed_so_far(self) -> dict[tuple[str, int], int]:
        society = self._society
        cleaned = {name for topic in society.plan.topics for name in (topic, replay_topic(GROUP, topic))}
        stored = society.kafka.stored_offsets(GROUP)
        return {place: found.offset for place, found in stored.items() if place[0] in cleaned}
