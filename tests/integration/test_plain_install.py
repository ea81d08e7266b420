"""What a plain install, without any extra, does: nothing of a user's machine is needed to see it."""

import sys
from pathlib import Path

from tests.support.programs import run_program

ROOT = Path(__file__).resolve().parents[2]

# -S: without the installed packages; only the standard library and txlayer itself.
RUN = "import sys; sys.path.insert(0, sys.argv[1]); from txlayer.cli import run; run()"


def test_the_command_without_its_extra_names_the_extra() -> None:
    answer = run_program([sys.executable, "-I", "-S", "-c", RUN, ROOT], within=60)

    assert (2, "") == (answer.returncode, answer.stdout)
    assert 'txlayer needs its command line: pip install "txlayer[cli]"\n' == answer.stderr
