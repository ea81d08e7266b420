"""Of one key a scheduled message goes before those that are due later, also if its commit is read late; and what is asked for that."""

from collections import deque
from collections.abc import Callable, Collection
from datetime import timedelta
from typing import Any

import pytest

from tests.simulation import unguarded as un
from tests.support.core_records import op_line, options, txn_key
from tests.support.partition_log import SETTINGS
from tests.support.still_coordinator import StillCoordinator
from tests.support.still_world import StillWorld
from txlayer.adapters.ports import TopicLimits
from txlayer.coordinator.loop import Coordinator
from txlayer.coordinator.op_ends import GIVE_UP_S, OpEnds
from txlayer.coordinator.shard import LogTime, Shard
from txlayer.core.ledger.batch import Positions
from txlayer.core.ledger.ledger import UNSETTLED_BYTES, Ledger
from txlayer.core.messages import HalfOptions, txn_id_of
from txlayer.errors import BrokerUnavailableError, RetriableError
from txlayer.runtime.environment import Environment

A, B, C = map(txn_key, "abc")


class SlowCoordinator(Coordinator):
    """Reads no op record while `is_slow`, as behind a slow broker."""

    is_slow = False

    def _turn(self) -> None:
        op = [(self._topics.op, 0)]
        if self.is_slow:
            self._group.pause(op)
        elif self._shards and not self._shards[0].is_op_paused:
            self._group.resume(op)
        super()._turn()


def red(stage: StillCoordinator, key: str, *, after_ms: int) -> int:
    """A half record of one ordering key, due so much later."""
    return stage.half(key, options=options("red")._replace(deliver_at_ms=stage.world.now_ms() + after_ms))


def visible_although_op_is_slow(ledger: type[Ledger], *, is_restarted: bool) -> list[str]:
    """A is due before B, and its commit is in op before both times. The coordinator reads it when both are over."""

    class Slow(SlowCoordinator):
        make_ledger = ledger

    stage = StillCoordinator(make=Slow)
    first, second = red(stage, A, after_ms=5_000), red(stage, B, after_ms=6_000)
    stage.commit(B, second)
    if is_restarted:
        stage.work(seconds=3)
    coordinator: Any = stage.coordinator
    begin_s, written = stage.world.passed_s, list[int]()

    def should_stop() -> bool:
        passed_s = stage.world.passed_s - begin_s
        if passed_s >= 2 and not written:
            coordinator.is_slow = True
            written.append(1)
            stage.commit(A, first)
        coordinator.is_slow = 2 <= passed_s < 10
        return passed_s >= 15

    stage.run(should_stop, seconds=15)
    return stage.visible()


@pytest.mark.promise("P6")
@pytest.mark.fault("coordinator: reads op slowly while scheduled messages are due")
@pytest.mark.parametrize("is_restarted", [False, True])
def test_one_whose_commit_is_read_late_is_overtaken_by_none_that_is_due_later(is_restarted: bool) -> None:
    assert list(map(txn_id_of, (A, B))) == visible_although_op_is_slow(Ledger, is_restarted=is_restarted)
    # A guard: docs/explanation/guards.md.
    assert list(map(txn_id_of, (B, A))) == visible_although_op_is_slow(
        un.HastyReleasingLedger, is_restarted=is_restarted
    )


@pytest.mark.promise("P6")
@pytest.mark.fault("coordinator: an open Kafka transaction hides the commit of a scheduled message")
@pytest.mark.parametrize("is_restarted", [False, True])
def test_one_whose_commit_an_open_kafka_transaction_hides_is_overtaken_by_none_that_is_due_later(
    *, is_restarted: bool
) -> None:
    stage = StillCoordinator()
    first, second = red(stage, A, after_ms=5_000), red(stage, B, after_ms=6_000)
    stage.commit(B, second)
    stage.work(seconds=2)
    writer = stage.kafka.connect_coordinator(stage.config, client="stranger").make_writer("s", batch_bytes_max=10_000)

    def hide_commit() -> None:
        writer.initialise(timeout_s=1)
        writer.begin()
        writer.produce(stage.topics.op, b"never committed", None, 0)
        assert 0 == writer.flush(timeout_s=1)
        stage.commit(A, first)

    if is_restarted:
        hide_commit()
        stage.world.advance(ms=4_500)
    hidden = [] if is_restarted else [hide_commit]

    def should_stop() -> bool:
        if stage.world.passed_s >= 3 and hidden:
            hidden.pop()()
        return stage.world.passed_s >= 30

    stage.run(should_stop, seconds=30)
    assert list(map(txn_id_of, (A, B))) == stage.visible()


@pytest.mark.promise("P6")
@pytest.mark.fault("coordinator: op had a leader whose clock was ahead while scheduled messages are due")
def test_the_append_time_of_a_leader_that_was_ahead_does_not_say_that_op_is_read() -> None:
    """By it op was read up to a time that its next leader has not reached yet."""
    stage = StillCoordinator(make=SlowCoordinator)
    first, second, other = red(stage, A, after_ms=19_500), red(stage, B, after_ms=20_000), stage.half(C)
    stage.commit(B, second)
    stage.op(op_line("C", C, other), ahead_s=30)
    coordinator: Any = stage.coordinator
    written = list[int]()

    def should_stop() -> bool:
        if stage.world.passed_s >= 19 and not written:
            written.append(1)
            stage.commit(A, first)
        coordinator.is_slow = 19 <= stage.world.passed_s < 25
        return stage.world.passed_s >= 40

    stage.run(should_stop, seconds=15)
    assert list(map(txn_id_of, (C, A, B))) == stage.visible()


@pytest.mark.promise("P6", "P11")
def test_one_whose_half_record_waits_for_memory_is_overtaken_by_none_that_is_due_later(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("txlayer.coordinator.loop.READ_COUNT_MAX", 5)
    stage = StillCoordinator(unsettled_bytes_max=40 * UNSETTLED_BYTES)
    later_ms = stage.world.now_ms() + 100_000
    stage.commit(B, red(stage, B, after_ms=60_000))
    for number in range(86):  # scheduled ones of no key fill the memory
        key = txn_key(f"t{number}")
        stage.commit(key, stage.half(key, options=HalfOptions(deliver_at_ms=later_ms)))
    stage.commit(A, red(stage, A, after_ms=50_000))
    stage.work(seconds=200)

    visible = stage.visible()
    assert 88 == len(visible)
    assert visible.index(txn_id_of(A)) < visible.index(txn_id_of(B))


def ask_count(stage: StillCoordinator, *, seconds: float) -> int:
    """How often the coordinator asks for ends in so long, once it has taken over."""
    asked, until_s = list[int](), stage.world.passed_s + seconds + 1

    def should_stop() -> bool:
        if not asked and stage.world.passed_s > until_s - seconds:
            asked.append(stage.world.requests.count("ListOffsets"))
        return stage.world.passed_s >= until_s

    stage.coordinator.run(should_stop=should_stop)
    stage.start()
    return stage.world.requests.count("ListOffsets") - asked[0]


@pytest.mark.promise("P11")
def test_nothing_is_asked_while_nothing_is_due_and_a_few_times_a_second_while_something_is() -> None:
    stage = StillCoordinator()
    stage.commit(A, stage.half(A))
    assert 0 == ask_count(stage, seconds=5)

    stage.commit(B, red(stage, B, after_ms=60_000))
    assert 0 == ask_count(stage, seconds=5)

    stage.world.advance(ms=40_000)
    assert 1 <= ask_count(stage, seconds=30) <= 3
    assert list(map(txn_id_of, (A, B))) == stage.visible()

    for number in range(50):
        key = txn_key(f"t{number}")
        stage.commit(key, red(stage, key, after_ms=5_000 + 100 * number))
    assert 1 <= ask_count(stage, seconds=12) <= 60
    assert 52 == len(stage.visible())


@pytest.mark.promise("P6")
def test_the_others_of_a_coordinator_are_released_although_a_partition_of_op_has_no_leader() -> None:
    stage = StillCoordinator(kafka_transaction_timeout=timedelta(seconds=2))
    other = "b/0000000a"
    due = HalfOptions(deliver_at_ms=stage.world.now_ms() + 5_000)
    for key, partition in ((A, 0), (other, 1)):
        stage.commit(key, stage.half(key, partition=partition, options=due), partition=partition)
    begin_s = stage.world.passed_s

    def should_stop() -> bool:
        passed_s = stage.world.passed_s - begin_s
        if passed_s >= 3:
            stage.kafka.lead(stage.topics.op, is_led=False, only=1)
        return passed_s >= 60

    stage.coordinator.run(should_stop=should_stop)

    assert [txn_id_of(A)] == stage.visible()


class Later:
    """A background whose calls end when a test says so, and connections whose broker answers what a test says."""

    def __init__(self) -> None:
        self.calls: deque[Callable[[], Any]] = deque()
        self.answer: int | Exception = 7
        self.unavailable = frozenset[int]()

    def start(self, call: Callable[[], Any], *, name: str) -> Any:
        del name
        self.calls.append(call)

    def end_offsets_in_background(
        self, partitions: Collection[tuple[str, int]], *, is_committed: bool
    ) -> dict[tuple[str, int], int]:
        assert not is_committed
        if isinstance(self.answer, Exception):
            raise self.answer
        return dict.fromkeys(partitions, self.answer)

    def topic_limits_in_background(self, _topic: str) -> TopicLimits:
        return TopicLimits(1, None, unavailable=self.unavailable)


def asker() -> tuple[OpEnds, Later, Shard, StillWorld]:
    """One partition, and who asks about it."""
    stage, later = StillCoordinator(), Later()
    environment = Environment(clock=stage.world.monotonic, background=later)  # type: ignore[arg-type]  # a part of one
    ends = OpEnds(later, stage.topics, environment=environment, patience_s=10)  # type: ignore[arg-type]  # the same
    ledger = Ledger(0, settings=SETTINGS, targets={})
    return ends, later, Shard(ledger, Positions(0, 0, 0, 0, 0, 0, 0), 0, 0, LogTime(stage.world.monotonic)), stage.world


def test_an_answer_that_comes_after_the_partitions_were_given_up_counts_for_nothing() -> None:
    ends, later, shard, _ = asker()
    ends.ask([shard], wall_ms=1)
    assert ends.is_awaited
    ends.forget()
    later.calls.popleft()()
    ends.take()
    assert shard.asked_end is None


def fail_once(ends: OpEnds, later: Later, shard: Shard, world: StillWorld) -> None:
    """A question that fails after a second."""
    ends.ask([shard], wall_ms=1)
    world.advance(ms=1_000)
    later.calls.pop()()
    ends.take()


def test_a_question_that_hangs_is_asked_again() -> None:
    ends, later, shard, world = asker()
    ends.ask([shard], wall_ms=1)
    world.advance(ms=10_000)
    ends.ask([shard], wall_ms=1)
    assert 1 == len(later.calls)
    assert not ends.is_awaited

    world.advance(ms=round(GIVE_UP_S * 1000))
    ends.ask([shard], wall_ms=2)
    later.calls.pop()()
    ends.take()
    assert shard.asked_end is not None
    assert (7, 2) == (shard.asked_end.offset, shard.asked_end.wall_ms)


@pytest.mark.parametrize("unavailable", [frozenset[int](), frozenset({1})])
def test_a_slow_broker_is_asked_again_and_again_and_nothing_starts_over(unavailable: frozenset[int]) -> None:
    ends, later, shard, world = asker()
    later.answer, later.unavailable = BrokerUnavailableError("no answer"), unavailable
    for _ in range(30):
        fail_once(ends, later, shard, world)
    later.answer = 7
    ends.ask([shard], wall_ms=1)
    later.calls.pop()()
    ends.take()
    assert shard.asked_end is not None


def test_after_an_error_of_a_kind_that_nobody_knows_it_is_logged_once_and_asked_again_soon(
    caplog: pytest.LogCaptureFixture,
) -> None:
    ends, later, shard, world = asker()
    later.answer = ValueError("as planned")
    for _ in range(3):
        fail_once(ends, later, shard, world)
    assert ["ValueError"] == [type(r.exc_info[1]).__name__ for r in caplog.records if r.exc_info]
    later.answer = 7
    ends.ask([shard], wall_ms=1)
    later.calls.pop()()
    ends.take()
    assert shard.asked_end is not None


def test_a_partition_of_op_that_is_not_available_for_long_is_an_error() -> None:
    ends, later, shard, world = asker()
    later.answer, later.unavailable = BrokerUnavailableError("no leader"), frozenset({0})
    for _ in range(9):
        fail_once(ends, later, shard, world)
    with pytest.raises(RetriableError, match="end of op"):
        fail_once(ends, later, shard, world)


def test_an_end_that_is_not_reached_is_asked_for_again() -> None:
    ends, later, shard, world = asker()
    for _ in range(2):
        ends.ask([shard], wall_ms=1)
        later.calls.popleft()()
        ends.take()
        world.advance(ms=500)
        ends.ask([shard], wall_ms=1)
        assert not later.calls
        world.advance(ms=500)
