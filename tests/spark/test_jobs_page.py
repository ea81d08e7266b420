"""The programs of docs/howto/spark-jobs.md run as they stand."""

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from tests.support.arena import Arena
from tests.support.logs import read_log
from tests.support.pages import programs
from tests.support.spark_sink import numbers, settings_for, wait_until_all_are_visible
from tests.support.waiting import wait_until
from txlayer_spark import write_transactional

pytestmark = pytest.mark.kafka


def run(program: str, names: dict[str, Any]) -> dict[str, Any]:
    """What the program has made of these names."""
    exec(compile(program, "page", "exec"), names)
    return names


def test_a_stream_of_committed_messages_is_read_and_published_as_the_page_says(
    spark: SparkSession, arena: Arena, tmp_path: Path
) -> None:
    begin, read, whole, decode, publish = programs("spark-jobs")
    orders, bonus = arena.targets
    write_transactional(numbers(spark, 5), settings_for(arena), query="orders", epoch=1)
    wait_until_all_are_visible(arena, ["orders-1"], count=5)

    assert spark.sparkContext is run(begin, {})["spark"].sparkContext
    made = run(read.replace("127.0.0.1:9092", arena.servers).replace('"orders"', f'"{orders}"'), {"spark": spark})
    names = {
        "stream": made["orders"].select("key", "value"),
        "bonuses": numbers(spark, 3),
        "folder": str(tmp_path / "checkpoint"),
    }
    there = f'bootstrap_servers="{arena.servers}", namespace="{arena.namespace}"'
    placed = publish.replace('bootstrap_servers="127.0.0.1:9092"', there).replace('"bonus"', f'"{bonus}"')
    before = set(spark.streams.active)
    decoded = run(decode.replace('"orders"', f'"{orders}"'), {"spark": spark})["orders"]
    assert {"body", "body_error"} <= set(decoded.columns)
    held = whole.replace("127.0.0.1:9092", arena.servers).replace('["orders", "stock", "loyalty"]', repr([orders]))
    seen: list[int] = []
    kept = held.replace("batch.where", "seen.append(batch.count())\n    batch.where")
    try:
        run(placed, names)
        run(kept, {"spark": spark, "folder": str(tmp_path / "whole"), "seen": seen})
        started = set(spark.streams.active) - before
        assert 2 == len(started)
        wait_until(lambda: sum(seen) == 5, within=90, what="the five messages of one transaction")
        wait_until(lambda: len(read_log(arena.servers, [bonus])[bonus]) == 8, within=90, what="3 and 5 messages")
    finally:
        for query in set(spark.streams.active) - before:
            query.stop()
