"""Which messages fit a description, and how the difference is told."""

from typing import Any

import pytest

from txlayer.adapters.memory.log import MemoryRecord
from txlayer.consumer.context import ReceivedMessage
from txlayer.testing.stage import SHOWN_COUNT_MAX, Expected, shown

HEADERS = [("kind", b"gift"), ("kind", b"sale"), ("empty", None), ("txl-id", b"order-1")]


def message(value: bytes | None = b"v", *, key: bytes | None = b"k", offset: int = 7) -> ReceivedMessage:
    return ReceivedMessage(MemoryRecord("orders", 3, key, value, HEADERS, log_offset=offset))


def in_partition_3(message: ReceivedMessage) -> bool:
    return message.partition == 3


def in_partition_4(message: ReceivedMessage) -> bool:
    return message.partition == 4


def spelt(said: dict[str, Any]) -> str:
    """The same in every process: a function has its name, not its address."""
    return str({name: getattr(value, "__name__", value) for name, value in said.items()})


@pytest.mark.parametrize(
    "said",
    [
        {},
        {"value": b"v"},
        {"value": "v"},
        {"key": "k", "value": "v"},
        {"txn_id": "order-1"},
        {"headers": {"kind": "sale"}},
        {"headers": {"kind": b"sale", "empty": None}},
        {"where": in_partition_3},
    ],
    ids=spelt,
)
def test_a_message_fits_what_is_said_of_it(said: dict[str, Any]) -> None:
    assert Expected(**said).fits(message())


@pytest.mark.parametrize(
    "said",
    [
        {"value": "w"},
        {"value": None},
        {"key": None},
        {"key": "k", "value": "w"},
        {"txn_id": "order-2"},
        {"headers": {"kind": "gift"}},  # the last of a name counts
        {"headers": {"kind": None}},
        {"headers": {"other": None}},
        {"where": in_partition_4},
    ],
    ids=spelt,
)
def test_one_thing_that_does_not_fit_is_enough(said: dict[str, Any]) -> None:
    assert not Expected(**said).fits(message())


def test_none_is_a_value_like_any_other() -> None:
    assert Expected(value=None, key=None).fits(message(None, key=None))


def test_a_description_says_what_was_asked_for() -> None:
    expected = Expected(value="v", key=None, headers={"kind": "sale"}, txn_id="order-1")

    assert "key=None value=b'v' header kind=b'sale' txn_id=order-1" == str(expected)
    assert "any message" == str(Expected())


def test_a_message_is_shown_with_its_place_and_the_users_own_headers() -> None:
    line = "  orders-3@7 key=b'k' value=b'v' header kind=b'gift' header kind=b'sale' header empty=None txn_id=order-1"

    assert line == shown([message()])
    assert "  nothing" == shown([])


def test_of_many_messages_the_last_are_shown_and_of_long_ones_the_beginning() -> None:
    many = [message(b"x" * 1000, offset=n) for n in range(SHOWN_COUNT_MAX + 5)]

    lines = shown(many).splitlines()

    assert "  (5 before these)" == lines[0]
    assert SHOWN_COUNT_MAX == len(lines) - 1
    assert all(len(line) < 400 for line in lines)
