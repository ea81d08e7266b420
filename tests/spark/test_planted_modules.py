"""Spark's Python workers run no module of the working directory."""

import os
import sys
from pathlib import Path

import pytest

from tests.support.class_archive import quick_spark
from tests.support.programs import run_program
from tests.support.spark_processes import FIRST_COMPILER

pytestmark = pytest.mark.spark

PLANTED = """
import os, pathlib
pathlib.Path(os.environ["MARK"]).write_text(f"{__name__} ran")
raise SystemExit(2)
"""
PROGRAM = """
from txlayer.cli.spark import spark_session

with spark_session(master="local[1]", memory="512m") as session:
    print(session.sparkContext.parallelize([1, 2], 1).map(lambda n: n + 1).sum())
"""


@pytest.mark.threat("write to the working directory of a service or an operator")
def test_sparks_workers_run_no_module_of_the_working_directory(tmp_path: Path) -> None:
    elsewhere, mark = tmp_path / "program", tmp_path / "mark"
    elsewhere.mkdir()
    (elsewhere / "program.py").write_text(PROGRAM, "utf-8")
    for name in ("pyspark", "select", "typer"):
        (tmp_path / f"{name}.py").write_text(PLANTED, "utf-8")

    ran = run_program(
        [sys.executable, str(elsewhere / "program.py")],
        within=300,
        cwd=tmp_path,
        env={**os.environ, "MARK": str(mark), "SPARK_SUBMIT_OPTS": f"{FIRST_COMPILER} {quick_spark()}"},
    )

    assert not mark.exists(), mark.read_text("utf-8")
    assert (0, "5") == (ran.returncode, ran.stdout.strip()), ran.stderr
