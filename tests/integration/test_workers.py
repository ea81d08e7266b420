"""Workers as processes: what each of them is told."""

import os
import signal
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


CLEAN = """
import os, pathlib, sys, threading
from txlayer.cli.services import StopSignal
stop = StopSignal()
stop.install()
stop.watch(sys.stdin.buffer)
pathlib.Path(sys.argv[1], "new").write_text(str(os.getpid()))
pathlib.Path(sys.argv[1], "new").rename(pathlib.Path(sys.argv[1], "pid"))
stop.wait(60)
threading.Event().wait(1.0)
pathlib.Path(sys.argv[1], "ended").touch()
"""


@pytest.mark.parametrize("is_told_beside", [False, True])
@pytest.mark.parametrize(("patience_s", "left"), [(0.2, ["pid"]), (30.0, ["ended", "pid"]), (None, ["ended", "pid"])])
def test_a_worker_ends_in_its_own_time_unless_it_takes_too_long(
    patience_s: float | None, left: list[str], is_told_beside: bool, tmp_path: Path
) -> None:
    """Ctrl-C, and systemd, tell every process of the group."""

    def has_begun(_: float) -> bool:
        wait_until((tmp_path / "pid").exists, within=30, what="the worker")
        if is_told_beside:
            os.kill(int((tmp_path / "pid").read_text()), signal.SIGTERM)
        return True

    command = [sys.executable, "-c", CLEAN, str(tmp_path)]
    assert 0 == supervise([command], wait=has_begun, patience_s=patience_s)

    assert left == sorted(path.name for path in tmp_path.iterdir())


def test_each_worker_runs_a_command_of_its_own(tmp_path: Path) -> None:
    commands = [[sys.executable, "-c", WORKER, str(tmp_path), "common", f"w{number}"] for number in range(3)]

    def have_all_begun(_: float) -> bool:
        return wait_until(lambda: len(list(tmp_path.iterdir())) == 3, within=30, what="3 workers")

    code = supervise(commands, wait=have_all_begun)

    assert (0, ["w0", "w1", "w2"]) == (code, sorted(path.name for path in tmp_path.iterdir()))
