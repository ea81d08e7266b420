"""A user's table against what was published."""

from dataclasses import replace
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.conftest import Broker
from tests.support.planted import Field, Message
from txlayer.errors import UsageError
from txlayer_spark.jobs.against import AgainstSettings, compare
from txlayer_spark.jobs.bronze import BronzeSettings, read_new
from txlayer_spark.schemas import Values


@pytest.mark.kafka
def test_ids_that_one_side_lacks_are_named_and_the_others_are_not(
    spark: SparkSession, broker: Broker, tmp_path: Path
) -> None:
    field = Field(broker.bootstrap_servers)
    for number in (1, 2, 3):
        field.whole(Message(field.orders, value=b'{"order": %d}' % number))
    field.whole(Message(field.orders, value=b"no JSON"))
    read_new(
        spark,
        BronzeSettings(root=str(tmp_path / "bronze"), namespace=field.namespace, bootstrap_servers=field.servers),
        now_ms=lambda: 1,
    )
    spark.range(2, 6).select("id").write.parquet(str(tmp_path / "orders"))

    found = compare(
        spark,
        AgainstSettings(
            bronze=str(tmp_path / "bronze"),
            topic=field.orders,
            source=str(tmp_path / "orders"),
            published_id="get_json_object(value, '$.order')",
        ),
    )

    assert {
        ("missing", "4", None, None),
        ("missing", "5", None, None),
        ("unknown", "1", 0, 0),
        ("unknown", None, 0, 3),
    } == {tuple(row) for row in found.collect()}


@pytest.mark.kafka
def test_of_hashes_only_the_transactions_id_can_be_compared(spark: SparkSession, field: Field, tmp_path: Path) -> None:
    txn = field.whole(Message(field.orders, value=b'{"order": 1}'))
    bronze = BronzeSettings(
        root=str(tmp_path / "bronze"), namespace=field.namespace, bootstrap_servers=field.servers, values=Values.HASH
    )
    read_new(spark, bronze, now_ms=lambda: 1)
    spark.createDataFrame([(txn.txn_id,)], "id string").write.parquet(str(tmp_path / "orders"))
    settings = AgainstSettings(bronze=bronze.root, topic=field.orders, source=str(tmp_path / "orders"))

    assert [] == compare(spark, settings).collect()
    with pytest.raises(UsageError, match="holds hashes") as refused:
        compare(spark, replace(settings, published_id="get_json_object(value, '$.order')"))
    assert "\n" not in str(refused.value)
