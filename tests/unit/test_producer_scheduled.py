"""`deliver_at` and `delay`: what a producer writes for them, and what it refuses."""

import itertools
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta, timezone
from types import SimpleNamespace
from typing import Any

import pytest

from tests.support.producer_stage import GROUP, HALF, OP, PARTITION_COUNTS, ProducerStage
from txlayer.adapters import readers
from txlayer.adapters.errors import Code
from txlayer.adapters.memory.world import ClientError, ClientFailureError
from txlayer.adapters.ports import TransactionalWriter
from txlayer.config import CoordinatorConfig, ProducerConfig
from txlayer.core import codec
from txlayer.core.history import HistoryFold
from txlayer.core.ledger.transaction import TIMES_MAX, DueTimes, Transaction
from txlayer.core.ledger.transitions import TxnState
from txlayer.core.messages import COMMIT, ROLLBACK, HalfHeader, Message, OpMessage, Resolution, Source
from txlayer.errors import (
    BrokerUnavailableError,
    FencedError,
    LifecycleError,
    NotAuthorisedError,
    OutcomeUnknownError,
    UsageError,
)
from txlayer.producer.identity import now_ms
from txlayer.producer.rocketmq import DELAYS, TransactionMQProducer, delay_of
from txlayer.producer.steps import change_time

AT = datetime(2031, 2, 3, 4, 5, 6, 789_000, tzinfo=UTC)
AT_MS = 1_927_857_906_789


def headers(stage: ProducerStage) -> list[HalfHeader]:
    found = [codec.decode_half_header(codec.half_header_of(r.headers()) or b"") for r in stage.writer.of(HALF)]
    return [each for each in found if isinstance(each, HalfHeader)]


def test_a_release_that_knows_no_times_cannot_read_it(stage: ProducerStage) -> None:
    with stage.producer() as producer:
        producer.publish([Message("orders", b"k", b"v", deliver_at=AT), Message("orders", b"k", b"v")])

    raws = [codec.half_header_of(record.headers()) or b"" for record in stage.writer.of(HALF)]
    assert [b"3|", b"1|"] == [raw[:2] for raw in raws]


def test_a_delay_counts_from_prepare_on(stage: ProducerStage) -> None:
    begin_ms = now_ms()
    with stage.producer() as producer:
        producer.submit(Message("orders", b"k", b"v", delay=timedelta(minutes=5))).result()

    [header] = headers(stage)
    assert begin_ms <= (header.options.deliver_at_ms or 0) - 300_000 <= now_ms()


@pytest.mark.promise("P5")
def test_messages_with_one_delay_are_due_at_one_time(stage: ProducerStage, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = itertools.count(1_700_000_000_000)
    monkeypatch.setattr("txlayer.producer.encoding.now_ms", lambda: next(clock))
    with stage.producer() as producer:
        producer.publish([Message("orders", b"k", b"v", delay=timedelta(minutes=5))] * (TIMES_MAX + 1))

    assert 1 == len({header.options.deliver_at_ms for header in headers(stage)})


@pytest.mark.parametrize(
    ("at", "wanted_ms"),
    [
        (datetime(1970, 1, 1, tzinfo=UTC), 1),
        (datetime(1969, 1, 1, tzinfo=UTC), 1),
        (datetime(1970, 1, 1, 1, tzinfo=timezone(timedelta(hours=1))), 1),
        (datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC), 253_402_300_799_000),
        (datetime(2031, 2, 3, 4, 5, 6, 789_001, tzinfo=UTC), AT_MS + 1),  # not before it
    ],
)
def test_any_time_may_be_named(stage: ProducerStage, at: datetime, wanted_ms: int) -> None:
    with stage.producer() as producer:
        producer.publish(Message("orders", b"k", b"v", deliver_at=at))

    assert [wanted_ms] == [header.options.deliver_at_ms for header in headers(stage)]


@pytest.mark.parametrize(
    "given",
    [
        {"deliver_at": datetime(2031, 1, 1)},  # noqa: DTZ001 - the fault: it names no zone
        {"deliver_at": 5},
        {"delay": 5},
        {"delay": timedelta(seconds=-1)},
        {"deliver_at": AT, "delay": timedelta(0)},
    ],
)
def test_what_is_no_time_is_refused(stage: ProducerStage, given: dict[str, Any]) -> None:
    with stage.producer() as producer, pytest.raises(UsageError, match="Nothing was sent"):
        producer.publish(Message("orders", b"k", b"v", **given))

    assert [] == headers(stage)


def test_a_transaction_has_a_bounded_number_of_times(stage: ProducerStage) -> None:
    messages = [Message("orders", b"k", b"v", deliver_at=AT + timedelta(seconds=n)) for n in range(TIMES_MAX + 1)]
    with stage.producer() as producer, pytest.raises(UsageError, match="65 different times"):
        producer.publish(messages)

    assert [] == headers(stage)


@pytest.mark.parametrize(("level", "wanted"), [(1, 1), (5, 60), (14, 600), (16, 1_800), (18, 7_200)])
def test_a_delay_level_is_that_of_rocketmq(level: int, wanted: int) -> None:
    assert timedelta(seconds=wanted) == delay_of(level)
    assert 18 == len(DELAYS)


@pytest.mark.parametrize("level", [0, 19, True, "1"])
def test_no_other_level_is_known(level: Any) -> None:
    with pytest.raises(UsageError, match="1 to 18"):
        delay_of(level)


class Listener:
    """Commits whatever it is asked."""

    def execute_local_transaction(self, _prepared: Any, _arg: Any) -> Resolution:
        return COMMIT

    def check_local_transaction(self, _request: Any) -> Resolution:
        return COMMIT


def of_rocketmq(stage: ProducerStage) -> TransactionMQProducer:
    return TransactionMQProducer(listener=Listener(), bootstrap_servers="127.0.0.1:9", group="g", connect=stage.connect)


@pytest.mark.parametrize(
    ("message", "level"),
    [(Message("orders", b"k", b"v"), 5), (Message("orders", b"k", b"v", delay=timedelta(minutes=1)), None)],
)
def test_rocketmqs_producer_takes_levels_and_times(stage: ProducerStage, message: Message, level: int | None) -> None:
    begin_ms = now_ms()
    with of_rocketmq(stage) as producer:
        producer.send_message_in_transaction(message, delay_level=level)

    [header] = headers(stage)
    assert begin_ms <= (header.options.deliver_at_ms or 0) - 60_000 <= now_ms()


@pytest.mark.parametrize("given", [{"delay": timedelta(hours=1)}, {"deliver_at": AT}])
def test_a_level_beside_another_time_is_refused(stage: ProducerStage, given: dict[str, Any]) -> None:
    message = Message("orders", b"k", b"v", **given)
    with of_rocketmq(stage) as producer, pytest.raises(UsageError, match=r"not both\. Nothing was sent"):
        producer.send_message_in_transaction(message, delay_level=1)

    assert [] == headers(stage)


@pytest.mark.parametrize(
    ("time_ms", "line"),
    [
        (None, b"1|A|order-1/00000001|shop|3|900|producer||"),
        (9_000, b"2|U|order-1/00000001|shop|3|900|producer|||9000"),
    ],
)
@pytest.mark.parametrize("is_released_first", [False, True])
@pytest.mark.parametrize("state", [TxnState.OPEN, TxnState.SCHEDULED])
def test_a_line_about_times_says_whether_it_came_first_when_half_is_older_than_what_is_read(
    is_released_first: bool, state: TxnState, time_ms: int | None, line: bytes
) -> None:
    key, due_ms, looks = "order-1/00000001", 5_000, [HistoryFold("order-1"), HistoryFold("order-1")]
    waiting = Transaction(key, "shop", "mails", 3, 1_000, "900", (0, 0), None)
    waiting.state = state
    if state is TxnState.OPEN:  # according to doubt; its commit is in op
        waiting.ensure_extras().due = DueTimes(left=(0, due_ms))
        commit = codec.encode_op(OpMessage(COMMIT, key, "shop", 3, 900)).encode()
        for look in looks:
            look.op(partition=1, offset=15, appended_ms=4_000, value=commit)
    else:
        waiting.ensure_extras().due = DueTimes(left=(due_ms,), committed_at=(0, 0))
        waiting.ensure_extras().decided_at = (0, 0)
    summary = codec.encode_summary(waiting.summary())
    looks[0].doubt(partition=1, appended_ms=2_000, key=key.encode(), value=summary)
    looks[1].doubt(partition=1, appended_ms=6_000, key=key.encode(), value=None)
    if is_released_first:
        release = OpMessage(Resolution.COMMIT, key, "shop", 3, 900, Source.POLICY, time_ms=due_ms)
        looks[1].op(partition=1, offset=16, appended_ms=due_ms, value=codec.encode_op(release).encode())
    written: list[bytes] = []

    def produce(_topic: str, value: bytes, _key: None, partition: int, done: Callable[..., None]) -> None:
        written.append(value)
        looks[1].op(partition=partition, offset=17, appended_ms=due_ms, value=value)
        done(None, SimpleNamespace(offset=lambda: 17))

    pipeline = SimpleNamespace(group="shop", op_topic="op", produce=produce, is_alive=True, is_own_thread=False)
    engine: Any = SimpleNamespace(pipeline=pipeline, config=ProducerConfig(), status=dict)
    steps = change_time(engine, "order-1", time_ms=time_ms, since=timedelta(hours=1))
    next(steps)
    steps.send(looks[0].histories())
    with pytest.raises(StopIteration) as end:
        steps.send(looks[1].histories())

    assert [line] == written
    assert (not is_released_first) is end.value.value


def cancelled(
    look: HistoryFold, produce: Callable[..., None], *, time_ms: int | None = None, is_hidden: bool = False
) -> Any:
    """What `cancel`, or `reschedule` to a time, finds out about order-1, or raises; both looks find the same, or the second fails."""
    pipeline = SimpleNamespace(
        group="shop",
        op_topic="op",
        produce=produce,
        is_alive=True,
        is_own_thread=False,
        round_bell=SimpleNamespace(subscribe=None),
    )
    engine: Any = SimpleNamespace(pipeline=pipeline, config=ProducerConfig(), status=dict)
    steps = change_time(engine, "order-1", time_ms=time_ms, since=timedelta(hours=1))
    wait = next(steps)
    look_count = 0
    while True:
        try:
            look_count += wait is not None
            if look_count > 1 and is_hidden:
                steps.throw(BrokerUnavailableError("hidden"))
            wait = steps.send(look.histories() if wait is not None else None)
        except StopIteration as end:
            return end.value


def committed(
    *lines: OpMessage, due_ms: int = 5_000, key: str = "order-1/00000001", look: HistoryFold | None = None
) -> HistoryFold:
    """One message with a time, its commit and further lines."""
    look = HistoryFold("order-1") if look is None else look
    header = codec.half_header(key, "shop", "mails", 0, 1, 900, f"d{due_ms}")
    look.half(partition=1, offset=3, appended_ms=1_000, headers=[(codec.HALF_HEADER, header)])
    for number, line in enumerate((OpMessage(COMMIT, key, "shop", 3, 900), *lines)):
        look.op(partition=1, offset=10 + number, appended_ms=due_ms + number, value=codec.encode_op(line).encode())
    return look


def scheduled_on_doubt(*lines: OpMessage) -> HistoryFold:
    """The same with half records that are older than what is read, and these lines behind what doubt knows."""
    look = HistoryFold("order-1")
    waiting = Transaction("order-1/00000001", "shop", "mails", 3, 1_000, "900", (0, 0), None)
    waiting.state = TxnState.SCHEDULED
    waiting.ensure_extras().due = DueTimes(left=(5_000,), committed_at=(0, 0))
    waiting.ensure_extras().decided_at = (0, 0)
    look.doubt(partition=1, appended_ms=2_000, key=b"order-1/00000001", value=codec.encode_summary(waiting.summary()))
    for number, line in enumerate(lines, start=11):
        look.op(partition=1, offset=number, appended_ms=5_000 + number, value=codec.encode_op(line).encode())
    return look


RELEASE = OpMessage(COMMIT, "order-1/00000001", "shop", 3, 900, Source.POLICY, time_ms=5_000)
GIVE_UP = OpMessage(Resolution.ROLLBACK, "order-1/00000001", "shop", 3, 900, is_abandon=True)


@pytest.mark.promise("P1")
def test_what_is_released_and_waits_for_its_topic_is_not_cancelled() -> None:
    def produce(*_given: Any) -> None:
        raise AssertionError("the line would give up a message whose time has come")

    assert False is cancelled(committed(RELEASE), produce)


@pytest.mark.parametrize("lines", [(RELEASE,), (GIVE_UP,)])
def test_what_is_released_or_cancelled_is_not_rescheduled(lines: tuple[OpMessage, ...]) -> None:
    look = committed(*lines)
    if GIVE_UP in lines:
        look.doubt(
            partition=1, appended_ms=4_500, key=b"order-1/00000001", value=None, headers=codec.abandoned_headers(0)
        )

    def produce(*_given: Any) -> None:
        raise AssertionError("there is nothing left to move")

    assert False is cancelled(look, produce, time_ms=9_000)


@pytest.mark.promise("P4")
def test_a_new_time_before_the_commit_does_not_count() -> None:
    early = OpMessage(Resolution.UNKNOWN, "order-1/00000001", "shop", 3, 900, Source.OPERATOR, time_ms=9_000)
    look = HistoryFold("order-1")
    look.op(partition=1, offset=9, appended_ms=4_000, value=codec.encode_op(early).encode())

    def produce(_topic: str, value: bytes, _key: None, partition: int, done: Callable[..., None]) -> None:
        for offset, line in ((16, codec.encode_op(RELEASE).encode()), (17, value)):
            look.op(partition=partition, offset=offset, appended_ms=5_000, value=line)
        done(None, SimpleNamespace(offset=lambda: 17))

    assert False is cancelled(committed(look=look), produce)


@pytest.mark.promise("P4")
@pytest.mark.fault("producer: its clock is a day off")
def test_a_machine_whose_clock_is_ahead_finds_what_it_scheduled(
    stage: ProducerStage, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage.kafka.create_topic("txlayer.doubt", partitions=PARTITION_COUNTS[HALF])

    def ahead_ms() -> int:
        return now_ms() + 24 * 3_600_000

    with stage.producer() as producer:
        monkeypatch.setattr("txlayer.producer.engine.now_ms", ahead_ms)
        clients: Any = stage.history
        stage.history = replace(clients.__self__, wall_clock=lambda: ahead_ms() / 1000).history
        producer.publish(Message("orders", b"k", b"v", deliver_at=AT), txn_id="order-1")

        assert 1 == len(producer.status("order-1"))
        assert producer.reschedule("order-1", deliver_at=AT + timedelta(days=1))
        assert producer.cancel("order-1")


@pytest.mark.parametrize("given", [{}, {"delay": 5}, {"deliver_at": AT, "delay": timedelta(0)}])
def test_a_new_time_is_needed(stage: ProducerStage, given: dict[str, Any]) -> None:
    with stage.producer() as producer, pytest.raises(UsageError, match="Nothing was sent"):
        producer.reschedule("order-1", **given)


@pytest.mark.parametrize("is_older", [False, True])
def test_to_cancel_again_says_the_same(is_older: bool) -> None:
    look = committed(GIVE_UP)
    if is_older:  # than what is read
        look = HistoryFold("order-1")
        look.op(partition=1, offset=17, appended_ms=4_000, value=codec.encode_op(GIVE_UP).encode())
    look.doubt(partition=1, appended_ms=4_500, key=b"order-1/00000001", value=None, headers=codec.abandoned_headers(0))

    assert True is cancelled(look, lambda *_given: None)
    assert False is cancelled(committed(RELEASE, GIVE_UP), lambda *_given: None)
    assert True is cancelled(scheduled_on_doubt(GIVE_UP), lambda *_given: None)
    assert False is cancelled(scheduled_on_doubt(RELEASE, GIVE_UP), lambda *_given: None)


def test_what_is_cancelled_and_not_carried_out_yet_is_not_rescheduled_and_stays_cancelled() -> None:
    def produce(*_given: Any) -> None:
        raise AssertionError("the first word is in the log")

    assert False is cancelled(committed(GIVE_UP), produce, time_ms=9_000)
    assert True is cancelled(committed(GIVE_UP), produce)


@pytest.mark.promise("P4")
@pytest.mark.parametrize("is_older", [False, True])
@pytest.mark.parametrize("time_ms", [None, 9_000])
def test_of_two_words_at_once_the_first_one_counts(time_ms: int | None, is_older: bool) -> None:
    look = scheduled_on_doubt() if is_older else committed()  # than what is read

    def produce(_topic: str, value: bytes, _key: None, partition: int, done: Callable[..., None]) -> None:
        another = codec.encode_op(GIVE_UP).encode()
        for offset, line in ((16, another), (17, value)):
            look.op(partition=partition, offset=offset, appended_ms=1_000, value=line)
        done(None, SimpleNamespace(offset=lambda: 17))

    assert (time_ms is None) is cancelled(look, produce, time_ms=time_ms)


@pytest.mark.promise("P4")
def test_a_decision_to_commit_stays_one_when_the_rest_of_the_transaction_is_cancelled(stage: ProducerStage) -> None:
    stage.kafka.create_topic("txlayer.doubt", partitions=4)
    with stage.producer() as producer, producer.transaction("order-1") as tx:
        tx.send("orders", key=b"k", value=b"bought")
        tx.send("orders", key=b"k", value=b"please pay", deliver_at=AT)
        tx.prepare()
        tx.commit()
        said = tx.result(10)
        key = f"order-1/{tx.nonce}"
        give_up = OpMessage(Resolution.ROLLBACK, key, "g", said.last_half_offset, 0, is_abandon=True)
        stage.kafka.append(OP, codec.encode_op(give_up).encode(), partition=said.half_partition)
        stage.kafka.append(
            "txlayer.doubt",
            None,
            key=key.encode(),
            partition=said.half_partition,
            headers=codec.abandoned_headers(AT_MS),
        )

        assert COMMIT is tx.result(10, with_decision=True).decision


def test_a_cancellation_on_the_producers_own_thread_is_refused_before_its_line_is_written() -> None:
    engine: Any = SimpleNamespace(pipeline=SimpleNamespace(is_own_thread=True), status=dict)
    with pytest.raises(LifecycleError, match="wait for itself"):
        next(change_time(engine, "order-1", time_ms=None, since=timedelta(hours=1)))


def test_a_further_attempt_with_the_id_of_a_cancelled_one_is_cancelled_too() -> None:
    look, written = committed(GIVE_UP), list[bytes]()
    look.doubt(partition=1, appended_ms=4_500, key=b"order-1/00000001", value=None, headers=codec.abandoned_headers(0))
    committed(key="order-1/00000002", look=look)

    def produce(_topic: str, value: bytes, _key: None, partition: int, done: Callable[..., None]) -> None:
        written.append(value)
        look.op(partition=partition, offset=17, appended_ms=1_000, value=value)
        done(None, SimpleNamespace(offset=lambda: 17))

    assert True is cancelled(look, produce)
    assert [b"1|A|order-1/00000002|shop|3|900|producer||"] == written


def test_a_line_whose_offset_nobody_reported_is_to_be_cancelled_again() -> None:
    with pytest.raises(OutcomeUnknownError, match="call it again"):
        cancelled(committed(), lambda *given: given[-1](None, SimpleNamespace(offset=lambda: None)))


def test_a_cancellation_waits_for_room_in_the_client() -> None:
    look, full = committed(), [True, True]

    def produce(_topic: str, value: bytes, _key: None, partition: int, done: Callable[..., None]) -> None:
        if full:
            full.pop()
            raise BufferError
        look.op(partition=partition, offset=17, appended_ms=1_000, value=value)
        done(None, SimpleNamespace(offset=lambda: 17))

    assert True is cancelled(look, produce)


class Hiding:
    """A Kafka transaction on op, such as a coordinator's, or on half, open until a producer waits for it; then it commits."""

    def __init__(self, stage: ProducerStage, monkeypatch: pytest.MonkeyPatch) -> None:
        stage.kafka.create_topic("txlayer.doubt", partitions=4)
        connections = stage.kafka.connect_coordinator(CoordinatorConfig(), client="coordinator")
        self.writer: TransactionalWriter = connections.make_writer("coordinator", batch_bytes_max=100_000)
        self.writer.initialise(timeout_s=5)
        self.waited_count = 0
        monkeypatch.setattr(readers, "time", SimpleNamespace(monotonic=time.monotonic, sleep=self._waited))

    def begin(self, op: OpMessage, partition: int, *, topic: str = OP) -> None:
        self.writer.begin()
        self.writer.produce(topic, codec.encode_op(op).encode(), None, partition)
        self.writer.flush(timeout_s=5)

    def _waited(self, _seconds: float) -> None:
        self.waited_count += 1
        self.writer.commit(timeout_s=5)


@pytest.mark.promise("P4")
@pytest.mark.parametrize("is_cancelled", [False, True])
def test_a_release_that_an_open_kafka_transaction_hides_came_first(
    stage: ProducerStage, monkeypatch: pytest.MonkeyPatch, is_cancelled: bool
) -> None:
    hiding = Hiding(stage, monkeypatch)
    with stage.producer() as producer:
        said = producer.publish(Message("orders", b"k", b"v", delay=timedelta(0)), txn_id="order-1")
        engine = producer._started()  # the release comes between its look and its line
        look, looks = engine.status, itertools.count()

        def status(*given: Any, **how: Any) -> Any:
            [found] = look(*given, **how)
            if next(looks):
                return [found]
            key, offset = f"order-1/{said.nonce}", said.last_half_offset
            release = OpMessage(COMMIT, key, GROUP, offset, 0, Source.POLICY, time_ms=found.times_left()[0])
            hiding.begin(release, said.half_partition)
            return [found]

        monkeypatch.setattr(engine, "status", status)
        is_in_time = (
            producer.cancel("order-1") if is_cancelled else producer.reschedule("order-1", delay=timedelta(hours=1))
        )

    assert (False, 1) == (is_in_time, hiding.waited_count)


@pytest.mark.parametrize("topic", [OP, HALF])
def test_a_commit_that_an_open_kafka_transaction_hides_is_seen(
    stage: ProducerStage, monkeypatch: pytest.MonkeyPatch, topic: str
) -> None:
    hiding = Hiding(stage, monkeypatch)
    with stage.producer() as producer:
        placed = producer.publish(Message("orders", b"k", b"v"))
        hiding.begin(RELEASE, placed.half_partition, topic=topic)
        producer.publish(Message("orders", b"k", b"v", delay=timedelta(hours=1)), txn_id="order-1")

        assert (True, 1) == (producer.cancel("order-1"), hiding.waited_count)


@pytest.mark.promise("P4")
def test_a_result_tells_a_decision_that_an_open_kafka_transaction_hides(
    stage: ProducerStage, monkeypatch: pytest.MonkeyPatch
) -> None:
    hiding = Hiding(stage, monkeypatch)
    with stage.producer() as producer, producer.transaction("order-1", ordering_key="k") as tx:
        tx.send("orders", key=b"k", value=b"v")
        tx.prepare()
        [half] = stage.writer.of(HALF)
        decision = OpMessage(ROLLBACK, f"order-1/{tx.nonce}", GROUP, half.offset(), 0, Source.POLICY)
        hiding.begin(decision, half.partition())
        tx.commit()

        assert ROLLBACK is tx.result(10, with_decision=True).decision


@pytest.mark.promise("P4")
def test_a_line_that_names_no_half_record_decides_nothing_while_an_open_kafka_transaction_hides_half(
    stage: ProducerStage, monkeypatch: pytest.MonkeyPatch
) -> None:
    hiding = Hiding(stage, monkeypatch)
    with stage.producer() as producer, producer.transaction("order-1", ordering_key="k") as tx:
        placed = producer.publish(Message("orders", b"k", b"v"), ordering_key="k")
        hiding.begin(RELEASE, placed.half_partition, topic=HALF)
        tx.send("orders", key=b"k", value=b"v")
        tx.prepare()
        of_nothing = OpMessage(ROLLBACK, f"order-1/{tx.nonce}", GROUP, placed.last_half_offset, 0, Source.OPERATOR)
        stage.kafka.append(OP, codec.encode_op(of_nothing).encode(), partition=placed.half_partition)
        tx.commit()

        assert (COMMIT, 1) == (tx.result(10, with_decision=True).decision, hiding.waited_count)


def test_no_kafka_transaction_is_waited_for_without_an_end(
    stage: ProducerStage, monkeypatch: pytest.MonkeyPatch
) -> None:
    hiding = Hiding(stage, monkeypatch)
    monkeypatch.setattr(readers, "HIDDEN_S", -1)
    with stage.producer() as producer:
        said = producer.publish(Message("orders", b"k", b"v", delay=timedelta(hours=1)), txn_id="order-1")
        hiding.begin(RELEASE, said.half_partition)
        with pytest.raises(BrokerUnavailableError, match="hides what there is"):
            producer.cancel("order-1")

    with pytest.raises(OutcomeUnknownError, match="cannot be read; call it again"):
        cancelled(committed(), lambda *given: given[-1](None, SimpleNamespace(offset=lambda: 17)), is_hidden=True)


@pytest.mark.parametrize("is_reported", [False, True])
def test_a_cancellation_that_cannot_be_written_raises_an_error_of_ours(stage: ProducerStage, is_reported: bool) -> None:
    stage.kafka.create_topic("txlayer.doubt", partitions=4)
    with stage.producer() as producer:
        producer.publish(Message("orders", b"k", b"v", delay=timedelta(hours=1)), txn_id="order-1")
        if is_reported:
            stage.writer.refuse = lambda _record: NotAuthorisedError("no right to write op")
        else:
            fatal = ClientFailureError(ClientError(Code.OUT_OF_ORDER_SEQUENCE_NUMBER, is_fatal=True))
            stage.writer.refuse_at_once = lambda _topic: fatal
        with pytest.raises(NotAuthorisedError if is_reported else FencedError):
            producer.cancel("order-1")
