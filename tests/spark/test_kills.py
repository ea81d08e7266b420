"""`txlayer-spark bronze --every` killed by the system at each of its steps, beside `txlayer-spark ledger`: real command lines."""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.conftest import Broker
from tests.spark.test_commands import txlayer_spark
from tests.support.planted import Field, Message
from tests.support.waiting import wait_until
from txlayer_spark import read_ledger

pytestmark = [pytest.mark.kafka, pytest.mark.slow, pytest.mark.nightly]

SMALL = (
    "--master",
    "local[2]",
    "--memory",
    "1g",
    "--spark-setting",
    "spark.sql.shuffle.partitions=2",
    "--spark-setting",
    "spark.driver.extraJavaOptions=-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
)
FAULTS = {"orphan", "leaked", "duplicate", "torn", "corrupt", "out_of_order", "lost"}
Point = Callable[[Path, str], bool]


def _batches(data: Path, reader: str) -> list[Path]:
    return [path.parent for path in data.glob(f"bronze/v1/records/folder={reader}-*/_SUCCESS")]


def _committed(data: Path, reader: str) -> int:
    return sum(path.name.isdigit() for path in data.glob(f"bronze/v1/checkpoints/{reader}/commits/*"))


def _noted(data: Path) -> int:
    return len(list(data.glob("bronze/v1/reads/*.json")))


def a_batch_in_the_middle(data: Path, reader: str) -> bool:
    """Files of a batch are there that has no end yet."""
    folders = data.glob(f"bronze/v1/records/folder={reader}-*")
    return any(not (f / "_SUCCESS").exists() and list(f.rglob("*.parquet")) for f in folders)


def a_batch_that_spark_has_not_noted(data: Path, reader: str) -> bool:
    """A batch is written whose end is not in Spark's checkpoint."""
    return len(_batches(data, reader)) > _committed(data, reader)


def a_batch_that_bronze_has_not_noted(data: Path, reader: str) -> bool:
    """Spark has noted the batch, and the cut is still the one before."""
    return 0 < len(_batches(data, reader)) == _committed(data, reader)


POINTS: list[tuple[Point, str]] = [
    (point, reader)
    for reader in ("000", "001")
    for point in (a_batch_in_the_middle, a_batch_that_spark_has_not_noted, a_batch_that_bronze_has_not_noted)
]


def start_bronze(field: Field, folder: Path) -> subprocess.Popen[bytes]:
    """`bronze --every` in a process group of its own: Python and the Java that it starts."""
    return subprocess.Popen(
        [
            sys.executable,
            "-c",
            "from txlayer.cli import run_spark; run_spark()",
            "bronze",
            "-b",
            field.servers,
            "-n",
            field.namespace,
            "--data",
            "data",
            "--every",
            "1s",
            *SMALL,
        ],
        cwd=folder,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
        env={**os.environ, "PYTHONPATH": ":".join(sys.path)},
    )


@pytest.mark.fault("Spark: bronze is killed at any step, also between its readers, while a ledger is made")
@pytest.mark.parametrize(("point", "reader"), POINTS, ids=lambda part: getattr(part, "__name__", part))
def test_a_ledger_beside_a_bronze_that_is_killed_says_nothing_that_is_not_so(
    point: Point, reader: str, spark: SparkSession, broker: Broker, tmp_path: Path
) -> None:
    field, data = Field(broker.bootstrap_servers), tmp_path / "data"
    two = (Message(field.orders), Message(field.stock))
    for _ in range(20):
        field.whole(*two, ordering_key=b"k")
    job = start_bronze(field, tmp_path)
    try:
        wait_until(lambda: point(data, reader), within=120, what=point.__name__)
    finally:
        os.killpg(job.pid, signal.SIGKILL)
        job.wait()
    # What came meanwhile is half of it known to the next one, and it is killed, too, at any moment.
    for _ in range(20):
        field.whole(*two, ordering_key=b"k")
    job = start_bronze(field, tmp_path)
    try:
        ledger = ("ledger", "--data", "data", "--grace", "0s", *SMALL)
        beside = txlayer_spark(*ledger, folder=tmp_path)
        if beside.returncode == 0:
            assert not FAULTS & verdicts(spark, data)
        else:
            assert "run txlayer-spark bronze first" in beside.stderr
        wait_until(lambda: _batches(data, "001"), within=90, what="real topics are read")
    finally:
        os.killpg(job.pid, signal.SIGKILL)
        job.wait()

    done = txlayer_spark(
        "bronze", "-b", field.servers, "-n", field.namespace, "--data", "data", *SMALL, folder=tmp_path
    )
    assert 0 == done.returncode, done.stderr
    done = txlayer_spark("ledger", "--data", "data", "--grace", "0s", *SMALL, folder=tmp_path)
    assert 0 == done.returncode, done.stderr
    assert re.search(r"ledger: run \d+", done.stdout)
    assert {"ok"} == verdicts(spark, data)
    assert 40 == read_ledger(spark, str(data / "ledger")).count()


def verdicts(spark: SparkSession, data: Path) -> set[str]:
    """Those that a ledger has."""
    rows = read_ledger(spark, str(data / "ledger")).select("verdict").distinct().collect()
    return {row.verdict for row in rows}
