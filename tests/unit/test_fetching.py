"""What is fetched again belongs to the transaction that it is fetched for, and goes where messages may go."""

from __future__ import annotations

from datetime import timedelta
from typing import cast

import pytest

from tests.support.fake_records import FakeRecord, half_header, txn_key
from tests.support.memory_stage import Stage
from txlayer.adapters.ports import CoordinatorConnections
from txlayer.config import CoordinatorConfig
from txlayer.coordinator.contents import fetch_contents
from txlayer.coordinator.publish import Publisher
from txlayer.coordinator.targets import Targets
from txlayer.core.batch import Batch
from txlayer.core.codec import HALF_HEADER
from txlayer.core.messages import NO_OPTIONS
from txlayer.core.transaction import Content, Transaction
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
@pytest.mark.parametrize("is_plain", [True, False])
@pytest.mark.parametrize("is_careful", [True, False])
def test_nothing_is_produced_to_a_topic_that_is_not_allowed(
    topic: str, *, is_plain: bool, is_careful: bool
) -> None:
    """Whatever let a transaction come so far: the publisher itself looks at the topic of every message."""
    stage = Stage()
    stage.kafka.create_topic("secrets", partitions=1)
    config = CoordinatorConfig(target_topics=("orders",), session_timeout=timedelta(seconds=6))
    connections = stage.connections()
    book = Targets(config, cast("CoordinatorConnections", connections))
    book.learn(["orders", "secrets", "txlayer.doubt"])
    publisher = Publisher(config, name="writer", make_writer=connections.make_writer, book=book)
    publisher.start()
    txn = Transaction(A, "shop", topic, 0, 0, "0", (0, 0), FakeRecord())
    if not is_plain:
        txn.content = [Content(0, topic, 0, NO_OPTIONS, "0", FakeRecord())]

    with pytest.raises(InvariantError):
        publisher.publish([(0, Batch(forwards=[txn]))], {}, None, is_careful=is_careful)

    publisher.close()
    assert [] == stage.kafka.records("secrets")
