"""A user's table against what was published."""

from dataclasses import replace
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.support.planted import Field, Message
from tests.support.spark_audit import Audit
from txlayer.errors import UsageError
from txlayer_spark.jobs.against import AgainstSettings, compare
from txlayer_spark.parse import Values


@pytest.mark.kafka
def test_ids_that_one_side_lacks_are_named_and_the_others_are_not(
    spark: SparkSession, field: Field, audit: Audit, tmp_path: Path
) -> None:
    for number in (1, 2, 3):
        field.whole(Message(field.orders, value=b'{"order": %d}' % number))
    field.whole(Message(field.orders, value=b"no JSON"))
    audit.read()
    spark.range(2, 6).select("id").write.parquet(str(tmp_path / "orders"))

    found = compare(
        spark,
        AgainstSettings(
            bronze=audit.bronze.root,
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
    audit = Audit(spark, field, tmp_path, values=Values.HASH)
    audit.read()
    spark.createDataFrame([(txn.txn_id,)], "id string").write.parquet(str(tmp_path / "orders"))
    settings = AgainstSettings(bronze=audit.bronze.root, topic=field.orders, source=str(tmp_path / "orders"))

    assert [] == compare(spark, settings).collect()
    with pytest.raises(UsageError, match="holds hashes") as refused:
        compare(spark, replace(settings, published_id="get_json_object(value, '$.order')"))
    assert "\n" not in str(refused.value)
