"""Every Python that is found here runs a service from the wheel; in `make pythons` the core's tests, too."""

import os
import re
import shutil
import sys
import tomllib
from pathlib import Path

import pytest

from tests.support.packaging import CONSTRAINTS, ROOT, build_wheel, clean_environ, make_environment
from tests.support.programs import run_program

PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
CLAIMED = sorted(
    re.findall(r"Python :: (3\.\d+)", "\n".join(PYPROJECT["project"]["classifiers"])),
    key=lambda version: int(version.partition(".")[2]),
)
CANDIDATES = ("3.11", "3.12", "3.13")
"""Those that the design wants; a classifier in pyproject.toml claims one when it was green here."""

IS_WHOLE = os.environ.get("TXLAYER_TEST_PYTHONS") == "all"
"""`make pythons` says so: half a minute for each Python, too long for every run of everything."""

OURS = f"3.{sys.version_info.minor}"

CORE_TESTS = PYPROJECT["tool"]["mutmut"]["pytest_add_cli_args_test_selection"]
"""What the core is broken against holds it wherever it runs."""


def version_of(python: str) -> str | None:
    """3.12 of an interpreter that runs; some on PATH only say that they are not there."""
    said = run_program([python, "-c", "import sys; print('%d.%d' % sys.version_info[:2])"], within=30)
    return said.stdout.strip() if said.returncode == 0 else None


def interpreters() -> dict[str, str]:
    """{version: path} of the candidates that are on PATH, and of this one."""
    found = {}
    for version in CANDIDATES:
        path = shutil.which(f"python{version}")
        if path is not None and version_of(path) == version:
            found[version] = path
    return {**found, OURS: sys.executable}


FOUND = interpreters()


def test_this_python_is_claimed() -> None:
    assert OURS in CLAIMED
    assert PYPROJECT["project"]["requires-python"] == f">={CLAIMED[0]}"


@pytest.mark.slow
@pytest.mark.nightly
@pytest.mark.parametrize("version", FOUND)
def test_a_python_runs_what_is_claimed_for_it(version: str, tmp_path: Path) -> None:
    wheel = build_wheel(tmp_path)
    constraints = dict(
        line.split("==") for line in CONSTRAINTS.read_text(encoding="utf-8").splitlines() if "==" in line
    )
    needed = [f"{name}=={constraints[name]}" for name in ("pytest", "hypothesis")]
    python = make_environment(tmp_path / "venv", str(wheel), *needed, python=FOUND[version])
    assert version == version_of(str(python))

    def run_pytest(folder: Path, *arguments: str) -> str:
        ran = run_program(
            [python, "-W", "error", "-m", "pytest", "-q", "-p", "no:cacheprovider", *arguments],
            within=280,
            cwd=folder,
            env=clean_environ(tmp_path),
        )
        assert 0 == ran.returncode, ran.stdout[-4000:] + ran.stderr[-2000:]
        return ran.stdout

    # Ours runs all tests anyway.
    if version != OURS and IS_WHOLE:
        run_pytest(ROOT, "--hypothesis-profile=mutation", *CORE_TESTS)
    # From the wheel, where nothing of ours is beside it: producer, coordinator and consumer in memory.
    service = shutil.copytree(
        ROOT / "examples" / "tested_service", tmp_path / "service", ignore=shutil.ignore_patterns("__pycache__", ".*")
    )
    assert "6 passed" in run_pytest(service, "--txlayer-kafka=memory")
