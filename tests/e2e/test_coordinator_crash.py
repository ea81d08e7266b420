"""P1-P6 while coordinators are killed with SIGKILL, at whatever they are doing: forwarding, recovering, joining."""

import json
import os

import pytest

from tests.conftest import Broker
from tests.e2e.conftest import Start
from tests.support.arena import make_arena
from tests.support.commands import run_txlayer
from tests.support.processes import CoordinatorProcess
from tests.support.seed import SEED, random_source, say
from tests.support.waiting import pause
from tests.support.witness import Witness

pytestmark = [pytest.mark.kafka, pytest.mark.slow]

KILL_COUNT = int(os.environ.get("E2E_KILLS", "20"))
"""In the nightly run; `make test` kills fewer."""
RATE = int(os.environ.get("E2E_RATE", "300"))


@pytest.mark.fault("coordinator: is killed at any step")
@pytest.mark.promise("P1", "P2")
@pytest.mark.parametrize("kill_count", [6, pytest.param(KILL_COUNT, marks=pytest.mark.nightly)])
def test_kills_at_random_moments_lose_and_double_nothing_and_verify_proves_it(
    kill_count: int, broker: Broker, start_coordinator: Start, capsys: pytest.CaptureFixture[str]
) -> None:
    rng = random_source()
    arena = make_arena(broker.bootstrap_servers)
    load = arena.load(rate=RATE, seed=SEED)
    load.start()
    killed: list[CoordinatorProcess] = []
    # On a quick machine most kills fall between two Kafka transactions: further ones are aimed, until one has hit one.
    kill_count_max = kill_count + 100

    with Witness(arena.servers, arena.targets) as witness:
        running = [start_coordinator(arena, "--doubt-after", "1s") for _ in range(2)]
        while len(killed) < kill_count or (len(killed) < kill_count_max and not arena.aborted_count()):
            is_aimed = len(killed) >= kill_count  # while messages become visible, the next Kafka transaction is near
            if is_aimed or rng.random() < 0.7:
                witness.wait_for_more()
            pause(rng.uniform(0.0, 0.05 if is_aimed else 1.0))
            victim = running.pop(rng.randrange(2))
            victim.kill()
            killed.append(victim)
            running.append(start_coordinator(arena, "--doubt-after", "1s"))
        load.stop()
        arena.wait_until_applied(within=90)
        verdict = arena.verdict(load)

    say(verdict.counts, verdict.doubt_states, f"aborted {arena.aborted_count()}")
    assert [] == verdict.findings[:20]
    assert [] == witness.repeated()
    assert [] == load.failures
    assert all(process.is_running for process in running)
    # The faults happened, and hit where it hurts: inside Kafka transactions that were never finished.
    assert [-9] * len(killed) == [process.wait() for process in killed]
    assert arena.aborted_count() > 0
    assert any(process.events("recovery.fenced") for process in [*killed, *running])

    shown = capsys.readouterr().out  # what this test said is shown all the same
    asked = ("-b", arena.servers, "-n", arena.namespace, "--since", "1h", "--grace", "0ms", "--json")
    code, out, err = run_txlayer("verify", *asked, capsys=capsys)
    say(shown)
    said = json.loads(out)
    assert (0, "", []) == (code, err, [f for f in said["findings"] if f["breaks"]])
    assert {"proved"} == {said["promises"][name]["status"] for name in ("P1", "P2", "P3", "P4", "P5")}
    assert said["transaction_count"] > 100
