"""What the till promises: who bought is told of, and nobody else is."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from till import GROUP, OutOfStockError, Till, open_shop, was_sold

from txlayer.testing import Stage


@pytest.fixture
def txlayer_coordinator_settings() -> dict[str, Any]:
    """Check-backs begin soon: a test does not wait for six seconds."""
    return {"check_immunity": timedelta(milliseconds=200)}


@pytest.fixture
def database(tmp_path: Path) -> str:
    path = str(tmp_path / "till.db")
    open_shop(path, stock=5)
    return path


@pytest.fixture
def topic(txlayer_stage: Stage) -> str:
    return txlayer_stage.topic("sales", partitions=2)


@pytest.fixture
def till(txlayer_stage: Stage, database: str, topic: str) -> Iterator[Till]:
    producer = txlayer_stage.producer(GROUP, check=partial(was_sold, database))
    opened = Till(database, producer=producer, topic=topic)
    yield opened
    opened.close()


def test_who_bought_is_told_of(till: Till, txlayer_stage: Stage, topic: str) -> None:
    till.sell("sale-1", customer="anna", count=2)

    txlayer_stage.assert_published(topic, key="anna", value="2", txn_id="sale-1")


def test_who_got_nothing_is_not_told_of(till: Till, txlayer_stage: Stage) -> None:
    with pytest.raises(OutOfStockError):
        till.sell("sale-1", customer="ben", count=6)

    txlayer_stage.assert_nothing_published()


def test_two_sales_of_one_customer_are_told_in_their_order(till: Till, txlayer_stage: Stage, topic: str) -> None:
    till.sell("sale-1", customer="anna", count=1)
    till.sell("sale-2", customer="anna", count=3)

    found = txlayer_stage.assert_published(topic, key="anna", count=2)
    assert [message.value for message in found] == [b"1", b"3"]


@pytest.mark.usefixtures("till")  # another till of the group is there, and answers
def test_a_till_that_died_after_the_sale_is_asked_and_the_sale_is_told(
    txlayer_stage: Stage, database: str, topic: str
) -> None:
    # What is left of a till that was killed between its database and its word: a sale, and nobody said so.
    producer = txlayer_stage.producer(GROUP)
    with producer.transaction("sale-9", ordering_key="cleo") as tx:
        tx.send(topic, key="cleo", value="1")
        tx.prepare()
        with sqlite3.connect(database) as opened:
            opened.execute("INSERT INTO sales VALUES ('sale-9', 1)")
        opened.close()
        tx.unknown()

    txlayer_stage.assert_published(topic, key="cleo", txn_id="sale-9", within=30)
