"""Garbage on every topic of a whole simulated system: coordinators, producers, a broker in memory, and the one judge."""

from dataclasses import replace
from random import Random

import pytest

from tests.fuzz.mutation import corpus_of, mutated
from tests.simulation.plan import make_plan
from tests.simulation.play import play
from tests.simulation.society import TOPICS, Society
from tests.support.checker import Finding, Kind
from txlayer.core import codec

SEEDS = range(7_000, 7_012)
STRANGE_COUNT = 40
EVERY_S = 0.1
STRANGE = b"|"
"""No key of ours begins so."""


def strew(society: Society, dice: Random) -> None:
    """Somebody writes nearly right records to half, op and doubt while everybody works."""
    halves, ops = corpus_of("half-header"), corpus_of("op-record")
    keys, summaries = corpus_of("doubt-key"), corpus_of("doubt-summary")
    count = society.plan.settings.partition_count

    def write() -> None:
        kind, partition = dice.randrange(3), dice.randrange(count)
        if kind == 0:
            headers = [(codec.HALF_HEADER, mutated(halves, dice))]
            society.kafka.append(TOPICS.half, b"strange", partition=partition, headers=headers)
        elif kind == 1:
            society.kafka.append(TOPICS.op, mutated(ops, dice), partition=partition)
        else:
            key, value = (STRANGE + mutated(keys, dice).replace(b"/", STRANGE), mutated(summaries, dice))
            society.kafka.append(TOPICS.doubt, value, partition=partition, key=key)

    for number in range(STRANGE_COUNT):
        society.world.after(number * EVERY_S, write)


def is_stranger(finding: Finding) -> bool:
    """What the judge says of strangers' own records, and what is as it should be.

    Held for a topic that does not exist; a second half message whose first was never written, which is passed over, or
    whose count contradicts the first's, which is quarantined; a key on doubt that belongs to no transaction; a line that says
    a policy wrote it.
    """
    is_contrary = finding.kind is Kind.DROPPED and finding.detail.startswith("b'origin/sim.half")
    if is_contrary or (finding.kind is Kind.TORN and not finding.txn_key.startswith("p")):
        return True
    if finding.kind is Kind.GIVEN_UP and not finding.txn_key.startswith("p"):
        return True
    if finding.kind in (Kind.STUCK, Kind.FORGOTTEN):
        is_held = finding.detail == "held for topic-missing"
        return (is_held or finding.kind is Kind.FORGOTTEN) and finding.txn_key[:1] not in ("p", "")
    return finding.kind is Kind.DROPPED and finding.detail[2:].startswith(STRANGE.decode())


@pytest.mark.fault("data: garbage: no header, an unknown version, not UTF-8, no id, a thousand headers")
@pytest.mark.parametrize("seed", SEEDS)
def test_garbage_on_every_topic_stops_no_coordinator(seed: int) -> None:
    plan = replace(make_plan(seed), faults=(), garbage=())

    played = play(plan, look=lambda society: strew(society, Random(seed)))

    assert [] == [finding for finding in played.findings if not is_stranger(finding)]
    assert played.counts["visible"] > 0
    assert played.counts["quarantined"] > 0
