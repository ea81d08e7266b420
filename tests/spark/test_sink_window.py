"""How far back earlier attempts of an epoch are found: op and half within the window, doubt as a whole. No coordinator runs."""

from __future__ import annotations

import time
from collections import Counter
from typing import Any

import pytest
from pyspark.sql import SparkSession

from tests.conftest import Broker
from tests.support.logs import read_log
from tests.support.planted import GROUP, Field
from tests.support.spark_sink import numbers
from txlayer.core import codec
from txlayer.core.messages import OpMessage, Resolution
from txlayer.errors import OutcomeUnknownError
from txlayer_spark import Publication, SinkSettings, write_transactional
from txlayer_spark.jobs.sink import CLOCK_MARGIN_MS, Outcome

pytestmark = pytest.mark.kafka


@pytest.fixture
def field(broker: Broker) -> Field:
    """A namespace of the test's own."""
    return Field(broker.bootstrap_servers)


def settings_in(field: Field, **more: Any) -> SinkSettings:
    """Into that namespace."""
    return SinkSettings(
        bootstrap_servers=field.servers, namespace=field.namespace, topic=field.orders, producer_group=GROUP, **more
    )  # fmt: skip


def after_the_window(spark: SparkSession, field: Field, query: str) -> Publication:
    """Publish epoch 0 when whatever op and half hold is too old to be looked at."""
    later_ms = int(time.time() * 1000) + 2 * CLOCK_MARGIN_MS
    return write_transactional(
        numbers(spark, 2), settings_in(field), query=query, epoch=0, since_ms=later_ms
    )


def said(field: Field, key: str) -> Counter[Resolution]:
    """How often each resolution of an attempt was written."""
    lines = [
        codec.decode_op(line)
        for record in read_log(field.servers, [field.topic("op")])[field.topic("op")]
        for line in (record.value or b"").decode().split("\n")
    ]
    return Counter(op.resolution for op in lines if isinstance(op, OpMessage) and op.key == key)


def test_an_attempt_that_stands_on_doubt_is_found_however_old_it_is(
    spark: SparkSession, field: Field
) -> None:
    held = field.prepare(key="held-0/0000000a")
    field.commit(held)
    field.doubt(held, "held", "topic-missing", decided_at=(0, 0))
    asked = field.prepare(key="asked-0/0000000a")
    field.doubt(asked, "open")

    skipped = after_the_window(spark, field, "held")
    published = after_the_window(spark, field, "asked")

    assert (Outcome.SKIPPED, Outcome.PUBLISHED) == (skipped.outcome, published.outcome)
    assert {Resolution.ROLLBACK: 1} == said(field, asked.key)
    assert {Resolution.COMMIT: 1} == said(field, published.published[0])


def test_an_attempt_that_left_doubt_before_the_window_stops_the_epoch_before_anything_is_written(
    spark: SparkSession, field: Field
) -> None:
    ended = field.prepare(key="ended-0/0000000a")
    field.commit(ended)
    field.doubt(ended, "open")
    field.doubt(ended, "ended")

    with pytest.raises(OutcomeUnknownError, match="name a longer one"):
        after_the_window(spark, field, "ended")

    half = read_log(field.servers, [field.topic("half")])[field.topic("half")]
    assert len(ended.offsets) == len(half)


def test_a_commit_older_than_the_window_is_not_found_and_the_epoch_is_published_again(
    spark: SparkSession, field: Field
) -> None:
    old = field.whole(key="old-0/0000000a")

    again = after_the_window(spark, field, "old")

    assert Outcome.PUBLISHED is again.outcome
    assert [{Resolution.COMMIT: 1}] * 2 == [said(field, key) for key in (old.key, *again.published)]
