"""With tracing the coordinator's questions keep to the limits of the check topic, as they do without."""

from typing import Any

import pytest

from tests.support.core_records import half_header, op_line, txn_key
from tests.support.still_coordinator import StillCoordinator
from tests.support.tracing import Spans
from txlayer.adapters.tracing import TraceContext
from txlayer.config import CoordinatorConfig
from txlayer.coordinator.loop import Coordinator
from txlayer.coordinator.publish import Precautions, Publisher
from txlayer.coordinator.targets import GroupPresence
from txlayer.coordinator.tracing import CoordinatorSpans
from txlayer.core.codec import HALF_HEADER, decode_check
from txlayer.core.ledger.batch import Batch
from txlayer.core.messages import CheckKind, CheckRecord

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


def questions(
    spans: Spans, *, is_careful: bool, context: TraceContext = PARENT, kind: CheckKind = CheckKind.QUESTION
) -> list[tuple[Any, ...]]:
    """What a publisher writes that is asked about one transaction with very many topics."""
    config, writer = CoordinatorConfig(), Writer()
    observer = CoordinatorSpans(spans.tracing, check_topic=config.topics.check)
    observer.remembered[KEY] = context
    make: Any = lambda *_, **__: writer  # noqa: E731 - both writers are one
    book: Any = Book()
    publisher = Publisher(config, name="w", make_writer=make, targets=book, observer=observer)
    publisher.start()
    question = CheckRecord(kind, KEY, "shop", 0, number=1, text="x" * 2 * SIZE_MAX)
    precautions = Precautions(is_careful=is_careful, question_bytes_max=SIZE_MAX)
    publisher.publish([(0, Batch(checks={KEY: question}))], {}, None, precautions)
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


TRACEPARENT = b"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


class TracedCoordinator(Coordinator):
    """A coordinator that traces."""

    def __init__(self, config: Any, connections: Any, **named: Any) -> None:
        spans = CoordinatorSpans(Spans().tracing, check_topic=config.topics.check)
        super().__init__(config, connections, observer=spans, **named)


def traced_half(still: StillCoordinator, key: str, *, parent: bytes, state: bytes) -> int:
    headers = [("traceparent", parent), ("tracestate", state), (HALF_HEADER, half_header(key))]
    return still.kafka.append(still.topics.half, b"v", partition=0, headers=headers)


@pytest.mark.promise("P7")
@pytest.mark.promise("P11")
def test_a_long_trace_of_one_transaction_keeps_no_question_from_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """The notice that its second word came too late carries the whole trace state, and is refused for it."""
    monkeypatch.setattr(GroupPresence, "of", lambda *_: frozenset({"shop"}))
    still = StillCoordinator(make=TracedCoordinator)
    still.kafka.cluster.alter_topic(still.topics.check, {"max.message.bytes": "3000"})
    poison, good = txn_key("poison"), txn_key("good-" + "0" * 60)
    still.half(good)  # young: a restart reads half from here
    offset = traced_half(still, poison, parent=TRACEPARENT, state=b"a=" + b"b" * 5_000)
    coordinator, turn = still.coordinator, 0
    still.commit(poison, offset)

    def should_stop() -> bool:
        nonlocal turn
        turn += 1
        if turn == 20:
            still.op(op_line("R", poison, offset))
        return still.world.passed_s >= 300 or turn > 5_000

    coordinator.run(should_stop=should_stop)

    checks = [decode_check(r.value()) for r in still.kafka.records(still.topics.check)]
    asked = [c.key for c in checks if isinstance(c, CheckRecord) and c.kind is CheckKind.QUESTION]
    assert good in asked


@pytest.mark.promise("P11")
def test_what_is_remembered_of_traces_is_bounded() -> None:
    still = StillCoordinator(make=TracedCoordinator)
    states = [(TRACEPARENT, b"a=" + b"b" * 20_000), (b"01" + TRACEPARENT[2:] + b"-" * 20_000, b"")]
    for number in range(20):
        key, (parent, state) = txn_key(f"t{number}"), states[number % 2]
        offset = traced_half(still, key, parent=parent, state=state)
        still.op(op_line("C", key, offset))
    coordinator = still.coordinator
    still.work(seconds=10)

    kept = coordinator._traces.values()
    assert 10 == len(kept)
    assert all(len(c.traceparent) + len(c.tracestate or b"") <= 512 + 256 for c in kept)


@pytest.mark.promise("P7")
@pytest.mark.parametrize("is_careful", [True, False])
def test_a_notice_that_is_too_large_with_its_trace_goes_without(*, is_careful: bool) -> None:
    spans = Spans()
    state = b"a=" + b"b" * 500  # with the notice more than the check topic takes

    ((_, value, _, _, _, _, _, headers),) = questions(
        spans, is_careful=is_careful, context=PARENT._replace(tracestate=state), kind=CheckKind.REFUSED
    )

    assert isinstance(decode_check(value), CheckRecord)
    assert headers is None
