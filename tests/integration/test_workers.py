"""Workers as processes: what each of them is told."""

import sys
from pathlib import Path

import pytest

from tests.support.waiting import wait_until
from txlayer.cli.services import supervise

WORKER = """
import pathlib, sys
pathlib.Path(sys.argv[1], sys.argv[3]).touch()
sys.stdin.read()
"""


SLOW = """
import pathlib, signal, sys, threading
stop = threading.Event()
signal.signal(signal.SIGTERM, lambda *_: stop.set())
pathlib.Path(sys.argv[1], "begun").touch()
stop.wait()
threading.Event().wait(1.5)
pathlib.Path(sys.argv[1], "ended").touch()
"""


@pytest.mark.parametrize(("patience_s", "left"), [(0.2, ["begun"]), (None, ["begun", "ended"])])
def test_a_worker_that_takes_long_to_end_is_killed_unless_it_may(
    patience_s: float | None, left: list[str], tmp_path: Path
) -> None:
    def has_begun(_: float) -> bool:
        return wait_until(lambda: list(tmp_path.iterdir()) != [], within=30, what="the worker")

    command = [sys.executable, "-c", SLOW, str(tmp_path)]
    assert 0 == supervise(command, worker_count=1, wait=has_begun, patience_s=patience_s)

    assert left == sorted(path.name for path in tmp_path.iterdir())


def test_each_worker_has_arguments_of_its_own_behind_the_common_ones(tmp_path: Path) -> None:
    command = [sys.executable, "-c", WORKER, str(tmp_path), "common"]

    def have_all_begun(_: float) -> bool:
        return wait_until(lambda: len(list(tmp_path.iterdir())) == 3, within=30, what="3 workers")

    code = supervise(command, worker_count=3, wait=have_all_begun, own_arguments=lambda number: [f"w{number}"])

    assert (0, ["w0", "w1", "w2"]) == (code, sorted(path.name for path in tmp_path.iterdir()))
