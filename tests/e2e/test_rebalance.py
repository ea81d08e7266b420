"""P1-P6 while coordinators join and leave, and how one leaves when it is asked to."""

import time

import pytest

from tests.conftest import Broker
from tests.e2e.conftest import Start
from tests.support.arena import make_arena
from tests.support.seed import SEED, random_source, say
from tests.support.waiting import pause, wait_until
from tests.support.witness import Witness

pytestmark = [pytest.mark.kafka, pytest.mark.slow]


@pytest.mark.fault("coordinator: many coordinators join and leave all the time")
@pytest.mark.promise("P2", "P6")
@pytest.mark.parametrize("change_count", [4, pytest.param(10, marks=pytest.mark.nightly)])
def test_two_workers_lose_and_double_nothing_while_others_join_and_leave(
    change_count: int, broker: Broker, start_coordinator: Start
) -> None:
    rng = random_source()
    arena = make_arena(broker.bootstrap_servers)
    load = arena.load(rate=400, seed=SEED)
    load.start()
    workers = start_coordinator(arena, "--workers", "2", "--doubt-after", "1s")
    workers.wait_for("partitions.taken_over")

    with Witness(arena.servers, arena.targets) as witness:
        for number in range(change_count):
            guest = start_coordinator(arena, "--doubt-after", "1s")
            if number % 3:
                guest.wait_for("partitions.taken_over", within=60)
            else:
                guest.wait_until_listening()
            pause(rng.uniform(0, 0.7))
            guest.terminate()
            assert 0 == guest.wait()
            witness.wait_for_more()
        load.stop()
        arena.wait_until_applied(within=60)
        verdict = arena.verdict(load)

    generations = {e["generation"] for e in workers.events("partitions.taken_over")}
    say(verdict.counts, sorted(generations))
    assert [] == verdict.findings[:20]
    assert [] == witness.repeated()
    assert [] == load.failures
    # Each guest that came and went is two rebalances; some of them fall together.
    assert len(generations) > change_count // 2
    workers.terminate()
    assert 0 == workers.wait()


def test_a_clean_stop_finishes_the_work_and_hands_over_at_once(broker: Broker, start_coordinator: Start) -> None:
    arena = make_arena(broker.bootstrap_servers)
    # A session that would be long to wait for: only leaving the group hands over sooner.
    settings = {"session_timeout": "30s"}
    load = arena.load(rate=300, seed=SEED)
    load.start()
    first = start_coordinator(arena, settings=settings)
    first.wait_for("partitions.taken_over")
    second = start_coordinator(arena, settings=settings)
    second.wait_for("partitions.taken_over")

    first.terminate()
    code = first.wait()
    stopped_at = time.monotonic()
    wait_until(
        lambda: second.events("partitions.taken_over")[-1]["partitions"] == list(range(arena.partition_count)),
        within=20,
        what="the other one has every partition",
    )
    took_s = time.monotonic() - stopped_at
    load.stop()
    arena.wait_until_applied(within=60)

    say(f"handed over in {took_s:.2f} s")
    assert 0 == code
    assert [] == arena.verdict(load).findings[:20]
    # Nothing was open: there was no Kafka transaction that somebody else had to end.
    assert 0 == arena.aborted_count()
