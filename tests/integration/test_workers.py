"""Workers as processes: what each of them is told."""

import sys
from pathlib import Path

from tests.support.waiting import wait_until
from txlayer.cli.services import supervise

WORKER = """
import pathlib, sys
pathlib.Path(sys.argv[1], sys.argv[3]).touch()
sys.stdin.read()
"""


def test_each_worker_has_arguments_of_its_own_behind_the_common_ones(tmp_path: Path) -> None:
    command = [sys.executable, "-c", WORKER, str(tmp_path), "common"]

    def have_all_begun(_: float) -> bool:
        return wait_until(lambda: len(list(tmp_path.iterdir())) == 3, within=30, what="3 workers")

    code = supervise(command, worker_count=3, wait=have_all_begun, own_arguments=lambda number: [f"w{number}"])

    assert (0, ["w0", "w1", "w2"]) == (code, sorted(path.name for path in tmp_path.iterdir()))
