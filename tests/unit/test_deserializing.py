"""What a deserializer is given, and which of its errors say nothing of the record."""

from typing import Any

import pytest

from txlayer.consumer.context import Deserializers, is_passing
from txlayer.consumer.process_pool import SentRecord

RECORD = SentRecord(("orders", 1, 7), b"key", b"value", [("h", b"1")], (1, 5))


class TransportError(Exception):
    """As httpx calls what happens to a connection."""


class RefusedError(Exception):
    """As Confluent tells what a registry answered."""

    def __init__(self, status: int) -> None:
        super().__init__(str(status))
        self.http_status_code = status


def raised(error: Exception, *, cause: Exception) -> Exception:
    """The error as `raise error from cause` leaves it."""
    error.__cause__ = cause
    return error


def test_a_deserializer_is_told_what_a_serialization_context_tells() -> None:
    told: list[Any] = []

    def read(raw: bytes | None, context: Any) -> Any:
        told.append((raw, context.topic, context.field, context.headers))
        return len(told)

    message = Deserializers(read, read).read(RECORD)

    assert [(b"key", "orders", "key", [("h", b"1")]), (b"value", "orders", "value", [("h", b"1")])] == told
    assert (1, 2, b"key", b"value") == (message.key, message.value, message.raw_key, message.raw_value)


def test_what_has_no_deserializer_stays_as_it_was_sent() -> None:
    def read(raw: bytes | None, _: Any) -> Any:
        return raw and raw.decode()

    for_keys, for_values = (Deserializers(read, None).read(RECORD), Deserializers(None, read).read(RECORD))

    assert ("key", b"value") == (for_keys.key, for_keys.value)
    assert (b"key", "value") == (for_values.key, for_values.value)
    assert [True, True, False] == [Deserializers(*pair).is_any for pair in ((read, None), (None, read), (None, None))]


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (ValueError("no number"), False),
        (RefusedError(404), False),
        (RefusedError(422), False),
        (RefusedError(401), True),
        (RefusedError(500), True),
        (ConnectionRefusedError(), True),
        (TimeoutError(), True),
        (type("ReadError", (TransportError,), {})(), True),
        (raised(ValueError("wrapped"), cause=TimeoutError()), True),
        (raised(ValueError("wrapped"), cause=RefusedError(404)), False),
    ],
    ids=repr,
)
def test_which_errors_say_nothing_of_the_record(error: Exception, *, expected: bool) -> None:
    assert expected is is_passing(error)


def test_errors_in_a_circle_are_looked_at_for_so_long_and_no_longer() -> None:
    one, other = ValueError("one"), ValueError("other")
    one.__context__, other.__context__ = other, one

    assert not is_passing(one)
