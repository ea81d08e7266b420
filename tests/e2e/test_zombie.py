"""A coordinator that slept past its session: what it still believes must not reach any log (P2)."""

from random import Random

import pytest

from tests.conftest import Broker
from tests.e2e.conftest import Start
from tests.support.arena import Arena, make_arena
from tests.support.logs import hanging
from tests.support.processes import CoordinatorProcess
from tests.support.seed import SEED, random_source, say
from tests.support.waiting import TimedOutError, wait_until
from tests.support.witness import Witness

pytestmark = [pytest.mark.kafka, pytest.mark.slow]

FREEZE_COUNT_MIN, FREEZE_COUNT_MAX = 3, 12
"""Inside a Kafka transaction until one tried to go on with it, then at random moments."""
LOOK_COUNT_MAX = 60
"""At 400 transactions a second nearly every second look finds one open."""
NOTICED = ("coordinator.rebuild", "recovery.fenced", "recovery.done", "partitions.taken_over")


@pytest.mark.fault(
    "coordinator: is frozen for longer than its session, then goes on",
    "coordinator: is frozen inside a Kafka transaction",
)
@pytest.mark.promise("P2")
def test_a_zombie_that_wakes_up_writes_nothing(broker: Broker, start_coordinator: Start) -> None:
    rng = random_source()
    arena = make_arena(broker.bootstrap_servers)
    load = arena.load(rate=400, seed=SEED)
    load.start()
    zombie = start_coordinator(arena)
    zombie.wait_for("partitions.taken_over")
    reasons: list[list[str]] = []

    with Witness(arena.servers, arena.targets) as witness:
        while len(reasons) < FREEZE_COUNT_MAX:
            freeze_at_work(zombie, witness, rng)
            if not any(map(is_of_a_fenced_one, reasons)):
                for _ in range(LOOK_COUNT_MAX):
                    if has_a_transaction_open(arena):
                        break
                    zombie.thaw()
                    freeze_at_work(zombie, witness, rng)
                else:
                    raise TimedOutError(f"no Kafka transaction was open in {LOOK_COUNT_MAX} looks")
            known = len(zombie.events())
            successor = start_coordinator(arena)
            successor.wait_for("partitions.taken_over", within=60)
            witness.wait_for_more()
            zombie.thaw()
            # It finds out by itself: its writers are fenced, or the group tells it that it is no member any more.
            zombie.wait_for_any(NOTICED, after=known)
            zombie.terminate()
            assert 0 == zombie.wait()
            reasons.append([e["reason"] for e in zombie.events("coordinator.rebuild")])
            if len(reasons) >= FREEZE_COUNT_MIN and any(map(is_of_a_fenced_one, reasons)):
                break
            zombie = successor
        load.stop()
        arena.wait_until_applied(within=60)
        verdict = arena.verdict(load)

    say(verdict.counts, reasons)
    assert [] == verdict.findings[:20]
    assert [] == witness.repeated()
    # One was frozen inside a Kafka transaction and tried to go on with it.
    assert any(map(is_of_a_fenced_one, reasons))


def freeze_at_work(zombie: CoordinatorProcess, witness: Witness, rng: Random) -> None:
    """Freeze it at a random moment after it has forwarded something: one that is never let work opens no transaction."""
    witness.wait_for_more()
    wait_until(lambda: rng.random() < 0.1, within=60, what="a random moment of work")
    zombie.freeze()


def has_a_transaction_open(arena: Arena) -> bool:
    """Still open when it is looked at again: the broker was not just writing the markers of one that has ended."""
    return all(hanging(arena.servers, arena.targets) for _ in range(2))


def is_of_a_fenced_one(reasons: list[str]) -> bool:
    """True when one went on with a Kafka transaction, and was refused."""
    return any(word in reason for reason in reasons for word in ("FENCED", "GENERATION", "MEMBER"))
