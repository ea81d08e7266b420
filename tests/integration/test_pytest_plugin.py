"""The plugin in a project of a user's: which Kafka it takes, and what it says when that is not possible."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.programs import run_program

ROOT = Path(__file__).resolve().parents[2]

ONE_TEST = """
def test_a_message_is_published(txlayer_stage):
    topic = txlayer_stage.topic("orders")
    with txlayer_stage.producer().transaction() as tx:
        tx.send(topic, value="42")
        tx.prepare()
    txlayer_stage.assert_published(topic, value="42")
"""

NOTHING_USED = """
import sys


def test_nothing_is_imported_that_nobody_asked_for():
    assert [] == [name for name in sys.modules if name in ("txlayer.config", "confluent_kafka", "docker")]
"""


@pytest.fixture
def nothing_here(tmp_path: Path) -> dict[str, str]:
    """An environment with neither Kafka nor Docker."""
    nowhere = tmp_path / "nowhere"
    return {"TXLAYER_KAFKA_HOME": str(nowhere), "DOCKER_HOST": f"unix://{nowhere}"}


def run_pytest(
    folder: Path, program: str, *options: str, environ: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """A project of one file."""
    (folder / "pyproject.toml").write_text("[tool.pytest.ini_options]\n", encoding="utf-8")
    (folder / "test_it.py").write_text(program, encoding="utf-8")
    plugins = ["-p", "txlayer.testing.plugin", "-p", "no:randomly", "-p", "no:cacheprovider"]
    return run_program(
        [sys.executable, "-W", "error", "-m", "pytest", *plugins, *options],
        within=120,
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT), **(environ or {})},
    )


def test_what_is_no_kafka_is_refused_before_any_test_runs(tmp_path: Path) -> None:
    ran = run_pytest(tmp_path, ONE_TEST, "--txlayer-kafka=docker")

    assert 4 == ran.returncode, ran.stdout
    assert "memory, local, container, auto or HOST:PORT" in ran.stderr


@pytest.mark.parametrize(
    ("named", "reason"),
    [
        ("local", "no Kafka 3.9 or later there"),
        ("container", "no Docker answers"),
        ("kafka.example:9092", "--txlayer-insecure allows plain text"),
    ],
)
def test_a_kafka_that_is_not_possible_is_an_error_with_its_reason(
    tmp_path: Path, nothing_here: dict[str, str], named: str, reason: str
) -> None:
    ran = run_pytest(tmp_path, ONE_TEST, f"--txlayer-kafka={named}", environ=nothing_here)

    assert 1 == ran.returncode, ran.stdout
    assert f"--txlayer-kafka={named} is not possible here: " in ran.stdout
    assert reason in ran.stdout
    assert "1 error" in ran.stdout
    assert "Traceback" not in ran.stdout
    assert "During handling" not in ran.stdout


def test_where_nothing_else_is_there_tests_run_in_memory_and_say_why(
    tmp_path: Path, nothing_here: dict[str, str]
) -> None:
    ran = run_pytest(tmp_path, ONE_TEST, environ=nothing_here)

    assert 0 == ran.returncode, ran.stdout
    (line,) = [line for line in ran.stdout.splitlines() if line.startswith("txlayer: ")]
    assert "Kafka in memory: no Kafka 3.9 or later there" in line
    assert "no Docker answers" in line


def test_a_run_that_uses_no_fixture_imports_nothing_and_hears_nothing(tmp_path: Path) -> None:
    ran = run_pytest(tmp_path, NOTHING_USED)

    assert 0 == ran.returncode, ran.stdout
    assert "txlayer: " not in ran.stdout
