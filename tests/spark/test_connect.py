"""Spark Connect: topics are read, and what needs a Java of its own is refused at once. `make sparks` runs it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import LOCAL_CONFIG, Broker
from tests.support.planted import Field
from txlayer.adapters.kafka.local.runtime import prepare_connector

OVER_CONNECT = """
import sys
from txlayer.errors import UsageError
from txlayer_spark import SinkSettings, read_ledger, read_topic, session, write_transactional

jars, servers, topic = sys.argv[1:]
spark = session(remote="local[1]", settings={"spark.jars": jars, "spark.ui.enabled": "false"})
print(type(spark).__module__)
rows = read_topic(spark, topic, bootstrap_servers=servers)
print("read", rows.where("txn_id IS NOT NULL").count())
settings = SinkSettings(bootstrap_servers=servers, producer_group="g", topic=topic)
for refused in (lambda: read_ledger(spark, "nowhere"), lambda: write_transactional(rows, settings, query="q", epoch=1)):
    try:
        refused()
    except UsageError as exc:
        print("refused", exc)
spark.stop()
"""


@pytest.mark.kafka
@pytest.mark.slow
def test_over_spark_connect_topics_are_read_and_the_rest_is_refused_at_once(broker: Broker, tmp_path: Path) -> None:
    field = Field(broker.bootstrap_servers)
    field.whole()
    runtime = prepare_connector(LOCAL_CONFIG)

    done = subprocess.run(
        [sys.executable, "-c", OVER_CONNECT, ",".join(map(str, runtime.jars)), field.servers, field.orders],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        env={**os.environ, "JAVA_HOME": str(runtime.java_home), "PYTHONPATH": ":".join(sys.path)},
    )

    assert 0 == done.returncode, done.stderr[-3000:]
    assert "pyspark.sql.connect" in done.stdout
    assert "read 1" in done.stdout
    assert 2 == done.stdout.count("refused ")
