"""One Spark session for the whole run, small, and a namespace of the test's own."""

import gc
import os
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from py4j.java_gateway import JavaClass, JavaPackage, JVMView
from pyspark.logger import PySparkLogger
from pyspark.sql import SparkSession

from tests.conftest import LOCAL_CONFIG, Broker
from tests.support.arena import Arena, make_arena
from tests.support.debian import IS_CI
from tests.support.operating import quick_coordinator
from tests.support.planted import Field
from tests.support.spark_audit import Audit
from txlayer.adapters.kafka.local.runtime import RepositoryUnreachableError
from txlayer.cli.spark import spark_session
from txlayer.errors import ConfigError

SETTINGS = {
    "spark.sql.shuffle.partitions": "2",
    # Short jobs: what the second compiler takes they never give back. Without it Java reserves 48 MB for compiled code,
    # which the plans of all tests of one process may fill.
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:ReservedCodeCacheSize=240m",
    "spark.sql.streaming.minBatchesToRetain": "5",
    "spark.sql.maxPlanStringLength": "100",
}
if not os.environ.get("TXLAYER_TEST_COMPILED"):
    # To compile the plans of a few rows takes a fourth of a run of the ledger. `make sparks` compiles them, as users' sessions do.
    SETTINGS |= {"spark.sql.codegen.wholeStage": "false", "spark.sql.codegen.factoryMode": "NO_CODEGEN"}

# Its own gives each handler Spark's formatter, for ever. Those of pytest, which other tests use after these, are among them.
del PySparkLogger.addHandler


def _remember(part: type) -> None:
    """PySpark asks Java anew for each part of a name such as `py4j.reflection.TypeUtil`, and Java looks for a class `py4j` in all of its
    jars: 14 times for each exception that comes from Java. What is a package or a class stays one.
    """
    look_up = part.__getattr__  # type: ignore[attr-defined]  # both classes have it

    def remembered(self: Any, name: str) -> Any:
        found = look_up(self, name)
        if isinstance(found, (JavaClass, JavaPackage)):
            self.__dict__[name] = found
        return found

    part.__getattr__ = remembered  # type: ignore[attr-defined]  # likewise


_remember(JVMView)
_remember(JavaPackage)

# Only this file needs its packages, which are large: `make sparks` installs them.
collect_ignore = [] if find_spec("grpc") else ["test_connect.py"]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Every test here needs Spark, which leaves the sockets of its results to the collector of garbage."""
    here = str(Path(__file__).parent)
    for item in items:
        if str(item.path).startswith(here):
            item.add_marker(pytest.mark.spark)
            item.add_marker(pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning"))


@pytest.fixture(autouse=True)
def no_garbage_for_others() -> Iterator[None]:
    """What a test of Spark left is collected before a test begins that allows no open socket."""
    yield
    gc.collect()


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """The session of the run; tests leave no view, table or query behind."""
    before = dict(os.environ)
    try:
        with spark_session(master="local[2]", memory="2g", settings=SETTINGS, config=LOCAL_CONFIG) as session:
            yield session
    except (ConfigError, RepositoryUnreachableError) as exc:
        # At home a machine without Java or network still runs the other tests; in CI nothing is skipped.
        if IS_CI:
            raise
        pytest.skip(f"no Spark: {exc}")
    finally:
        os.environ.clear()
        os.environ.update(before)


@pytest.fixture(scope="module")
def arena(broker: Broker) -> Iterator[Arena]:
    """One namespace whose coordinator runs as long as the tests of this file."""
    arena = make_arena(broker.bootstrap_servers, partition_count=2, target_partitions=(1, 1))
    with quick_coordinator(arena):
        yield arena


@pytest.fixture
def field(broker: Broker) -> Field:
    """A namespace of the test's own, with the topics `orders` and `stock`."""
    return Field(broker.bootstrap_servers)


@pytest.fixture
def audit(spark: SparkSession, field: Field, tmp_path: Path) -> Audit:
    """Bronze and a ledger of that namespace."""
    return Audit(spark, field, tmp_path)
