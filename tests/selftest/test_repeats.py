"""A run is made again only when it was late and its broker says that it left a marker out; each repeat is counted."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.support.left_out import LEFT_OUT, MarkerLeftOutError, raise_if_marker_left_out, run_again_if_marker_left_out
from tests.support.repeats import REPEAT_COUNT_MAX, REPEATED, Repeats
from tests.support.waiting import TimedOutError


def broker_that_said(folder: Path, *lines: str) -> Any:
    (folder / "node-1").mkdir()
    (folder / "node-1" / "broker.log").write_text("\n".join(lines), encoding="utf-8")
    return SimpleNamespace(folder=folder)


def test_a_broker_that_says_nothing_of_a_marker_excuses_nothing(tmp_path: Path) -> None:
    raise_if_marker_left_out(broker_that_said(tmp_path, "started"), TimedOutError("late"))


def test_a_broker_that_left_a_marker_out_excuses_what_is_late(tmp_path: Path) -> None:
    broker = broker_that_said(tmp_path, "started", f"WARN {LEFT_OUT} for orders-0")

    with pytest.raises(MarkerLeftOutError, match="late; WARN"):
        raise_if_marker_left_out(broker, TimedOutError("late"))


class Runs:
    """A test whose runs end as planned."""

    def __init__(self, *ends: Exception | None) -> None:
        self.ends = list(ends)
        self.node = SimpleNamespace(user_properties=[])

    def make(self) -> None:
        def live_through(_run: int) -> None:
            end = self.ends.pop(0)
            if end is not None:
                raise end

        request: Any = SimpleNamespace(node=self.node)
        run_again_if_marker_left_out(request, live_through, run_count_max=2)


def test_a_run_with_a_marker_left_out_is_made_again_and_noted() -> None:
    runs = Runs(MarkerLeftOutError("late"), None)

    runs.make()

    assert ([], [(REPEATED, "late")]) == (runs.ends, runs.node.user_properties)


@pytest.mark.parametrize("end", [AssertionError("lost"), TimedOutError("late")])
def test_whatever_else_ends_a_run_is_not_repeated(end: Exception) -> None:
    runs = Runs(end, None)

    with pytest.raises(AssertionError, match=str(end)):
        runs.make()

    assert ([None], []) == (runs.ends, runs.node.user_properties)


def test_a_run_that_is_never_without_its_fault_fails() -> None:
    with pytest.raises(pytest.fail.Exception, match="each of 2 runs"):
        Runs(MarkerLeftOutError("1"), MarkerLeftOutError("2"), None).make()


@pytest.mark.parametrize(("count", "exit_status"), [(REPEAT_COUNT_MAX, 0), (REPEAT_COUNT_MAX + 1, 1)])
def test_more_than_a_few_repeats_fail_a_green_run(count: int, exit_status: int) -> None:
    repeats = Repeats()
    session: Any = SimpleNamespace(exitstatus=pytest.ExitCode.OK)
    for number in range(count):
        report: Any = SimpleNamespace(when="teardown", nodeid=f"test_{number}", user_properties=[(REPEATED, "late")])
        repeats.pytest_runtest_logreport(report)
    repeats.pytest_sessionfinish(session)

    assert exit_status == session.exitstatus
    assert [f"test_{number}: late" for number in range(count)] == repeats.told
