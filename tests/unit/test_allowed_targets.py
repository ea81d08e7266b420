"""Where the coordinator may forward to: topics that a pattern names, and never one of its own."""

import pytest

from txlayer.adapters.memory import MemoryKafka
from txlayer.config import CoordinatorConfig
from txlayer.coordinator.targets import Targets
from txlayer.core.messages import ParkReason
from txlayer.errors import InvariantError


def book_of(*patterns: str) -> Targets:
    """What is known of topics that all exist, when `patterns` may be forwarded to; () any."""
    kafka = MemoryKafka()
    for topic in ("orders", "orders.eu", "payroll", "txlayer.doubt", "txlayer.op"):
        kafka.create_topic(topic)
    config = CoordinatorConfig(target_topics=patterns)
    book = Targets(config, kafka.connect_coordinator(config))
    book.learn(["orders", "orders.eu", "payroll", "txlayer.doubt", "txlayer.op"])
    return book


def accepted(book: Targets) -> list[str]:
    """Topics to which a message may be forwarded."""
    return sorted(topic for topic, target in book.targets.items() if target.refusal is None)


@pytest.mark.promise("P3")
@pytest.mark.parametrize(
    ("patterns", "topics"),
    [
        ((), ["orders", "orders.eu", "payroll"]),
        (("orders",), ["orders"]),
        (("orders*",), ["orders", "orders.eu"]),
        (("*",), ["orders", "orders.eu", "payroll"]),
        (("txlayer.*",), []),
    ],
)
def test_only_what_a_pattern_names_is_forwarded_to_and_never_a_topic_of_ours(
    patterns: tuple[str, ...], topics: list[str]
) -> None:
    book = book_of(*patterns)

    assert topics == accepted(book)
    for topic in book.targets.keys() - set(topics):
        assert ParkReason.FORBIDDEN_TOPIC is book.targets[topic].refusal
        with pytest.raises(InvariantError):
            book.check_allowed(topic, txn_key="a/0000000a")
    for topic in topics:
        book.check_allowed(topic, txn_key="a/0000000a")


def test_a_topic_that_nobody_asked_about_is_forwarded_to_by_nobody() -> None:
    with pytest.raises(InvariantError):
        book_of().check_allowed("unknown", txn_key="a/0000000a")
