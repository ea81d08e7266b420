"""The units are what systemd understands, give up every right they can, and start what the program takes."""

import re
import shlex
from pathlib import Path

import pytest

from tests.support.debian import program
from tests.support.deployment import COMPOSE, exit_code
from tests.support.programs import run_program
from txlayer.cli.exits import ExitCode
from txlayer.cli.main import build_app

UNITS = sorted((COMPOSE / "systemd").glob("*.service"))
PROGRAM = "/opt/txlayer/bin/txlayer"
EXPOSURE_MAX = 1.5
"""Of 10, by systemd's own count; what is left is the network."""


def installed(unit: Path, folder: Path) -> Path:
    """The unit as one of this machine: a program that is there, and an instance of a template."""
    made = folder / unit.name.replace("@.", "@shop.")
    made.write_text(unit.read_text("utf-8").replace(PROGRAM, "/bin/true"), encoding="utf-8")
    return made


def settings(unit: Path, name: str) -> list[str]:
    """What a unit says of one setting."""
    return re.findall(rf"^{name}=(.*)$", unit.read_text("utf-8"), re.MULTILINE)


def test_there_are_units() -> None:
    assert ["txlayer-coordinator.service", "txlayer-responder@.service"] == [u.name for u in UNITS]


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.name)
def test_systemd_finds_nothing_wrong_with_a_unit(unit: Path, tmp_path: Path) -> None:
    analyze = program("systemd-analyze", package="systemd")
    made = installed(unit, tmp_path)

    answer = run_program(
        [analyze, "verify", made.name], within=60, cwd=tmp_path, env={"SYSTEMD_UNIT_PATH": f"{tmp_path}:"}
    )

    of_ours = [line for line in answer.stderr.splitlines() if "txlayer" in line]
    assert (0, []) == (answer.returncode, of_ours)


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.name)
def test_a_unit_gives_up_every_right_that_it_can(unit: Path, tmp_path: Path) -> None:
    analyze = program("systemd-analyze", package="systemd")
    made = installed(unit, tmp_path)

    answer = run_program(
        [analyze, "security", "--offline=true", "--no-pager", made], within=60, env={"LC_ALL": "C.UTF-8"}
    )

    exposure = re.search(r"exposure level for .*: ([0-9.]+)", answer.stdout)
    assert exposure is not None, answer.stderr
    assert float(exposure[1]) <= EXPOSURE_MAX


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.name)
def test_a_unit_starts_what_the_program_takes(unit: Path) -> None:
    (line,) = settings(unit, "ExecStart")
    found, *arguments = shlex.split(line.replace("%i", "shop"))

    assert PROGRAM == found
    assert 0 == exit_code(arguments, build_app())


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.name)
def test_what_would_only_repeat_itself_is_not_started_again(unit: Path) -> None:
    (codes,) = settings(unit, "RestartPreventExitStatus")

    final = (ExitCode.USAGE, ExitCode.FENCED, ExitCode.NOT_AUTHORISED, ExitCode.BROKEN_INVARIANT)
    assert [str(int(code)) for code in final] == codes.split()
    assert ["on-failure"] == settings(unit, "Restart")
    assert ["mixed"] == settings(unit, "KillMode")


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.name)
def test_a_unit_is_bounded(unit: Path) -> None:
    limits = [settings(unit, name) for name in ("CPUQuota", "MemoryMax", "TasksMax")]

    assert [1, 1, 1] == [len(found) for found in limits]
