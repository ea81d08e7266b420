"""The project as a user gets it: a wheel, and clean environments that it is installed into."""

import os
import sys
from collections.abc import Sequence
from pathlib import Path

from tests.support.programs import run_program

ROOT = Path(__file__).resolve().parents[2]
CONSTRAINTS = ROOT / ".ci" / "constraints.txt"


def build_wheel(folder: Path) -> Path:
    """Build it there."""
    _run([sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)], cwd=ROOT)
    (wheel,) = folder.glob("txlayer-*.whl")
    return wheel


def make_environment(folder: Path, *requirements: str, python: str = sys.executable) -> Path:
    """A new virtual environment with these packages, of the versions that are tested; its `python`."""
    _run([python, "-m", "venv", "--without-pip", str(folder)])
    made = folder / "bin" / "python"
    # Our own pip for every interpreter: one that a distribution left without ensurepip is served, too.
    quiet = ["--quiet", "--disable-pip-version-check", "--no-input"]
    install = [sys.executable, "-m", "pip", *quiet, "--python", str(made), "install"]
    _run([*install, "--constraint", str(CONSTRAINTS), *requirements])
    return made


def clean_environ(home: Path) -> dict[str, str]:
    """The environment of somebody who has nothing of txlayer's yet; how packages are found stays."""
    kept = {
        name: value for name, value in os.environ.items() if not name.startswith(("TXLAYER_", "PYTHON", "VIRTUAL_ENV"))
    }
    return {**kept, "HOME": str(home), "XDG_CACHE_HOME": str(home / ".cache")}


def _run(command: Sequence[str], *, cwd: Path | None = None) -> None:
    ran = run_program(command, within=300, cwd=cwd)
    assert 0 == ran.returncode, f"{' '.join(command)}\n{ran.stdout}{ran.stderr}"
