"""Consumers: order, progress, retries, limits, rebalances and ends, over memory and over real Kafka."""

import random
import threading
from contextlib import suppress
from datetime import timedelta
from typing import Any

import pytest

from tests.contract.conftest import IN_MEMORY, OF_HANDLERS
from tests.support.consumers import PATIENCE_S, Gate, MakeStage, Stage, numbers
from tests.support.lab import Lab
from tests.support.waiting import wait_until
from txlayer.adapters.memory.readers import MemoryAdmin
from txlayer.adapters.ports import StoredOffset, TopicLimits
from txlayer.consumer import assignments
from txlayer.consumer.consumer import ConcurrentConsumer
from txlayer.consumer.context import Context, ReceivedMessage
from txlayer.consumer.handlers import Interceptor
from txlayer.core.retry import HandlerResult, Retry, RetryPolicy
from txlayer.errors import ConfigError, LifecycleError, NotAuthorisedError, TopicMismatchError, UsageError

# --- order ------------------------------------------------------------------------------------------------------------


@pytest.mark.promise("P9")
def test_messages_of_a_key_are_handled_in_order_and_one_at_a_time(make_stage: MakeStage) -> None:
    stage = make_stage(partitions=2)
    for n in range(20):
        for key in range(4):
            stage.write(b"%d" % n, key=b"k%d" % key, partition=key % 2)
    with stage.consumer(worker_count=8):
        stage.journal.wait_for(80)
        stage.wait_stored(40)
        stage.wait_stored(40, partition=1)

    for key in range(4):
        assert numbers(20) == stage.journal.values(b"k%d" % key)
    assert {1} == set(stage.journal.at_most.values())


def test_keys_of_one_partition_are_handled_side_by_side(stage: Stage) -> None:
    for key in (b"a", b"b", b"c"):
        stage.write(b"0", key=key)
    barrier = threading.Barrier(3)

    with stage.consumer(lambda *_: barrier.wait(PATIENCE_S), worker_count=3):
        stage.wait_stored(3)

    assert 3 == stage.journal.together


@OF_HANDLERS
def test_by_partition_nothing_overtakes(stage: Stage) -> None:
    for n in range(10):
        stage.write(b"%d" % n, key=b"k%d" % (n % 3))

    with stage.consumer(parallel_by="partition", worker_count=4):
        stage.wait_stored(10)

    assert numbers(10) == [seen.value for seen in stage.journal.seen]
    assert 1 == stage.journal.together


@pytest.mark.parametrize(("null_keys", "together"), [("ordered", 1), ("free", 2)])
@OF_HANDLERS
def test_messages_without_a_key_wait_for_each_other_or_not(stage: Stage, null_keys: str, together: int) -> None:
    stage.write(b"0", b"1", key=None)
    gate = Gate()

    with stage.consumer(gate, null_keys=null_keys, worker_count=4):
        for _ in range(together):
            gate.wait_for_one()
        gate.is_open.set()
        stage.wait_stored(2)

    assert together == stage.journal.together


@OF_HANDLERS
def test_without_order_everything_runs_side_by_side(stage: Stage) -> None:
    stage.write(*numbers(3))
    barrier = threading.Barrier(3)

    def act(_message: ReceivedMessage, context: Context) -> None:
        assert context.token is None
        barrier.wait(PATIENCE_S)

    with stage.consumer(act, kind=ConcurrentConsumer, worker_count=3):
        stage.wait_stored(3)

    assert 3 == stage.journal.together


# --- retries ----------------------------------------------------------------------------------------------------------


@pytest.mark.promise("P9")
def test_a_failing_message_holds_back_its_own_key_alone(stage: Stage) -> None:
    stage.write(b"bad", b"next", key=b"a")
    stage.write(b"other", key=b"b")
    gate = threading.Event()

    def act(message: ReceivedMessage, _context: Context) -> None:
        if message.value == b"bad" and not gate.is_set():
            raise ValueError("not yet")

    policy = RetryPolicy(attempt_count_max=1_000, backoff_first_ms=5, backoff_max_ms=20)
    with stage.consumer(act, retry=policy):
        wait_until(lambda: stage.journal.values(b"b"), within=PATIENCE_S, what="the other key handled")
        stage.journal.wait_for(4)
        assert b"next" not in stage.journal.values(b"a")
        gate.set()
        stage.wait_stored(3)

    attempts = [seen.attempt for seen in stage.journal.seen if seen.value == b"bad"]
    assert list(range(1, len(attempts) + 1)) == attempts
    assert b"next" == stage.journal.values(b"a")[-1]


@pytest.mark.promise("P9")
def test_attempts_survive_a_restart(stage: Stage) -> None:
    stage.write(b"bad")
    policy = RetryPolicy(attempt_count_max=4, backoff_first_ms=10, backoff_max_ms=10)

    def act(_message: ReceivedMessage, context: Context) -> HandlerResult:
        return Retry(reason="never", delay_ms=60_000 if context.attempt == 2 else 0)

    with stage.consumer(act, retry=policy):
        stage.journal.wait_for(2)
    with stage.consumer(act, retry=policy):
        stage.wait_for_letters([b"bad"])
        stage.wait_stored(1)

    assert [1, 2, 3, 4] == [seen.attempt for seen in stage.journal.seen]


@pytest.mark.promise("P9")
def test_a_back_off_is_waited_for_also_after_a_restart(stage: Stage) -> None:
    stage.write(b"bad", key=b"a")
    policy = RetryPolicy(backoff_first_ms=600_000, backoff_max_ms=600_000)

    def act(message: ReceivedMessage, _context: Context) -> HandlerResult:
        return Retry() if message.value == b"bad" else None

    with stage.consumer(act, retry=policy):
        stage.journal.wait_for(1)
    stage.write(b"other", key=b"b")
    with stage.consumer(act, retry=policy) as consumer:
        wait_until(lambda: stage.journal.values(b"b"), within=PATIENCE_S, what="the other key handled")
        retrying = consumer.stats().topics[stage.topic].retrying

    assert 1 == retrying
    assert [b"bad"] == stage.journal.values(b"a")


# --- progress ---------------------------------------------------------------------------------------------------------


def test_what_ended_above_a_stuck_message_is_not_handled_again_after_a_restart(stage: Stage) -> None:
    stage.write(b"stuck", key=b"stuck")
    for n in range(50):
        stage.write(b"%d" % n, key=b"k%d" % (n % 5))

    def act(message: ReceivedMessage, _context: Context) -> HandlerResult:
        return Retry(delay_ms=60_000) if message.value == b"stuck" else None

    with stage.consumer(act):
        stage.journal.wait_for(51)
    assert 0 == stage.stored()
    stage.write(b"last")
    with stage.consumer(act):
        wait_until(lambda: stage.journal.values(b"k"), within=PATIENCE_S, what="the last one handled")

    assert 51 == len([seen for seen in stage.journal.seen if seen.value != b"stuck"])


@pytest.mark.fault("consumer: a key with many messages fails for hours")
@pytest.mark.promise("P9")
def test_a_key_whose_messages_outgrow_the_metadata_delays_itself_alone_also_over_a_restart(stage: Stage) -> None:
    # At 420 bytes what ended between a third of 3,500 messages has no room as runs.
    dice, fails = random.Random(1), threading.Event()
    keys = [b"bad", *(b"bad" if dice.random() < 0.3 else b"good" for _ in range(3_499))]
    for n, key in enumerate(keys):
        stage.write(b"%d" % n, key=key)
    settings: dict[str, Any] = {
        "metadata_bytes_max": 420,
        "parked_keys_max": 1,
        "retry": RetryPolicy(attempt_count_max=10_000, backoff_first_ms=100, backoff_max_ms=100),
    }
    good = [b"%d" % n for n, key in enumerate(keys) if key == b"good"]
    bad = [b"%d" % n for n, key in enumerate(keys) if key == b"bad"]

    def act(message: ReceivedMessage, _context: Context) -> None:
        if message.key == b"bad" and fails.is_set():
            raise ValueError

    fails.set()
    with stage.consumer(act, **settings) as first:
        wait_until(
            lambda: first.stats().topics[stage.topic].handled == len(good),
            within=PATIENCE_S,
            what="all others are handled",
            growing=lambda: first.stats().topics[stage.topic].handled,
        )
    fails.clear()
    with stage.consumer(act, **settings):
        stage.wait_stored(len(keys))

    assert good == stage.journal.values(b"good")
    handled = stage.journal.values(b"bad")
    assert {b"0"} == set(handled[: -len(bad)])
    assert bad == handled[-len(bad) :]


def test_foreign_metadata_is_passed_over_with_a_warning(stage: Stage, caplog: pytest.LogCaptureFixture) -> None:
    stage.write(*numbers(3))
    foreign = {(stage.topic, 0): StoredOffset(1, "somebody else's")}
    stage.lab.admin().store_offsets(stage.group, foreign)

    with stage.consumer(start_at=None):
        stage.wait_stored(3)

    assert [b"1", b"2"] == stage.journal.values(b"k")
    assert "metadata.foreign" in [record.getMessage() for record in caplog.records]


def test_latest_begins_behind_what_is_there(stage: Stage) -> None:
    stage.write(b"old")

    with stage.consumer(start_at="latest"):
        stage.wait_stored(1)
        stage.write(b"new")
        stage.wait_stored(2)

    assert [b"new"] == stage.journal.values(b"k")


def test_a_missing_dead_letter_topic_is_told_with_the_command_that_makes_it(lab: Lab, stage: Stage) -> None:
    lab.delete_topic(stage.letters)

    with pytest.raises(TopicMismatchError, match="txlayer topics apply --group"):
        stage.consumer().run()


def looking_consumer(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A consumer that has stored two messages, and looks for its topics all the time."""
    monkeypatch.setattr(assignments, "TOPICS_LOOK_S", 0.2)
    stage.write(b"0", b"1")
    consumer = stage.consumer()
    consumer.start()
    stage.wait_stored(2)
    return consumer


@pytest.mark.fault("consumer: its topic is deleted and made anew at once")
def test_a_consumer_notices_that_its_topic_was_deleted_and_made_anew(
    lab: Lab, stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    consumer = looking_consumer(stage, monkeypatch)
    lab.delete_topic(stage.topic)
    lab.create(stage.topic)
    stage.write(b"2", b"3", b"4")

    wait_until(lambda: consumer.failure is not None, within=PATIENCE_S, what="the consumer has ended")
    with pytest.raises(TopicMismatchError, match=r"deleted and made anew .* `txlayer consumer reset`"):
        consumer.close()


@pytest.mark.promise("P9")
@pytest.mark.fault("consumer: its topic is deleted and made anew at once")
def test_a_consumer_stores_no_place_of_a_deleted_topic_for_the_one_made_anew(
    lab: Lab, stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    consumer = looking_consumer(stage, monkeypatch)
    wait_until(lambda: not consumer._engine._storer.is_under_way, within=PATIENCE_S, what="it knows what is stored")
    lab.delete_topic(stage.topic)
    lab.create(stage.topic)
    stage.write(b"2", b"3")  # as many as it had read of the old one
    with pytest.raises(UsageError):  # ConfigError, if it looked while the new one was empty
        consumer.join()

    with stage.consumer():
        stage.wait_stored(2)
    assert {b"2", b"3"} <= set(stage.journal.values(b"k"))


@pytest.mark.promise("P9")
def test_a_consumer_that_ends_before_it_asks_stores_no_place_for_a_topic_made_anew(lab: Lab, stage: Stage) -> None:
    stage.write(b"0", b"1")
    with suppress(ConfigError), stage.consumer() as consumer:  # it may look while the new one is empty
        stage.wait_stored(2)
        wait_until(lambda: not consumer._engine._storer.is_under_way, within=PATIENCE_S, what="it knows what is stored")
        lab.delete_topic(stage.topic)
        lab.create(stage.topic)
        stage.write(b"2", b"3")

    with stage.consumer():
        stage.wait_stored(2)
    assert {b"2", b"3"} <= set(stage.journal.values(b"k"))


def test_a_topic_that_is_deleted_under_its_consumer_is_named_with_what_to_do(lab: Lab, stage: Stage) -> None:
    gate = Gate()
    stage.write(b"0")
    consumer = stage.consumer(gate)
    consumer.start()
    gate.wait_for_one()

    lab.delete_topic(stage.topic)
    gate.is_open.set()
    with pytest.raises(TopicMismatchError, match=r"deleted under its consumers .* `txlayer consumer reset`") as raised:
        consumer.join(timedelta(seconds=PATIENCE_S))

    assert stage.topic == raised.value.topic


@pytest.mark.parametrize("refusal", [None, NotAuthorisedError("as planned", resource="a topic", operation="describe")])
@IN_MEMORY
def test_no_handler_waits_while_a_consumer_asks_if_its_topic_is_the_same_and_only_a_new_topic_ends_it(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, refusal: Exception | None
) -> None:
    monkeypatch.setattr(assignments, "TOPICS_LOOK_S", 0.2)
    is_slow, is_asked, is_answered = threading.Event(), threading.Event(), threading.Event()
    look = MemoryAdmin.topic_limits

    def slow(self: MemoryAdmin, topic: str) -> TopicLimits | None:
        if is_slow.is_set():
            is_asked.set()
            assert is_answered.wait(PATIENCE_S)
            if refusal is not None:
                raise refusal
            return None  # the topic is gone
        return look(self, topic)

    monkeypatch.setattr(MemoryAdmin, "topic_limits", slow)
    stage.write(b"0")
    with stage.consumer() as consumer:
        stage.wait_stored(1)
        is_slow.set()
        assert is_asked.wait(PATIENCE_S)
        try:
            stage.write(b"1")
            stage.wait_stored(2, within=5)
        finally:
            is_answered.set()
        is_asked.clear()
        assert is_asked.wait(PATIENCE_S)  # it asks again
        assert consumer.is_running
    assert "topics.not_seen" in [record.getMessage() for record in caplog.records]


@pytest.mark.promise("P9")
@IN_MEMORY
def test_partitions_that_have_requests_go_on_while_a_topic_has_more_than_its_requests(
    lab: Lab, make_stage: MakeStage
) -> None:
    stage = make_stage(partitions=4)
    consumers = [stage.consumer(), stage.consumer()]

    def owned() -> list[list[int]]:
        return sorted([number for _, number in consumer.stats().partitions] for consumer in consumers)

    with consumers[0], consumers[1]:
        wait_until(lambda: owned() == [[0, 1], [2, 3]], within=PATIENCE_S, what="each has two")
        lab.delete_topic(stage.requests)
        lab.create(stage.requests, partitions=2)
        wait_until(lambda: owned() == [[], [0, 1]], within=PATIENCE_S, what="the first two go on")
        for number in (0, 1):
            stage.write(b"0", partition=number)
            stage.wait_stored(1, partition=number)


# --- handlers ---------------------------------------------------------------------------------------------------------


@OF_HANDLERS
def test_interceptors_stand_around_every_attempt_in_a_chain(stage: Stage) -> None:
    stage.write(b"0")
    told: list[str] = []

    class Telling(Interceptor):
        def __init__(self, name: str) -> None:
            self._name = name

        def before(self, _message: ReceivedMessage, context: Context) -> None:
            told.append(f"{self._name} before {context.attempt}")

        def after(self, _message: ReceivedMessage, _context: Context, _result: HandlerResult) -> None:
            told.append(f"{self._name} after")

        def on_error(self, _message: ReceivedMessage, _context: Context, error: BaseException) -> None:
            told.append(f"{self._name} {error}")

    def act(_message: ReceivedMessage, context: Context) -> None:
        if context.attempt == 1:
            raise ValueError("first")

    with stage.consumer(act, interceptors=[Telling("a"), Telling("b")]):
        stage.wait_stored(1)

    first = ["a before 1", "b before 1", "b first", "a first"]
    assert [*first, "a before 2", "b before 2", "b after", "a after"] == told


@OF_HANDLERS
def test_a_batch_handler_gets_messages_of_one_key_together_and_in_order(stage: Stage) -> None:
    for key in (b"a", b"b"):
        stage.write(*numbers(25), key=key)
    batches: list[tuple[bytes | None, list[bytes]]] = []
    gate = Gate()
    consumer = stage.consumer()
    consumer._handlers._handlers.clear()

    @consumer.batch_handler(count_max=10)  # type: ignore[untyped-decorator]  # it takes any function
    def handle(messages: list[ReceivedMessage], context: Context) -> None:
        assert {context.key} == {message.key for message in messages}
        gate(messages[0], context)
        batches.append((context.key, [message.value for message in messages]))

    with consumer:
        gate.wait_for_one()
        wait_until(
            lambda: unfinished(consumer, stage.topic) == 50,
            within=PATIENCE_S,
            what="all are read, whatever one fetch brought",
        )
        gate.is_open.set()
        stage.wait_stored(50)

    for key in (b"a", b"b"):
        assert numbers(25) == [value for k, values in batches for value in values if k == key]
    assert max(len(values) for _, values in batches) == 10


@OF_HANDLERS
def test_without_order_a_batch_has_messages_of_many_keys(stage: Stage) -> None:
    for n in range(25):
        stage.write(b"%d" % n, key=b"k%d" % n)
    consumer = stage.plain(ConcurrentConsumer, worker_count=1)
    batches: list[list[bytes]] = []

    @consumer.batch_handler(count_max=10)  # type: ignore[untyped-decorator]  # it takes any function
    def handle(messages: list[ReceivedMessage], context: Context) -> HandlerResult:
        batches.append([message.value for message in messages])
        return Retry(delay_ms=0) if context.attempt == 1 and b"7" in batches[-1] else None

    with consumer:
        stage.wait_stored(25)

    assert max(map(len, batches)) == 10
    (failed,) = (values for values in batches if b"7" in values and len(values) > 1)
    again = [values for values in batches if len(values) == 1 and values[0] in failed]
    assert sorted(failed) == sorted(value for values in again for value in values)


def unfinished(consumer: Any, topic: str) -> int:
    """How many messages a consumer has in memory."""
    figures = consumer.stats().topics[topic]
    return int(figures.in_flight + figures.waiting)


@OF_HANDLERS
def test_tags_choose_the_handler_and_what_nobody_asked_for_counts_as_handled(stage: Stage) -> None:
    for tag in (b"A", b"B", b"C"):
        stage.lab.write_tagged(stage.topic, tag)
    consumer = stage.consumer()
    consumer._handlers._handlers.clear()
    told: list[tuple[str, bytes]] = []
    consumer.handler(tags="A")(lambda message, _: told.append(("first", message.value)))
    consumer.handler(tags="A || C")(lambda message, _: told.append(("second", message.value)))

    with consumer:
        stage.wait_stored(3)

    assert {("first", b"A"), ("second", b"C")} == set(told)
    assert 1 == consumer.stats().topics[stage.topic].passed_over


@OF_HANDLERS
def test_handlers_are_registered_before_the_start(stage: Stage) -> None:
    consumer = stage.consumer()
    with consumer, pytest.raises(LifecycleError):
        consumer.handler(print)
    with pytest.raises(LifecycleError):
        consumer.run()
