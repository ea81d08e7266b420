"""What a message becomes: points, or a dead letter."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from points import Points, consumer

from txlayer.testing import Stage, wait_until


@pytest.fixture
def group(txlayer_stage: Stage) -> str:
    return txlayer_stage.unique("points")


@pytest.fixture
def topic(txlayer_stage: Stage, group: str) -> str:
    return txlayer_stage.topic("sales", consumer_group=group)


@pytest.fixture
def points(txlayer_stage: Stage, topic: str, group: str) -> Iterator[Points]:
    counted = Points()
    with consumer(counted, topic=topic, group=group, **txlayer_stage.consumer_options):
        yield counted


def test_a_sale_brings_points(points: Points, txlayer_stage: Stage, topic: str) -> None:
    txlayer_stage.write(topic, "2", key="anna")
    txlayer_stage.write(topic, "1", key="anna")

    wait_until(lambda: points.of["anna"] == 30, within=30, what="both sales are counted")


def test_what_is_no_sale_is_a_dead_letter(points: Points, txlayer_stage: Stage, topic: str, group: str) -> None:
    txlayer_stage.write(topic, "lots", key="anna")

    txlayer_stage.assert_published(f"{group}.{topic}.dlq", key="anna", value="lots", within=30)
    assert points.of["anna"] == 0
