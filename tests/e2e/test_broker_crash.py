"""P1-P6 while the broker itself dies: killed and restarted, and away for a while."""

import os
from pathlib import Path

import pytest

from tests.e2e.conftest import Start
from tests.support.arena import Arena, make_arena
from tests.support.left_out import MarkerLeftOutError, raise_if_marker_left_out, run_again_if_marker_left_out
from tests.support.processes import CoordinatorProcess
from tests.support.seed import SEED, say
from tests.support.waiting import TimedOutError, pause, wait_until
from tests.support.witness import Witness
from txlayer.adapters.kafka.local import LocalBroker, LocalConfig

pytestmark = [pytest.mark.kafka, pytest.mark.slow, pytest.mark.nightly]

AWAY_S = float(os.environ.get("E2E_BROKER_AWAY_S", "15"))
KILL_COUNT = 2
RUN_COUNT_MAX = 4
"""One run in ten or so meets the broker's own fault."""


@pytest.mark.fault(
    "broker: is killed, also one that leads the group or the Kafka transactions", "broker: all brokers are down"
)
@pytest.mark.promise("P1", "P2")
def test_a_broker_that_dies_and_comes_back_costs_nothing(
    local_config: LocalConfig, start_coordinator: Start, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    def one(run: int) -> None:
        live_through(local_config, start_coordinator, tmp_path / f"run-{run}")

    run_again_if_marker_left_out(request, one, run_count_max=RUN_COUNT_MAX)


def live_through(local_config: LocalConfig, start_coordinator: Start, folder: Path) -> None:
    """Kill the broker and restart it under load, let it be away for a while, and judge."""
    with LocalBroker(config=local_config, data=folder) as broker:
        arena = make_arena(broker.bootstrap_servers)
        load = arena.load(rate=200, seed=SEED)
        load.start()
        coordinator = start_coordinator(arena, "--doubt-after", "1s")
        pids = {broker.pid}
        try:
            with Witness(arena.servers, arena.targets) as witness:
                for _ in range(KILL_COUNT):
                    wait_for_progress(witness, coordinator, broker)
                    broker.kill()
                    broker.start()
                    pids.add(broker.pid)
                wait_for_progress(witness, coordinator, broker)

                broker.stop()
                sent_before = len(load.sent)
                pause(AWAY_S)
                sent_after = len(load.sent)
                broker.start()
                pids.add(broker.pid)
                wait_for_progress(witness, coordinator, broker)
                load.stop()
                rest(arena, coordinator, broker)
                verdict = arena.verdict(load)
        except MarkerLeftOutError:
            load.stop()
            coordinator.kill()
            raise

        say(verdict.counts, witness.count, len(coordinator.events("coordinator.rebuild")))
        assert [] == verdict.findings[:20]
        assert [] == witness.repeated()
        assert [] == load.failures
        assert len(pids) == KILL_COUNT + 2
        assert sent_before < sent_after
        assert coordinator.is_running
        coordinator.terminate()
        assert 0 == coordinator.wait()


def wait_for_progress(witness: Witness, coordinator: CoordinatorProcess, broker: LocalBroker) -> None:
    """New messages become visible."""
    seen = witness.count

    def is_moving() -> bool:
        assert coordinator.is_running, coordinator.output()[-3000:]
        return witness.count > seen + 50

    try:
        wait_until(is_moving, within=60, what="progress")
    except TimedOutError as exc:
        raise_if_marker_left_out(broker, exc)
        raise TimedOutError(f"{exc}: {coordinator.stacks()}") from exc


def rest(arena: Arena, coordinator: CoordinatorProcess, broker: LocalBroker) -> None:
    """Everything that can be applied was applied."""
    try:
        arena.wait_until_applied(within=60)
    except TimedOutError as exc:
        raise_if_marker_left_out(broker, exc)
        raise
    assert coordinator.is_running
