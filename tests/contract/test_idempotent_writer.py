"""The producer's writer: acknowledged in order, refused with a reason, given up in time."""

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest

from tests.support.broker import unique_name
from tests.support.lab import Lab
from tests.support.waiting import wait_until
from txlayer.adapters.ports import IdempotentWriter
from txlayer.errors import ForbiddenTopicError, OutcomeUnknownError, RefusedRecordError

BATCH_BYTES = 10_000


@pytest.fixture
def writer(lab: Lab) -> Iterator[IdempotentWriter]:
    connections = lab.producer(prepare_timeout=timedelta(seconds=20))
    made = connections.make_half_writer(batch_bytes_max=BATCH_BYTES)
    yield made
    made.close(5)
    connections.close()


class Reports:
    """What was reported, in order."""

    def __init__(self) -> None:
        self.errors: list[Any] = []
        self.places: list[tuple[int, int, bytes | None]] = []

    def __call__(self, error: Any, record: Any) -> None:
        self.errors.append(error)
        self.places.append((record.partition(), record.offset(), record.value()))

    def wait_for(self, writer: IdempotentWriter, *, count: int) -> None:
        def is_reported() -> bool:
            writer.poll(0.05)
            return len(self.errors) >= count

        wait_until(is_reported, within=40, what=f"{count} reports")


def test_records_are_reported_in_order_with_their_places(lab: Lab, writer: IdempotentWriter) -> None:
    topic = lab.topic(partitions=2)
    reports = Reports()
    for number in range(50):
        writer.produce(topic, b"%d" % number, b"k", number % 2, reports)
    assert 50 == writer.unreported_count()

    reports.wait_for(writer, count=50)

    assert 0 == writer.unreported_count()
    assert [None] * 50 == reports.errors
    for partition in range(2):
        of_one = [(offset, value) for p, offset, value in reports.places if p == partition]
        assert [(n, b"%d" % (2 * n + partition)) for n in range(25)] == of_one
        assert of_one == [(r.offset, r.value) for r in lab.read(topic) if r.partition == partition]


def test_nothing_is_reported_outside_of_poll(lab: Lab, writer: IdempotentWriter) -> None:
    topic, reports = lab.topic(), Reports()

    writer.produce(topic, b"v", None, 0, reports, None, 0, [("h", b"1")])

    assert [] == reports.errors
    reports.wait_for(writer, count=1)
    assert [[("h", b"1")]] == [r.headers for r in lab.read(topic)]


def test_a_record_that_is_too_large_is_refused_and_others_are_not(lab: Lab, writer: IdempotentWriter) -> None:
    topic = lab.topic(partitions=2, settings={"max.message.bytes": "1000"})
    large, small = Reports(), Reports()
    writer.produce(topic, b"x" * 2_000, None, 0, large)
    writer.produce(topic, b"small", None, 1, small)

    large.wait_for(writer, count=1)
    small.wait_for(writer, count=1)

    assert [None] == small.errors
    error = writer.error_of(large.errors[0], topic=topic, txn_id="id")
    assert isinstance(error, RefusedRecordError)
    assert (topic, "MSG_SIZE_TOO_LARGE") == (error.topic, error.reason)
    assert writer.failure() is None


def test_records_after_a_refused_one_are_written(lab: Lab, writer: IdempotentWriter) -> None:
    topic = lab.topic(settings={"max.message.bytes": "1000"})
    reports = Reports()
    for value in (b"before", b"x" * 2_000, b"after"):
        writer.produce(topic, value, None, 0, reports)
        reports.wait_for(writer, count=len(reports.errors) + 1)

    assert [b"before", b"after"] == [r.value for r in lab.read(topic)]


def test_a_record_for_a_missing_topic_is_refused(writer: IdempotentWriter) -> None:
    topic, reports = unique_name("missing"), Reports()
    try:
        writer.produce(topic, b"v", None, 0, reports)
    except Exception as exc:  # noqa: BLE001 - whatever the client raises, the port must know it
        refused: Any = exc
    else:
        reports.wait_for(writer, count=1)
        refused = reports.errors[0]

    assert isinstance(writer.error_of(refused, topic=topic, txn_id="id"), ForbiddenTopicError)


def test_close_waits_for_what_is_queued(lab: Lab) -> None:
    topic, reports = lab.topic(), Reports()
    writer = lab.producer().make_half_writer(batch_bytes_max=BATCH_BYTES)
    for _ in range(100):
        writer.produce(topic, b"v", None, 0, reports)

    writer.close(20)

    assert [None] * 100 == reports.errors
    assert 100 == len(lab.read(topic))


def test_what_close_has_no_time_for_may_be_stored(lab: Lab) -> None:
    reports = Reports()
    writer = lab.producer().make_half_writer(batch_bytes_max=BATCH_BYTES)
    topic = lab.topic()
    writer.produce(topic, b"v", None, 0, reports)

    writer.close(0)

    assert 1 == len(reports.errors)
    if reports.errors[0] is not None:
        assert isinstance(writer.error_of(reports.errors[0], topic=topic, txn_id="id"), OutcomeUnknownError)


def test_poll_comes_back_after_its_time(writer: IdempotentWriter) -> None:
    assert 0 == writer.poll(0.05)
