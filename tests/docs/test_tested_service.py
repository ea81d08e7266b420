"""The example of a service with tests passes its tests, in memory and on a real broker of its own."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.class_archive import quick_java
from tests.support.programs import run_program
from txlayer.adapters.kafka.local import LocalConfig

ROOT = Path(__file__).resolve().parents[2]
EXAMPLE = ROOT / "examples" / "tested_service"
TEST_COUNT = 6


@pytest.fixture
def service(tmp_path: Path) -> Path:
    """A copy: nothing of ours is beside it."""
    left_behind = shutil.ignore_patterns("__pycache__", ".*")
    return shutil.copytree(EXAMPLE, tmp_path / "service", ignore=left_behind)


def run_its_tests(service: Path, *options: str, java: str = "") -> subprocess.CompletedProcess[str]:
    plugins = ["-p", "txlayer.testing.plugin", "-p", "no:cacheprovider"]
    return run_program(
        [sys.executable, "-W", "error", "-m", "pytest", *plugins, *options],
        within=180,
        cwd=service,
        env={**os.environ, "PYTHONPATH": str(ROOT), "JDK_JAVA_OPTIONS": java},
    )


def test_the_services_tests_pass_in_memory(service: Path) -> None:
    ran = run_its_tests(service)

    assert 0 == ran.returncode, ran.stdout[-4000:]
    assert f"{TEST_COUNT} passed" in ran.stdout
    assert "txlayer: Kafka in memory" in ran.stdout


@pytest.mark.kafka
@pytest.mark.usefixtures("broker")  # where no broker can run it is skipped, and in CI red
def test_the_services_tests_pass_on_a_real_broker(service: Path, local_config: LocalConfig) -> None:
    ran = run_its_tests(service, "--txlayer-kafka=local", java=quick_java(local_config))

    assert 0 == ran.returncode, ran.stdout[-4000:]
    assert f"{TEST_COUNT} passed" in ran.stdout
    assert "txlayer: Kafka from its jars" in ran.stdout


def test_a_fault_of_the_service_makes_its_tests_fail(service: Path) -> None:
    till = service / "till.py"
    program = till.read_text(encoding="utf-8")
    # It forgets to take its word back: what was not sold stays open, and nobody knows how it ends.
    till.write_text(program.replace("tx.rollback()", "tx.commit()"), encoding="utf-8")

    ran = run_its_tests(service, "-k", "told_of")

    assert 1 == ran.returncode, ran.stdout[-4000:]
    assert "test_who_got_nothing_is_not_told_of" in ran.stdout
    assert "though nothing should be" in ran.stdout
    assert "1 failed, 1 passed" in ran.stdout
