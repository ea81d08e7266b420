"""Old and new releases side by side: coordinators replaced one by one, forth and back, with records of both."""

import io
import subprocess
import tarfile
from pathlib import Path

import pytest

from tests.conftest import Broker
from tests.e2e.conftest import Start
from tests.e2e.test_restarts import RUN_COUNT_MAX, live_through
from tests.support.arena import Arena, make_arena
from tests.support.left_out import run_again_if_marker_left_out
from tests.support.logs import read_log
from tests.support.processes import ROOT, CoordinatorProcess
from tests.support.seed import SEED, say
from tests.support.witness import Witness

pytestmark = [pytest.mark.kafka, pytest.mark.slow, pytest.mark.nightly]

NEXT = "tests.support.next_release"
OLD = "txlayer"
# Two of this release; one after the other replaced by the next one; then one taken back.
REPLACEMENTS = (NEXT, NEXT, OLD)
BEFORE_TIMES = "ae1f4ebf"
"""The last commit whose messages had no times of their own: it knows neither their records nor what came later."""


def replace(start: Start, arena: Arena, leaving: CoordinatorProcess, *, module: str) -> CoordinatorProcess:
    """Start the successor, then stop the one that leaves."""
    coming = start(arena, "--doubt-after", "1s", module=module)
    coming.wait_for("partitions.taken_over", within=60)
    leaving.terminate()
    assert 0 == leaving.wait()
    return coming


@pytest.mark.promise("P1", "P2")
def test_a_rolling_restart_of_two_releases_under_load_loses_and_doubles_nothing(
    broker: Broker, start_coordinator: Start
) -> None:
    arena = make_arena(broker.bootstrap_servers)
    load = arena.load(rate=200, seed=SEED, next_share=0.5, timed_share=0.2)
    running = [start_coordinator(arena, "--doubt-after", "1s") for _ in range(2)]
    running[0].wait_for("partitions.taken_over")
    load.start()

    with Witness(arena.servers, arena.targets) as witness:
        for module in REPLACEMENTS:
            witness.wait_for_more()
            running.append(replace(start_coordinator, arena, running.pop(0), module=module))
        witness.wait_for_more()
        load.stop()
        arena.wait_until_released(within=60)
        verdict = arena.verdict(load)

    read = read_log(arena.servers, [arena.topics.doubt])[arena.topics.doubt]
    versions = {r.value[:2] for r in read if r.value and r.key and r.key.count(b"/") == 1}
    say(verdict.counts)
    assert ([], [], []) == (verdict.findings[:20], witness.repeated(), load.failures)
    assert {b"1|", b"2|", b"3|"} == versions
    assert {} == arena.doubt().quarantined
    for process in running:
        process.terminate()
        assert 0 == process.wait()


@pytest.fixture
def older(tmp_path: Path) -> Path:
    """The code of an older release."""
    command = ["git", "archive", BEFORE_TIMES, "txlayer", "tests/support"]
    found = subprocess.run(command, cwd=ROOT, capture_output=True, check=False)
    if found.returncode:
        pytest.skip("this checkout has no history")
    with tarfile.open(fileobj=io.BytesIO(found.stdout)) as archive:
        archive.extractall(tmp_path / "older", filter="data")
    return tmp_path / "older"


@pytest.mark.promise("P1", "P2", "P7", "P8")
def test_processes_of_an_older_release_beside_those_of_this_one_leave_the_promises_true(
    broker: Broker, older: Path, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    def one(run: int) -> None:
        folder = tmp_path / f"run-{run}"
        folder.mkdir()
        company = live_through(broker, folder, releases=(ROOT, older))
        assert [{ROOT, older}] * 4 == [set(roots) for roots in company.started.values()]

    run_again_if_marker_left_out(request, one, run_count_max=RUN_COUNT_MAX)
