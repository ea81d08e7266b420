"""What bronze cannot read of a real topic is known, and excuses what is missing there and nothing else."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from pathlib import Path

import pytest
from confluent_kafka import Producer
from pyspark.sql import SparkSession

from tests.conftest import Broker
from tests.support.broker import create_topic
from tests.support.planted import Field, Message
from txlayer_spark.jobs.bronze import BronzeSettings, read_new
from txlayer_spark.jobs.ledger import LedgerSettings, read_ledger, update_ledger
from txlayer_spark.jobs.report import write_report

pytestmark = pytest.mark.kafka

HOUR_MS = 3_600_000


def test_what_an_open_kafka_transaction_hides_is_open_and_what_compaction_may_have_taken_is_not_judged(
    spark: SparkSession, broker: Broker, tmp_path: Path
) -> None:
    field = Field(broker.bootstrap_servers)
    compacted = create_topic(
        field.servers,
        f"{field.namespace}-compacted",
        config={"message.timestamp.type": "LogAppendTime", "cleanup.policy": "compact"},
    )
    # Open for as long as the test takes, wherever it runs.
    stranger = Producer(
        {
            "bootstrap.servers": field.servers,
            "transactional.id": field.namespace,
            "transaction.timeout.ms": 900_000,
        }
    )
    stranger.init_transactions(30)
    stranger.begin_transaction()
    stranger.produce(field.stock, b"of a stranger", partition=0)
    assert 0 == stranger.flush(30)
    good, behind = field.whole(), field.whole(Message(field.stock))
    not_judged = field.prepare(Message(compacted))
    lost, torn = field.prepare(), field.prepare(Message(field.orders), Message(field.stock))
    field.commit(not_judged, lost, torn)

    bronze = BronzeSettings(
        root=str(tmp_path / "bronze"), namespace=field.namespace, bootstrap_servers=field.servers
    )
    ledger = LedgerSettings(bronze=bronze.root, root=str(tmp_path / "ledger"))

    def verdicts() -> dict[str, str]:
        """An hour later, when all of it is old."""
        read_new(spark, bronze, now_ms=lambda: int(time.time() * 1000) + HOUR_MS)
        update_ledger(spark, ledger)
        return {row.txn_id: row.verdict for row in read_ledger(spark, ledger.root).collect()}

    expected = {
        good.txn_id: "ok", behind.txn_id: "open", not_judged.txn_id: "out_of_window", lost.txn_id: "lost", torn.txn_id: "lost",
    }  # fmt: skip
    assert expected == verdicts()
    page = tmp_path / "report.html"
    summary = write_report(
        spark, bronze=bronze.root, ledger=ledger.root, namespace=field.namespace, page=page,
        made_at=datetime.now(UTC),
    )  # fmt: skip
    assert [field.stock] == summary.hidden_topics
    assert field.stock in page.read_text("utf-8").partition("What could not be read")[2]

    stranger.commit_transaction(30)
    assert {**expected, behind.txn_id: "ok"} == verdicts()
