"""Adds an operator to a world who closes the namespace to new transactions, and opens it again. Never: the rest of the plan."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import TYPE_CHECKING

from tests.simulation.actors import ENTRY_S
from tests.simulation.people import decided, unanswered
from tests.simulation.plan import Door, Plan, make_plan
from tests.support.checker import Finding, Kind
from txlayer.core import codec
from txlayer.core.messages import HalfHeader
from txlayer.errors import TxLayerError
from txlayer.operate.topics import accept

if TYPE_CHECKING:
    from tests.simulation.society import Society

_SALT = 0xD0_0B5
HOLDS_S = 10.0
"""After this time no producer begins a transaction."""
EMPTY_S = 30.0
"""So long the operator waits for what is under way."""
LOOK_S = 0.5


def make_closing_plan(seed: int) -> Plan:
    """The plan of a seed in which the namespace is closed for some time: its own dice, so that the rest stays as it is."""
    plan, dice = make_plan(seed), Random(seed ^ _SALT)
    doors = []
    for _ in range(dice.choice((1, 1, 2))):
        at_s = dice.uniform(0.0, plan.until_s)
        doors += [Door(at_s, is_open=False), Door(at_s + dice.choice((0.2, 1.0, 3.0)), is_open=True)]
    return replace(plan, doors=tuple(sorted(doors, key=lambda door: door.at_s)))


def turn(society: Society, door: Door) -> None:
    """The operator gives the command, again and again while no broker answers."""
    world = society.world

    def run() -> None:
        admin = society.kafka.admin(client=process.name)
        while True:
            try:
                found = accept(admin, society.config.topics, wanted=door.is_open, now_ms=world.now_ms())
                break
            except TxLayerError:
                world.pause(ENTRY_S)
        world.note(process.name, "opens" if found.is_on else "closes", "the namespace")
        world.happened["namespace closed"] += found.is_changed and not found.is_on

    process = society.new_process("o0")
    world.start(process, run)


def close_and_drain(society: Society) -> list[Finding]:
    """In a healed world: close the namespace, wait as `txlayer topics drain` does, and open it again; what was not so."""
    world = society.world
    turn(society, Door(world.now, is_open=False))
    world.run(until_s=world.now + HOLDS_S)
    begun = _begun(society)
    process, is_drained = society.new_process("o0"), False

    def drain() -> None:
        nonlocal is_drained
        connections = society.kafka.connect_coordinator(society.config, client=process.name)
        while not society.variant.look(connections, partition_count=society.plan.settings.partition_count).is_drained:
            world.pause(LOOK_S)
        is_drained = True

    world.start(process, drain)
    world.run(until_s=world.now + EMPTY_S, is_over=lambda: is_drained)
    world.kill(process)
    world.happened["namespace drained"] += is_drained
    late = _begun(society) - begun
    findings = [Finding(Kind.STUCK, key, f"it was begun {HOLDS_S:g} s after the namespace was closed") for key in late]
    findings += [
        Finding(Kind.STUCK, key, "it is not settled while the namespace is closed") for key in unanswered(society)
    ]
    if is_drained:
        findings += [
            Finding(Kind.FORGOTTEN, key, "drained, and it is not decided")
            for key in (begun & society.owners.keys()) - decided(society)
        ]
    turn(society, Door(world.now, is_open=True))
    return findings


def _begun(society: Society) -> set[str]:
    headers = (codec.half_header_of(record.headers()) for record in society.records(society.config.topics.half))
    found = (codec.decode_half_header(header or b"") for header in headers)
    return {header.key for header in found if isinstance(header, HalfHeader)}
