"""Everything runs on a cluster too: a standalone one of two workers, each with an executor of its own."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import LOCAL_CONFIG, Broker
from tests.support.logs import read_log
from tests.support.planted import Field, Message
from tests.support.spark_cluster import SparkCluster, spark_cluster
from txlayer.adapters.kafka.local.runtime import SparkRuntime, prepare_connector
from txlayer.core import codec
from txlayer.core.messages import OpMessage, Resolution

pytestmark = [pytest.mark.kafka, pytest.mark.slow, pytest.mark.nightly]

PROGRAM = """
import runpy, sys
from txlayer_spark import SinkSettings, write_transactional
from txlayer_spark.sessions import build_session
program, servers, namespace, topic, *audit = sys.argv[1:]
spark = build_session(name="publish", master=None)
settings = SinkSettings(
    bootstrap_servers=servers, namespace=namespace, topic=topic, producer_group="shop", split=True, transaction_messages_max=40
)
batch = spark.range(0, 200, 1, 4).selectExpr("concat('k', id) AS key", "concat('v', id) AS value")
write_transactional(batch, settings, query="cluster", epoch=0)
sys.argv = [program, *audit]
runpy.run_path(program, run_name="__main__")
"""


@pytest.fixture(scope="module")
def runtime() -> SparkRuntime:
    """Java and the connector."""
    return prepare_connector(LOCAL_CONFIG)


@pytest.fixture(scope="module")
def cluster(runtime: SparkRuntime, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkCluster]:
    """Two workers with one core each."""
    folder = tmp_path_factory.mktemp("cluster")
    with spark_cluster(folder, java_home=runtime.java_home, workers=2, memory="1g") as cluster:
        yield cluster


def test_a_batch_is_published_and_the_namespace_audited_by_two_workers(
    cluster: SparkCluster, runtime: SparkRuntime, broker: Broker, tmp_path: Path
) -> None:
    field = Field(broker.bootstrap_servers)
    for _ in range(5):
        field.whole(Message(field.orders), Message(field.stock))
    program = tmp_path / "publish.py"
    program.write_text(PROGRAM, "utf-8")
    page = tmp_path / "report.html"

    done = cluster.submit(
        str(program),
        str(Path(codec.__file__).parents[1] / "cli" / "spark" / "__main__.py"),
        field.servers,
        field.namespace,
        field.orders,
        "audit",
        "-b",
        field.servers,
        "-n",
        field.namespace,
        "--data",
        str(tmp_path / "data"),
        "--page",
        str(page),
        "--grace",
        "1h",
        "--json",
        jars=runtime.jars,
        settings={"spark.sql.shuffle.partitions": "2"},
        within=300,
    )

    assert 0 == done.returncode, done.stderr[-3000:]
    verdicts = json.loads(done.stdout.splitlines()[-1])["verdicts"]
    lines = [
        codec.decode_op(line)
        for record in read_log(field.servers, [field.topic("op")])[field.topic("op")]
        for line in (record.value or b"").decode().split("\n")
    ]
    parts = [op for op in lines if isinstance(op, OpMessage) and op.key.startswith("cluster-0.")]
    assert 5 <= len(parts)
    assert {Resolution.COMMIT} == {op.resolution for op in parts}
    # No coordinator runs here: what was just published is on its way.
    assert (5, len(parts)) == (verdicts["ok"], verdicts["open"])
    assert page.stat().st_size > 10_000
    assert {"worker-0": 1, "worker-1": 1} == cluster.executors()
