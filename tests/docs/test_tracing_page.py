"""The program of docs/howto/tracing.md runs as it stands, and its commands and spans exist."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.programs import run_program

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "howto" / "tracing.md").read_text(encoding="utf-8")


def run(*command: str, folder: Path) -> subprocess.CompletedProcess[str]:
    paths = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    return run_program(command, within=60, cwd=folder, env=os.environ | {"PYTHONPATH": paths})


def test_the_program_runs_and_prints_its_spans(tmp_path: Path) -> None:
    (program,) = re.findall(r"^```python\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)

    ran = run(sys.executable, "-W", "error", "-c", program, folder=tmp_path)

    assert (0, "") == (ran.returncode, ran.stderr)
    for name in ("prepare txlayer.half", "commit txlayer.op", "POST /orders"):
        assert f'"name": "{name}"' in ran.stdout


@pytest.mark.parametrize("command", ["coordinator", "consumer", "responder"])
def test_the_commands_have_the_option(command: str, tmp_path: Path) -> None:
    ran = run(sys.executable, "-m", "txlayer", command, "run", "--help", folder=tmp_path)

    assert "--tracing" in ran.stdout


def test_every_command_takes_a_log_format_before_it(tmp_path: Path) -> None:
    words = ("--log-format", "yaml", "topics", "check")

    ran = run(sys.executable, "-m", "txlayer", *words, folder=tmp_path)

    assert 2 == ran.returncode
    assert "text or json" in ran.stderr


def test_a_command_under_the_launcher_has_an_sdk(tmp_path: Path) -> None:
    launcher = Path(sys.executable).with_name("opentelemetry-instrument")
    program = "from txlayer.adapters.otel import is_recorded; print(is_recorded())"

    ran = run(
        str(launcher),
        "--traces_exporter",
        "none",
        "--metrics_exporter",
        "none",
        "--logs_exporter",
        "none",
        sys.executable,
        "-c",
        program,
        folder=tmp_path,
    )

    assert "True" == ran.stdout.strip(), ran.stderr
