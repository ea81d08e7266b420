"""`txlayer-spark bronze` killed or suspended by the system, beside `txlayer-spark ledger` or another bronze: real command lines."""

import re
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.conftest import Broker
from tests.spark.test_commands import RUN, SMALL, txlayer_spark
from tests.support.logs import read_log
from tests.support.planted import Field, Message
from tests.support.spark_processes import files_in, has_content, killed_when, suspended_when
from txlayer_spark import read_ledger
from txlayer_spark.catalog import Catalog
from txlayer_spark.jobs.bronze import BronzeSettings, read_new
from txlayer_spark.jobs.ledger import LedgerSettings, update_ledger
from txlayer_spark.shelf import LEDGER_VERSION

pytestmark = [pytest.mark.kafka, pytest.mark.slow, pytest.mark.nightly]

FAULTS = {"orphan", "leaked", "duplicate", "torn", "corrupt", "out_of_order", "lost"}
Point = Callable[[Path, str], bool]


WAITING = """
import sys
from pyspark.sql import functions as F
from tests.support.waiting import hang
from txlayer.cli import run_spark
from txlayer_spark.catalog import Catalog
from txlayer_spark.jobs import bronze
step, number, topic, *arguments = sys.argv[1:]
sys.argv[1:] = arguments
rows_of, kinds_of, last_of = bronze.to_bronze, Catalog.kinds, Catalog.last_batch

def to_bronze(raw, **given):
    # The task of one topic waits in the middle of its rows; those of other topics end.
    waits = f"topic = '{topic}' AND offset = 5 AND reflect('java.lang.Thread', 'sleep', 600000L) IS NOT NULL"
    return rows_of(raw, **given).where(~F.expr(waits))

def kinds(catalog, folders):
    return hang() if folders[0].reader == int(number) else kinds_of(catalog, folders)

def last_batch(catalog, reader):
    return hang() if reader == int(number) else last_of(catalog, reader)

if step == "a_batch_in_the_middle":
    bronze.to_bronze = to_bronze
elif step == "a_batch_that_spark_has_not_noted":
    Catalog.kinds = kinds
else:
    Catalog.last_batch = last_batch
run_spark()
"""
"""`bronze` that waits at a step of one reader until it is killed. Its own arguments follow those of the step."""


def _batches(data: Path, reader: str) -> list[Path]:
    return [path.parent for path in data.glob(f"bronze/v1/records/folder={reader}-*/_SUCCESS")]


def _committed(data: Path, reader: str) -> int:
    return sum(path.name.isdigit() for path in data.glob(f"bronze/v1/checkpoints/{reader}/commits/*"))


def a_batch_in_the_middle(data: Path, reader: str) -> bool:
    """A whole file of a batch is there that has no end yet."""
    folders = data.glob(f"bronze/v1/records/folder={reader}-*")
    return any(
        not (folder / "_SUCCESS").exists() and any(map(has_content, files_in(folder, ".parquet"))) for folder in folders
    )


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


@pytest.mark.fault("Spark: bronze is killed at any step, also between its readers, while a ledger is made")
@pytest.mark.parametrize(("point", "reader"), POINTS, ids=lambda part: getattr(part, "__name__", part))
def test_a_ledger_beside_a_bronze_that_is_killed_says_nothing_that_is_not_so(
    point: Point, reader: str, spark: SparkSession, broker: Broker, tmp_path: Path
) -> None:
    field, data = Field(broker.bootstrap_servers), tmp_path / "data"
    two = (Message(field.orders), Message(field.stock))
    for _ in range(20):
        field.whole(*two, ordering_key=b"k")
    waits_in = field.topic("op") if reader == "000" else field.stock
    bronze = ("bronze", "-b", field.servers, "-n", field.namespace, "--data", "data", *SMALL)
    arguments = (point.__name__, reader, waits_in, *bronze)
    with killed_when(lambda: point(data, reader), WAITING, *arguments, folder=tmp_path):
        pass
    assert point(data, reader)
    # What came meanwhile is half of it known to the next one, and it is killed, too, at any moment.
    for _ in range(20):
        field.whole(*two, ordering_key=b"k")
    with killed_when(lambda: _batches(data, "001"), RUN, *bronze, "--every", "1s", folder=tmp_path):
        ledger = ("ledger", "--data", "data", "--grace", "0s", *SMALL)
        beside = txlayer_spark(*ledger, folder=tmp_path)
        if beside.returncode == 0:
            assert not FAULTS & verdicts(spark, data)
        else:
            assert "run txlayer-spark bronze first" in beside.stderr

    done = txlayer_spark(*bronze, folder=tmp_path)
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


SLOW = """
from txlayer.cli import run_spark
from txlayer_spark.jobs import bronze
from txlayer_spark.shelf import Shelf
rows_of, put_rows = bronze.to_bronze, Shelf.put_rows

def slow(rows):
    return rows.where("spark_partition_id() <> 0 OR reflect('java.lang.Thread', 'sleep', 500L) = 'null'")

bronze.to_bronze = lambda raw, **given: slow(rows_of(raw, **given))
Shelf.put_rows = lambda shelf, rows, *given, **named: put_rows(shelf, slow(rows), *given, **named)
run_spark()
"""
"""Commands whose tasks come one after the other, and each row of the first one takes half a second."""
ONE_BY_ONE = ("--master", "local[1]", *SMALL[2:], "--spark-setting", "spark.sql.adaptive.enabled=false")


@pytest.fixture
def planted(broker: Broker) -> tuple[Field, set[str]]:
    """A namespace with twenty transactions that went well, and their ids."""
    field = Field(broker.bootstrap_servers)
    return field, {field.whole().txn_id for _ in range(20)}


def begun(*folder: str | Path) -> bool:
    """A file is there, and more than just made."""
    made = [path.stat().st_mtime for path in files_in(Path(*folder), ".parquet")]
    return any(time.time() - at > 0.2 for at in made)


def read_all(spark: SparkSession, field: Field, data: Path) -> Catalog:
    """Bronze of all that there is."""
    settings = BronzeSettings(root=f"{data}/bronze", namespace=field.namespace, bootstrap_servers=field.servers)
    read_new(spark, settings, now_ms=lambda: int(time.time() * 1000))
    return Catalog(spark, settings.root)


@pytest.mark.fault(
    "Spark: a run of bronze or of the ledger is suspended while it writes, and goes on behind another one"
)
def test_a_bronze_that_goes_on_behind_another_one_doubles_no_record(
    spark: SparkSession, planted: tuple[Field, set[str]], tmp_path: Path
) -> None:
    """The tasks that had not begun write when the other run has ended."""
    field, data = planted[0], tmp_path / "data"
    given = ("bronze", "-b", field.servers, "-n", field.namespace, "--data", "data", *ONE_BY_ONE)

    with suspended_when(lambda: begun(data, "bronze/v1/records"), SLOW, *given, folder=tmp_path) as job:
        catalog = read_all(spark, field, data)

    assert 0 != job.returncode
    assert "another run of bronze" in (tmp_path / "said").read_text("utf-8")
    records = catalog.records(catalog.cut(catalog.state())).groupBy("topic", "partition", "offset").count()
    found = {(row.topic, row.partition, row.offset): row["count"] for row in records.collect()}
    logs = read_log(field.servers, [field.topic("half"), field.topic("op"), field.orders])
    assert {(r.topic, r.partition, r.offset): 1 for log in logs.values() for r in log} == found


@pytest.mark.fault(
    "Spark: a run of bronze or of the ledger is suspended while it writes, and goes on behind another one"
)
def test_a_ledger_that_goes_on_behind_another_one_doubles_no_row(
    spark: SparkSession, planted: tuple[Field, set[str]], tmp_path: Path
) -> None:
    (field, ids), data = planted, tmp_path / "data"
    read_all(spark, field, data)
    settings = LedgerSettings(bronze=f"{data}/bronze", root=f"{data}/ledger")
    rows = data / "ledger" / f"v{LEDGER_VERSION}" / "rows"

    with suspended_when(lambda: begun(rows), SLOW, "ledger", "--data", "data", *ONE_BY_ONE, folder=tmp_path) as job:
        update_ledger(spark, settings)

    assert 0 != job.returncode
    assert "another run of the ledger" in (tmp_path / "said").read_text("utf-8")
    for _ in range(2):
        assert dict.fromkeys(ids, 1) == Counter(row.txn_id for row in read_ledger(spark, settings.root).collect())
        update_ledger(spark, settings)
