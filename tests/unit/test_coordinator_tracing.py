"""With tracing the coordinator's questions keep to the limits of the check topic, as they do without."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.tracing import Spans
from txlayer.config import CoordinatorConfig
from txlayer.coordinator.publish import Publisher, QuestionLimits
from txlayer.coordinator.tracing import CoordinatorSpans
from txlayer.core.batch import Batch
from txlayer.core.messages import CheckKind, CheckRecord
from txlayer.core.trace_context import TraceContext

KEY = "wide/0000000a"
PARENT = TraceContext(b"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01")
SIZE_MAX = 500


class Writer:
    """Takes everything and keeps the records."""

    batch_bytes_max = 1

    def __init__(self) -> None:
        self.written: list[tuple[Any, ...]] = []

    def produce(self, *arguments: Any) -> None:
        """Takes it."""
        self.written.append(arguments)

    def flush(self, *, timeout_s: float) -> int:
        """Everything is acknowledged."""
        del timeout_s
        return 0

    def nothing(self, *_: Any, **__: Any) -> None:
        """Takes it."""

    initialise = begin = send_offsets = commit = close = nothing


class Book:
    """No targets."""

    batch_bytes_max = 1


def questions(spans: Spans, *, is_careful: bool) -> list[tuple[Any, ...]]:
    """What a publisher writes that is asked about one transaction with very many topics."""
    config, writer = CoordinatorConfig(), Writer()
    observer = CoordinatorSpans(spans.tracing, check_topic=config.topics.check)
    observer.remembered[KEY] = PARENT
    make: Any = lambda *_, **__: writer  # noqa: E731 - both writers are one
    book: Any = Book()
    publisher = Publisher(
        config, name="w", make_writer=make, book=book, observer=observer,
    )  # fmt: skip
    publisher.start()
    question = CheckRecord(CheckKind.QUESTION, KEY, "shop", 0, number=1, text="x" * 2 * SIZE_MAX)
    publisher.publish(
        [(0, Batch(checks={KEY: question}))], {}, None, is_careful=is_careful,
        questions=QuestionLimits(SIZE_MAX),
    )  # fmt: skip
    return writer.written


@pytest.mark.promise("P11")
@pytest.mark.parametrize("is_careful", [True, False])
def test_a_traced_question_that_is_too_large_names_no_topics(*, is_careful: bool) -> None:
    spans = Spans()

    ((_, line, *_, headers),) = questions(spans, is_careful=is_careful)

    assert b"xxx" not in line
    assert KEY.encode() in line
    assert ["traceparent"] == [name for name, _ in headers]
    assert 1 == len(spans.all())


@pytest.mark.promise("P11")
def test_a_traced_question_of_a_careful_try_waits_for_its_report() -> None:
    (written,) = questions(Spans(), is_careful=True)

    assert written[4] is not None
