"""What a consumer makes of records: headers that the client cannot read, deserializers and their errors, copies, and which messages are wanted."""

import copy
from typing import Any

import pytest

from txlayer.adapters.kafka.client import readable
from txlayer.adapters.memory.log import MemoryRecord
from txlayer.consumer.context import Deserializers, ReceivedMessage, is_passing
from txlayer.consumer.ingest import DeadLetterRecord
from txlayer.consumer.process_pool import SentRecord
from txlayer.core.dead_letters import DeadLetter, DeadLetterReason
from txlayer.core.messages import Origin, TagFilter, parse_tags
from txlayer.errors import ConfigError


class FakeRecord:
    """One whose headers can be asked for, or cannot."""

    def __init__(self, name: str, error: Exception | None = None) -> None:
        self.name = name
        self.ask_count = 0
        self._error = error

    def headers(self) -> list[tuple[str, bytes | None]]:
        """Its headers, or what the client raises."""
        self.ask_count += 1
        if self._error is not None:
            raise self._error
        return [(self.name, b"v")]


def no_text() -> Exception:
    """As the client's."""
    return UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid start byte")


@pytest.mark.parametrize("bad", [(), (0,), (3,), (1, 2), (0, 1, 2, 3)], ids=["none", "first", "last", "two", "all"])
def test_records_with_unreadable_headers_are_replaced_where_they_stand(bad: tuple[int, ...]) -> None:
    given = [FakeRecord(f"r{n}", no_text() if n in bad else None) for n in range(4)]

    found = readable(list(given))

    assert [f"r{n}" for n in range(4)] == [record.name for record in found]
    assert [[] if n in bad else [(f"r{n}", b"v")] for n in range(4)] == [record.headers() for record in found]
    assert [1] * len(bad) == [given[n].ask_count for n in bad]


def test_a_system_error_of_the_client_counts_as_unreadable() -> None:
    (found,) = readable([FakeRecord("r", SystemError("returned a result with an exception set"))])

    assert [] == found.headers()


RECORD = SentRecord(("orders", 1, 7), b"key", b"value", [("h", b"1")], (1, 5))


def test_a_message_that_is_handled_again_can_be_copied() -> None:
    letter = DeadLetter(DeadLetterReason.REJECTED, Origin("orders", 1, 7), 5, 1, 0, 0, "", "", "loyalty")
    message = ReceivedMessage(DeadLetterRecord(MemoryRecord("loyalty.orders.dlq", 0, b"k", b"v", None, (1, 9)), letter))

    copied = copy.deepcopy(message)

    assert ("orders", 1, 7, b"k", b"v") == (copied.topic, copied.partition, copied.offset, copied.key, copied.value)


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


@pytest.mark.parametrize("expression", ["TagA || TagC", "TagA||TagC", "  TagC ||TagA  "])
def test_tags_are_alternatives(expression: str) -> None:
    wanted = parse_tags(expression)

    assert [True, False, True, False] == [wanted.accepts(tag) for tag in (b"TagA", b"TagB", b"TagC", None)]


@pytest.mark.parametrize("expression", ["*", "", "  ", " * "])
def test_a_star_or_nothing_is_every_message(expression: str) -> None:
    wanted = parse_tags(expression)

    assert TagFilter() == wanted
    assert wanted.accepts(None)
    assert wanted.accepts(b"TagA")


def test_tags_are_utf_8() -> None:
    assert parse_tags("größe").accepts("größe".encode())


@pytest.mark.parametrize("expression", ["||", "TagA ||", "|| TagA", "a || * ", "a | b", "a ||| b"])
def test_an_expression_out_of_form_is_refused(expression: str) -> None:
    with pytest.raises(ConfigError) as told:
        parse_tags(expression)

    assert ("tags", expression, '"TagA || TagC", or "*"') == (told.value.name, told.value.value, told.value.expected)
