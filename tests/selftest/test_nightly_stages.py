"""`make nightly` tells the end of every stage it was asked for, stops none for another's failure, and all at their bound."""

import re
import sys
from pathlib import Path

import psutil
import pytest

from tests.nightly import STAGES, Ended, Stage, chosen, run, run_stage, table
from tests.support.waiting import wait_until

ROOT = Path(__file__).resolve().parents[2]
PYTEST_FIGURES = """
<testsuites><testsuite name="pytest" errors="1" failures="2" skipped="3" tests="10" time="1"/></testsuites>
"""
MUTANTS_FIGURES = (
    '{"killed": 90, "survived": 6, "no_tests": 1, "timeout": 3, "segfault": 0, "skipped": 0, "total": 100}'
)


def program(text: str) -> tuple[str, ...]:
    return (sys.executable, "-c", text)


def stage(name: str, *commands: tuple[str, ...], minutes_max: float = 1.0) -> Stage:
    return Stage(name, minutes_max, commands, "for this test")


GOOD = program("print('good')")
BAD = program("raise SystemExit(3)")


def report(figures: str) -> tuple[str, ...]:
    return program(f"import os, pathlib; pathlib.Path(os.environ['JUNIT']).write_text({figures.strip()!r})")


def test_a_stage_that_fails_stops_no_other_and_makes_the_whole_fail(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code = run([stage("a", GOOD), stage("b", BAD, GOOD), stage("c", GOOD)], tmp_path)

    written = (tmp_path / "table.md").read_text(encoding="utf-8")
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in written.splitlines()]
    assert 1 == code
    assert ["stage", "tests", "passed", "failed", "minutes", "end"] == rows[0]
    assert [
        ["a", "1", "1", "0", "0.0", "passed"],
        ["b", "2", "1", "1", "0.0", "failed"],
        ["c", "1", "1", "0", "0.0", "passed"],
    ] == rows[2:]
    assert capsys.readouterr().out.endswith(f"{written}\n")


def test_green_stages_are_a_green_run(tmp_path: Path) -> None:
    assert 0 == run([stage("a", GOOD), stage("b", GOOD)], tmp_path)


@pytest.mark.parametrize(("figures", "passed", "failed"), [(PYTEST_FIGURES, 4, 3), (MUTANTS_FIGURES, 93, 7)])
def test_the_figures_are_those_of_the_tool(figures: str, passed: int, failed: int, tmp_path: Path) -> None:
    ended = run_stage(stage("a", report(figures), GOOD), tmp_path)

    assert (passed + 1, failed) == (ended.passed, ended.failed)


def test_figures_of_an_earlier_run_are_nobodys(tmp_path: Path) -> None:
    run_stage(stage("a", report(PYTEST_FIGURES)), tmp_path)

    ended = run_stage(stage("a", BAD), tmp_path)

    assert (0, 1) == (ended.passed, ended.failed)


def test_a_stage_in_which_nothing_was_tried_is_not_good() -> None:
    assert not Ended("a", exit_codes=(0,)).is_good


def test_at_its_bound_a_stage_ends_with_all_that_it_started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where an interrupt is ignored, as by what a shell started in the background."""
    monkeypatch.setattr("tests.nightly.END_S", 0.5)
    pid_file = tmp_path / "pid"
    command = ("sh", "-c", f"trap '' INT; sleep 600 & echo $! >{pid_file}; wait")

    for bound_s in (0.5, 5, 50):  # the last one on a machine that does much else
        ended = run_stage(stage("a", command, GOOD, minutes_max=bound_s / 60), tmp_path)
        if pid_file.exists():
            break

    assert (True, False) == (ended.is_stopped, ended.is_good)
    assert "stopped at its bound" == ended.row[-1]
    assert 2 == ended.failed  # there was no time for the second one
    pid = int(pid_file.read_text())
    wait_until(lambda: is_gone(pid), within=10, what="the child's end")


def is_gone(pid: int) -> bool:
    try:
        return bool(psutil.Process(pid).status() == psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return True


def test_stages_are_chosen_by_name_in_their_order() -> None:
    assert ["chaos", "fuzz"] == [one.name for one in chosen(["fuzz", "chaos"])]
    assert list(STAGES) == chosen([])
    with pytest.raises(SystemExit, match="no stage fuz; there are marked, chaos"):
        chosen(["fuz"])


def test_every_stage_is_a_target_of_make_and_names_files_that_are_there() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE))
    commands = [command for one in STAGES for command in one.commands]

    assert {"make"} == {program for program, *_ in commands}
    assert [] == [target for _, target, *_ in commands if target not in targets]
    files = re.findall(r"tests/\S+\.py", " ".join(word for command in commands for word in command))
    assert [] == [file for file in files if not (ROOT / file).is_file()]
    assert len(STAGES) == len({one.name for one in STAGES})


def test_a_table_of_nothing_is_its_head() -> None:
    assert 2 == len(table([]).splitlines())
