"""Spark Connect: topics and tables are read, what needs a Java of its own is refused at once, and the example's pipeline runs. `make sparks` runs it."""

import os
import shutil
import sys
from pathlib import Path

import pyspark
import pytest
from pyspark.sql import SparkSession

from tests.conftest import LOCAL_CONFIG, Broker
from tests.support.pages import ROOT
from tests.support.planted import Field
from tests.support.programs import run_program
from txlayer.adapters.kafka.local.runtime import prepare_connector

OVER_CONNECT = """
import sys
from txlayer.errors import UsageError
from txlayer_spark import SinkSettings, open_tables, read_ledger, read_topic, session, write_transactional

jars, servers, topic = sys.argv[1:]
spark = session(remote="local[1]", settings={"spark.jars": jars, "spark.ui.enabled": "false"})
print(type(spark).__module__)
rows = read_topic(spark, topic, bootstrap_servers=servers)
print("read", rows.where("txn_id IS NOT NULL").count())
for name in ("bronze", "ledger", "events"):
    made = spark.sql("SELECT 'ok' AS verdict, 'asked' AS event, DATE'2026-01-31' AS day, 1L AS run")
    made.write.partitionBy("day", "run").parquet(f"parquet/{name}")
open_tables(spark, "parquet")
print("tables", spark.sql("SELECT t.verdict, c.event FROM transactions t JOIN checks c USING (day)").collect())
settings = SinkSettings(bootstrap_servers=servers, producer_group="g", topic=topic)
for refused in (
    lambda: open_tables(spark, "nowhere"),
    lambda: read_ledger(spark, "nowhere"),
    lambda: write_transactional(rows, settings, query="q", epoch=1),
):
    try:
        refused()
    except UsageError as exc:
        print("refused", exc)
spark.stop()
"""


@pytest.mark.kafka
@pytest.mark.slow
def test_over_spark_connect_topics_and_tables_are_read_and_the_rest_is_refused_at_once(
    broker: Broker, tmp_path: Path
) -> None:
    field = Field(broker.bootstrap_servers)
    field.whole()
    runtime = prepare_connector(LOCAL_CONFIG)

    done = run_program(
        [sys.executable, "-c", OVER_CONNECT, ",".join(map(str, runtime.jars)), field.servers, field.orders],
        within=300,
        cwd=tmp_path,
        env={**os.environ, "JAVA_HOME": str(runtime.java_home), "PYTHONPATH": ":".join(sys.path)},
    )

    assert 0 == done.returncode, done.stderr[-3000:]
    assert "pyspark.sql.connect" in done.stdout
    assert "read 1" in done.stdout
    assert "tables [Row(verdict='ok', event='asked')]" in done.stdout
    assert "refused no tables in nowhere" in done.stdout
    assert 3 == done.stdout.count("refused ")


PIPELINES = Path(pyspark.__file__).parent / "bin" / "spark-pipelines"


@pytest.mark.slow
@pytest.mark.skipif(not PIPELINES.exists(), reason="Spark has pipelines from 4.1 on")
def test_the_examples_pipeline_makes_its_tables(spark: SparkSession, tmp_path: Path) -> None:
    at = "DATE'2026-01-31' AS day"
    for name, rows in (
        ("events", f"SELECT explode(array('stored', 'stored', 'commit')) AS event, {at}"),
        ("ledger", f"SELECT 'shop' AS producer_group, 'producer' AS decided_by, 7L AS total_ms, {at}"),
    ):
        spark.sql(rows).write.partitionBy("day").parquet(f"{tmp_path}/parquet/{name}")
    example = ROOT / "examples" / "spark" / "pipeline"
    shutil.copytree(example, tmp_path / "pipeline")
    spec = tmp_path / "pipeline" / "spark-pipeline.yml"
    text = spec.read_text("utf-8").replace("/tmp/audit/parquet", f"{tmp_path}/parquet")
    spec.write_text(text.replace("/tmp/audit-pipeline", f"{tmp_path}/storage"), "utf-8")

    done = run_program(
        [str(PIPELINES), "run", "--spec", str(spec)],
        within=300,
        cwd=tmp_path,
        env={
            **os.environ,
            "JAVA_HOME": str(prepare_connector(LOCAL_CONFIG).java_home),
            "SPARK_HOME": str(PIPELINES.parent.parent),
            "PYSPARK_PYTHON": sys.executable,
            "PYTHONPATH": ":".join(sys.path),
        },
    )

    assert 0 == done.returncode, done.stderr[-3000:]
    made = {name: spark.read.parquet(str(*tmp_path.rglob(name))).collect() for name in ("by_day", "by_group")}
    assert {("stored", 2), ("commit", 1)} == {(row.event, row["count"]) for row in made["by_day"]}
    assert [("shop", 1, 0, 7)] == [tuple(row) for row in made["by_group"]]
