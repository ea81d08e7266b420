"""Results of users' handlers: what they return, raise and change, and what messages that failed keep in memory (P11)."""

import io
import logging
import threading
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any, cast

import pytest

from tests.contract.conftest import IN_MEMORY
from tests.support.consumers import MakeStage, Stage
from tests.support.lab_memory import DISTANT, MemoryLab
from tests.support.waiting import pause, wait_until
from txlayer import Codec
from txlayer.adapters.memory import Fault
from txlayer.consumer import completions
from txlayer.consumer.context import Context, ReceivedMessage
from txlayer.core.dead_letters import MESSAGE_LENGTH_MAX, original_headers
from txlayer.core.retry import AfterExhausted, Reject, Retry, RetryPolicy
from txlayer.runtime import kafka_transactions

pytestmark = IN_MEMORY


def check_that_another_key_goes_on(stage: Stage) -> None:
    stage.write(b"2", key=b"good")
    wait_until(lambda: stage.journal.values(b"good"), within=10, what="the other key")


class Lazy(str):
    """A text that is made when it is shown, as translations are."""

    __slots__ = ()

    def __str__(self) -> str:
        raise LookupError("no translation")


class Unit(int):
    """A number that knows its unit and compares with none other."""

    def __gt__(self, other: object) -> bool:
        raise TypeError("no unit")


class Impatient(timedelta):
    """A delay that ends the program."""

    def total_seconds(self) -> float:
        raise SystemExit


@pytest.mark.promise("P9")
@pytest.mark.parametrize(
    "make",
    [
        lambda: Reject(Lazy("x")),
        lambda: Reject.__new__(Reject),
        lambda: Retry.__new__(Retry),
        lambda: Retry(delay_ms=Unit(5)),
        lambda: Retry(Impatient()),
        lambda: unkind("class", LookupError),
    ],
    ids=[
        "a reason that raises",
        "an empty Reject",
        "an empty Retry",
        "a number that raises",
        "a delay that raises",
        "a class that raises",
    ],
)
def test_a_result_that_raises_when_it_is_looked_at_costs_no_worker(stage: Stage, make: Callable[[], Any]) -> None:
    def act(message: ReceivedMessage, _context: Context) -> Any:
        return make() if message.key == b"bad" else None

    stage.write(b"1", key=b"bad")
    with stage.consumer(act, worker_count=1, retry=RetryPolicy(attempt_count_max=1)):
        stage.journal.wait_for(1)
        check_that_another_key_goes_on(stage)
        stage.wait_for_letters([b"1"], within=10)


class TextFormatter(logging.Formatter):
    """Asks an error for its text, as PySpark's formatter and many others do."""

    def format(self, record: logging.LogRecord) -> str:
        return str(record.exc_info and record.exc_info[1])


@pytest.fixture
def asking_log() -> Iterator[None]:
    handler, logger = logging.StreamHandler(io.StringIO()), logging.getLogger("txlayer")
    handler.setFormatter(TextFormatter())
    logger.addHandler(handler)
    yield
    logger.removeHandler(handler)


class UnkindClass(type):
    """The class of classes that raise whatever they are asked."""

    error: type[BaseException] | None = None

    def __getattribute__(cls, name: str) -> Any:
        if (error := type.__getattribute__(cls, "error")) is not None:
            raise error("unkind")
        return type.__getattribute__(cls, name)


def unkind(what: str, error: type[BaseException]) -> BaseException:
    """An exception that raises `error` when it is asked for `what`; its class, if that is "class"."""

    def raises(_self: object) -> Any:
        raise error("unkind")

    is_class = what == "class"
    kind: Any = (UnkindClass if is_class else type)(
        "UnkindError", (ValueError,), {} if is_class else {what: property(raises)}
    )
    made: BaseException = kind()
    if is_class:
        kind.error = error
    return made


ASKED = [
    "__class__",
    "__cause__",
    "__context__",
    "__traceback__",
    "__notes__",
    "__str__",
    "__repr__",
    "__bool__",
    "class",
]


@pytest.mark.promise("P9")
@pytest.mark.usefixtures("asking_log")
@pytest.mark.parametrize("error", [LookupError, SystemExit])
@pytest.mark.parametrize("what", ASKED)
def test_an_error_that_cannot_be_shown_costs_no_worker(stage: Stage, what: str, error: type[BaseException]) -> None:
    def read(raw: bytes | None, _field: Any) -> bytes | None:
        if raw == b"unreadable":
            raise unkind(what, error)
        return raw

    def act(message: ReceivedMessage, _context: Context) -> Any:
        if message.value == b"bad":
            raise unkind(what, error)

    stage.write(b"bad", key=b"bad")
    stage.write(b"unreadable", key=b"unreadable")
    with stage.consumer(act, codec=Codec(deserializer=read), worker_count=1, retry=RetryPolicy(attempt_count_max=1)):
        stage.wait_stored(2, within=10)
        check_that_another_key_goes_on(stage)

    assert {b"bad", b"unreadable"} == set(stage.letter_values())


@pytest.mark.promise("P9")
@pytest.mark.usefixtures("asking_log")
def test_an_error_that_can_be_shown_once_ends_no_consumer(stage: Stage) -> None:
    class UnkindError(Exception):
        asked_count = 0

        def __str__(self) -> str:
            self.asked_count += 1
            if self.asked_count > 2:  # as text and as a part of a traceback; then a log handler asks
                raise SystemExit
            return "unkind"

    def act(message: ReceivedMessage, _context: Context) -> Any:
        if message.key == b"bad":
            raise UnkindError

    stage.write(b"1", key=b"bad")
    with stage.consumer(act, worker_count=1, retry=RetryPolicy(attempt_count_max=1)):
        stage.wait_for_letters([b"1"], within=10)
        check_that_another_key_goes_on(stage)


@pytest.mark.promise("P9")
@pytest.mark.parametrize("error", [RuntimeError, SystemExit])
def test_an_error_of_a_deserializer_whose_attributes_raise_costs_no_worker(
    stage: Stage, error: type[BaseException]
) -> None:
    class UnkindError(Exception):
        @property
        def http_status_code(self) -> int:
            raise error("there was no answer")

    def read(raw: bytes | None, _field: Any) -> bytes | None:
        if raw == b"bad":
            raise UnkindError("no such form")
        return raw

    stage.write(b"bad", b"behind")
    with stage.consumer(codec=Codec(deserializer=read), worker_count=1, attempt_timeout=timedelta(seconds=60)):
        stage.wait_for_letters([b"bad"], within=10)
        stage.journal.wait_for(1)


@pytest.mark.fault("consumer: a handler sets the event that signals the loss of its lease")
@pytest.mark.promise("P9")
@pytest.mark.parametrize("change", ["set", "clear"])
def test_a_handler_that_changes_the_event_of_its_lease_fails_and_stops_no_queue(stage: Stage, change: str) -> None:
    """As code does that is given an event to stop by, and sets it at its end."""

    def act(message: ReceivedMessage, context: Context) -> Any:
        assert not context.lease_lost.is_set()
        assert "unset" in repr(context.lease_lost)
        assert not context.lease_lost.wait(0)
        if message.key == b"bad":
            getattr(context.lease_lost, change)()

    stage.write(b"1", key=b"bad")
    with stage.consumer(act, worker_count=1, retry=RetryPolicy(attempt_count_max=1)):
        stage.journal.wait_for(1)
        check_that_another_key_goes_on(stage)
        stage.wait_for_letters([b"1"], within=10)

    assert "UsageError" in str(stage.lab.read(stage.letters)[0].headers)


@pytest.mark.fault("consumer: a handler changes the headers that it was given")
@pytest.mark.promise("P9")
def test_what_a_handler_does_to_headers_changes_no_later_attempt_and_no_dead_letter(stage: Stage) -> None:
    """An inbox takes a message by its headers: with others, a later attempt would be another message."""
    given = [("a", b"1"), ("b", None)]
    seen = []

    def act(message: ReceivedMessage, _context: Context) -> Any:
        seen.append(list(message.headers))
        cast("list[Any]", message.headers).clear()
        raise ValueError

    cast("MemoryLab", stage.lab).kafka.append(stage.topic, b"0", key=b"k", headers=list(given))
    with stage.consumer(act, retry=RetryPolicy(attempt_count_max=2, backoff_first_ms=1)):
        stage.wait_for_letters([b"0"])

    assert [given, given] == seen
    assert given == original_headers(stage.lab.read(stage.letters)[0].headers)


LIMIT = 1_000_000
SIZE = 100_000


def items_of(consumer: Any) -> list[Any]:
    """Every item in memory."""
    owned = list(consumer._engine._assignments.owned.values())
    return [item for each in owned for item in list(each.queue._chains.tails.values())]


@pytest.mark.promise("P11")
def test_errors_of_messages_that_wait_for_their_next_attempt_stay_within_the_limit(stage: Stage) -> None:
    """As an error of a database that quotes its statement and parameters."""
    count = 200
    for n in range(count):
        stage.write(b"x", key=b"k%d" % n)

    def act(message: ReceivedMessage, _context: Context) -> None:
        raise ValueError(f"{message.offset}" + "x" * SIZE)

    policy = RetryPolicy(backoff_first_ms=600_000, backoff_max_ms=600_000)
    with stage.consumer(act, retry=policy, record_bytes_max=LIMIT) as consumer:
        stage.journal.wait_for(count)
        wait_until(lambda: sum(i.attempt_count for i in items_of(consumer)) == count, within=20, what="all have failed")
        kept = sum(len(i.more.error_message) for i in items_of(consumer))

    assert kept <= max(LIMIT, count * MESSAGE_LENGTH_MAX)


@pytest.mark.promise("P11")
@pytest.mark.parametrize("headers", [[("h", b"x" * SIZE)], [("hh", b"x")] * (SIZE // 170)])
def test_headers_of_messages_that_wait_stay_within_the_limit(stage: Stage, headers: list[tuple[str, bytes]]) -> None:
    """One that is large, or many that are small: each takes 170 bytes as the client's objects (CPython 3.11)."""
    lab = stage.lab
    assert isinstance(lab, MemoryLab)

    def write(count: int) -> None:
        for _ in range(count):
            lab.kafka.append(stage.topic, b"x", partition=0, key=b"k", headers=list(headers))

    write(10)  # as many as the limit allows; one read may exceed it
    gate = threading.Event()

    def act(_message: ReceivedMessage, _context: Context) -> None:
        gate.wait(20)

    with stage.consumer(act, record_bytes_max=LIMIT) as consumer:
        stage.journal.wait_for(1)
        wait_until(lambda: consumer.stats().topics[stage.topic].waiting > 0, within=20, what="some wait")
        write(190)
        pause(0.5)
        figures = consumer.stats().topics[stage.topic]
        in_memory = (figures.waiting + figures.in_flight) * SIZE
        gate.set()

    assert in_memory <= 2 * LIMIT


class FullDisk(logging.Handler):
    """A log handler that raises at one line, as some do whose disk or server is gone; the first time alone."""

    def __init__(self, event: str) -> None:
        super().__init__()
        self.event = event
        self.raised_count = 0

    def emit(self, record: logging.LogRecord) -> None:
        if record.getMessage() == self.event and not self.raised_count:
            self.raised_count += 1
            raise OSError("no space left on device")


@pytest.fixture
def failing_log(request: pytest.FixtureRequest) -> Iterator[FullDisk]:
    handler, logger = FullDisk(request.param), logging.getLogger("txlayer")
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    yield handler
    logger.removeHandler(handler)


def beside_a_commit(stage: Stage, event: str) -> dict[str, Any]:
    """Two messages, and settings of a consumer that logs this event beside the commit that gives them up."""
    lab = cast("MemoryLab", stage.lab)
    if event == "commit.unanswered":
        lab.faults.plan(Fault.LOSE_ANSWER, "EndTxn", client=DISTANT, times=1_000)  # it is done
    stage.write(b"0", key=b"a", partition=0)
    stage.write(b"1", key=b"b", partition=1)
    return {
        "kafka_transaction_timeout": timedelta(seconds=2),
        "retry": RetryPolicy(attempt_count_max=1, after_exhausted=AfterExhausted.PARK),
        "connect": lambda config: lab.kafka.connect_consumer(config, client=DISTANT),
    }


def end_well(stage: Stage) -> None:
    """Two more messages follow their parked keys."""
    cast("MemoryLab", stage.lab).faults.forget()
    stage.write(b"2", key=b"a", partition=0)
    stage.write(b"3", key=b"b", partition=1)
    stage.wait_stored(2, partition=0)
    stage.wait_stored(2, partition=1)


@pytest.mark.promise("P9")
@pytest.mark.parametrize(
    "failing_log", ["message.dead_lettered", "commit.unanswered", "queues.taken_over", "lease.gained"], indirect=True
)
def test_a_log_handler_that_raises_ends_no_consumer_and_has_no_message_given_up_twice(
    make_stage: MakeStage, failing_log: FullDisk, capsys: pytest.CaptureFixture[str]
) -> None:
    """Standard error says it. No other message than the first two is handled, and none twice."""
    stage = make_stage(partitions=2)
    settings = beside_a_commit(stage, failing_log.event)

    with stage.consumer(lambda *_: Reject("no"), **settings):
        wait_until(lambda: failing_log.raised_count, within=10, what="a line that cannot be written")
        end_well(stage)

    assert 1 == failing_log.raised_count
    assert f"a log handler raised OSError: {failing_log.event}" in capsys.readouterr().err
    assert [b"0", b"1", b"2", b"3"] == sorted(value or b"" for value in stage.letter_values())
    assert [b"0", b"1"] == sorted(seen.value or b"" for seen in stage.journal.seen)


@pytest.mark.promise("P9")
@pytest.mark.parametrize("failing_log", ["message.dead_lettered", "commit.unanswered"], indirect=True)
def test_a_fault_of_ours_beside_a_commit_has_no_message_given_up_twice(
    make_stage: MakeStage, failing_log: FullDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The consumer ends, and what it did not learn of its Kafka transaction is not stored over it."""
    stage = make_stage(partitions=2)
    for module in (completions, kafka_transactions):
        monkeypatch.setattr(module, "logger", logging.getLogger("txlayer.consumer"))
    settings = beside_a_commit(stage, failing_log.event)

    consumer = stage.plain(**settings)
    consumer.handler(lambda *_: Reject("no"))
    consumer.start()
    wait_until(lambda: consumer.failure is not None, within=10, what="its end")
    with pytest.raises(OSError, match="no space left"):
        consumer.close()
    with stage.consumer(**settings):
        end_well(stage)

    assert [b"0", b"1", b"2", b"3"] == sorted(value or b"" for value in stage.letter_values())
    assert [] == stage.journal.seen, "what was given up, and what follows its parked key, is handled by nobody"
