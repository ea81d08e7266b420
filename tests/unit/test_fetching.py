"""What is fetched again belongs to the transaction that it is fetched for, and goes where messages may go."""

from __future__ import annotations

from datetime import timedelta
from typing import Any, cast

import pytest

from tests.support.fake_records import half_header, txn_key
from tests.support.memory_stage import Stage
from txlayer.adapters.ports import CoordinatorConnections
from txlayer.config import CoordinatorConfig
from txlayer.coordinator.ranges import fetch_contents
from txlayer.coordinator.targets import TargetBook
from txlayer.core.codec import HALF_HEADER
from txlayer.core.transaction import Transaction
from txlayer.errors import InvariantError

A = txn_key("a")


def transaction(offset: int) -> Transaction:
    """A transaction of one message whose content was dropped."""
    return Transaction(A, "shop", "orders", offset, 0, "0", (0, 0), None)


@pytest.mark.promise("P3")
def test_the_same_key_in_two_partitions_is_two_transactions() -> None:
    stage = Stage()
    half_writer = stage.half_writer()
    for partition in (0, 1):
        raw = [(HALF_HEADER, half_header(A))]
        half_writer.produce("source", b"%d" % partition, b"k", partition, None, None, 0, raw)
    half_writer.close(timeout_s=20)

    found = fetch_contents(
        stage.connections().make_reader("read_committed"),
        [(partition, transaction(0), 1) for partition in (0, 1)],
        half_topic="source", doubt_topic="doubt", patience_s=5,
    )  # fmt: skip

    assert {(0, A): [b"0"], (1, A): [b"1"]} == {
        which: [content.record.value() for content in contents] for which, contents in found.items()
    }


@pytest.mark.promise("P3")
@pytest.mark.parametrize("topic", ["secrets", "txlayer.doubt", "never-asked-about"])
def test_nothing_is_produced_to_a_topic_that_is_not_allowed(topic: str) -> None:
    stage = Stage()
    stage.kafka.create_topic("secrets", partitions=1)
    config = CoordinatorConfig(target_topics=("orders",), session_timeout=timedelta(seconds=6))
    book = TargetBook(config, cast("CoordinatorConnections", stage.connections()))
    book.learn(["orders", "secrets", "txlayer.doubt"])
    check: Any = book.check_allowed
    check("orders", txn_key=A)

    with pytest.raises(InvariantError):
        check(topic, txn_key=A)
