"""Consumers when the group shares anew, when handlers are slow, and at their end; over memory and over real Kafka."""

import asyncio
import random
import threading
from collections import Counter
from collections.abc import Callable, Collection
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from functools import partial
from typing import Any, cast

import pytest

from tests.contract.clients import open_writer, store
from tests.contract.conftest import IN_MEMORY, OF_HANDLERS
from tests.support.broker import unique_name
from tests.support.consumers import PATIENCE_S, Gate, MakeStage, Stage, numbers
from tests.support.lab import Lab
from tests.support.lab_memory import MemoryLab
from tests.support.waiting import pause, wait_until
from txlayer import AfterExhausted, OrderedConsumer, RetryPolicy
from txlayer.adapters.connect import ConsumerConnections
from txlayer.adapters.memory import readers
from txlayer.adapters.ports import StoredOffset, TopicPartition
from txlayer.config import ConsumerConfig
from txlayer.consumer.aio import AsyncOrderedConsumer
from txlayer.consumer.context import Context, ReceivedMessage
from txlayer.consumer.dead_letters import DeadLetterReader, ResultSearch
from txlayer.consumer.lease_keeper import LeaseChanges, LeaseKeeper, NoLeases
from txlayer.core.dead_letters import (
    DeadLetter,
    DeadLetterReason,
    ReplayKind,
    ReplayOutcome,
    ReplayRecord,
    dead_letter_of,
    decode_replay,
    encode_replay,
)
from txlayer.core.key_queue import PartitionQueue
from txlayer.core.progress import Progress, StoredProgress, decode
from txlayer.core.retry import Later, Reject, Retry
from txlayer.errors import BrokerUnavailableError, FencedError, MemberFencedError
from txlayer.operate.dead_letters import DeadLetterLog, QueueStatus
from txlayer.operate.queues import LockAdmin
from txlayer.operate.replay import Request, WrittenRequest, wait_until_taken
from txlayer.operate.topics import plan_reset

Commit = Callable[..., None]
"""A writer's `commit`."""


def connect_with(stage: Stage, commits: Callable[..., None]) -> Callable[[ConsumerConfig], ConsumerConnections]:
    """Connections whose writers call `commits(commit, timeout_s=…)` where they would call `commit`."""

    def connect(config: ConsumerConfig) -> ConsumerConnections:
        made = stage.lab.connect_consumer(config)
        make = made.make_writer

        def make_writer(transactional_id: str, **settings: Any) -> Any:
            writer = make(transactional_id, **settings)
            writer.commit = partial(commits, writer.commit)  # type: ignore[method-assign]  # this one alone
            return writer

        made.make_writer = make_writer  # type: ignore[method-assign]  # likewise
        return made

    return connect


# --- rebalances and ends ----------------------------------------------------------------------------------------------


@pytest.mark.fault("consumer: is slow, and the group rebalances")
def test_when_the_group_shares_anew_what_runs_ends_and_is_not_repeated(make_stage: MakeStage) -> None:
    stage = make_stage(partitions=2)
    for n in range(20):
        for partition in range(2):
            stage.write(b"%d" % n, key=b"k%d" % partition, partition=partition)
    gate = Gate()

    with stage.consumer(gate, worker_count=4):
        gate.wait_for_one()
        with stage.consumer(gate, worker_count=4):
            gate.is_open.set()
            stage.wait_stored(20)
            stage.wait_stored(20, partition=1)

    for partition in range(2):
        assert numbers(20) == stage.journal.values(b"k%d" % partition)


@pytest.mark.fault("consumer: is slow, and the group rebalances")
@pytest.mark.slow
@IN_MEMORY
def test_handlers_have_all_of_revoke_timeout_also_if_it_is_longer_than_a_member_may_be_away(
    make_stage: MakeStage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(readers, "POLL_INTERVAL_MAX_MS", 2_000)
    stage, gate = make_stage(partitions=2), Gate()
    left_s: list[float] = []

    def slow(message: ReceivedMessage, context: Context) -> None:
        gate(message, context)
        left_s.append(context.remaining_s)

    for partition in range(2):
        stage.write(b"slow", key=b"k%d" % partition, partition=partition)
    times: dict[str, Any] = {"revoke_timeout": timedelta(seconds=PATIENCE_S), "session_timeout": timedelta(seconds=3)}
    times |= {"lease_expiry": timedelta(seconds=6), "lease_renewal": timedelta(seconds=1.5)}

    with stage.consumer(slow, **times) as consumer:
        for _ in range(2):
            gate.wait_for_one()
        with stage.consumer(slow, **times):
            pause(8)  # all of them wait for the handlers, longer than a lease and than a member may be away
            gate.is_open.set()
            for partition in range(2):
                stage.wait_stored(1, partition=partition)
            assert 0 == consumer.stats().rebuild_count  # when the other one leaves, a take-over may begin anew

    for partition in range(2):
        assert [b"slow"] == stage.journal.values(b"k%d" % partition)
    assert 0 < min(left_s)  # their leases were renewed


@pytest.mark.fault("consumer: is slow, and the group rebalances")
def test_a_lease_that_ends_while_handlers_end_at_a_rebalance_costs_its_queue_alone(make_stage: MakeStage) -> None:
    stage, gate = make_stage(partitions=2), Gate()
    for partition in range(2):
        stage.write(b"slow", key=b"k%d" % partition, partition=partition)
    times: dict[str, Any] = {"revoke_timeout": timedelta(seconds=PATIENCE_S), "worker_count": 4}

    with stage.consumer(gate, **times) as first:
        for _ in range(2):
            gate.wait_for_one()
        with stage.consumer(gate, **times) as second:
            begun = first._engine._dispatcher._begun
            wait_until(lambda: all(chunk.is_cut for chunk in begun), within=PATIENCE_S, what="nothing begins any more")
            locks = LockAdmin(stage.lab.consumer(namespace=stage.namespace))
            (lease,) = [s.lease for s in locks.read() if s.lease.queue.endswith("/0")]
            locks.release(lease, reason="zoe: ticket 12")
            locks.close()
            wait_until(lambda: first.stats().lost_lease_count == 1, within=PATIENCE_S, what="it is lost")
            gate.is_open.set()
            for partition in range(2):
                stage.write(b"next", key=b"k%d" % partition, partition=partition)
                stage.wait_stored(2, partition=partition)
            assert [True, True] == [each.is_running for each in (first, second)]

    assert [b"slow", b"slow", b"next"] == stage.journal.values(b"k0")
    assert [b"slow", b"next"] == stage.journal.values(b"k1")


@pytest.mark.fault("consumer: is slow, and the group rebalances")
@pytest.mark.slow
def test_a_slow_handler_never_costs_the_membership(stage: Stage) -> None:
    stage.write(b"slow", b"next")
    gate = Gate()
    consumer = stage.consumer(gate, session_timeout=timedelta(seconds=2))

    with consumer:
        gate.wait_for_one()
        wait_until_turned(consumer, seconds=3)
        gate.is_open.set()
        stage.wait_stored(2)
        assert 0 == consumer.stats().rebuild_count

    assert [b"slow", b"next"] == stage.journal.values(b"k")


def test_the_end_waits_for_handlers_and_stores_what_ended(stage: Stage) -> None:
    stage.write(*numbers(3))
    gate = Gate()
    consumer = stage.consumer(gate)
    consumer.start()
    gate.wait_for_one()

    consumer.stop()
    gate.is_open.set()
    consumer.close()

    assert [b"0"] == stage.journal.values(b"k")
    assert 1 == stage.stored()


def rejects_bad(message: ReceivedMessage, _context: Context) -> Reject | None:
    return Reject("as planned") if message.value == b"bad" else None


def reject_before_a_store(stage: Stage) -> None:
    """A consumer with a `store_interval` of an hour has rejected a message."""
    stage.write(b"good")
    stage.wait_stored(1)
    stage.write(b"bad")
    stage.journal.wait_for(2)


def check_that_a_successor_handles_only_what_is_new(stage: Stage) -> None:
    """What was rejected before is one dead letter, and no handler is called for it again."""
    with stage.consumer(rejects_bad):
        stage.write(b"last")
        stage.wait_stored(3)

    assert [b"good", b"bad", b"last"] == stage.journal.values(b"k")
    assert [b"bad"] == stage.letter_values()


@pytest.mark.promise("P9")
def test_what_was_rejected_before_the_end_is_a_dead_letter_and_is_not_handled_again(stage: Stage) -> None:
    with stage.consumer(rejects_bad, store_interval=timedelta(hours=1)):
        reject_before_a_store(stage)

    check_that_a_successor_handles_only_what_is_new(stage)


@pytest.mark.promise("P9")
def test_what_was_rejected_before_the_group_shares_anew_is_a_dead_letter_and_is_not_handled_again(
    make_stage: MakeStage,
) -> None:
    stage = make_stage(partitions=2)
    with stage.consumer(rejects_bad, store_interval=timedelta(hours=1)) as first:
        reject_before_a_store(stage)
        with stage.consumer(rejects_bad, store_interval=timedelta(hours=1)) as second:
            wait_until(
                lambda: [1, 1] == [len(consumer.stats().partitions) for consumer in (first, second)],
                within=PATIENCE_S,
                what="one partition each",
            )
            stage.write(b"last")
            stage.journal.wait_for(3)

    assert [b"good", b"bad", b"last"] == stage.journal.values(b"k")
    assert [b"bad"] == stage.letter_values()


@pytest.mark.promise("P9")
@OF_HANDLERS
def test_a_dead_letter_that_may_be_written_at_the_end_is_not_written_again(stage: Stage) -> None:
    """The answer to its commit is lost. What is stored then is not known, and nothing more may be stored over it."""

    def commit_unheard(commit: Commit, *, timeout_s: float) -> None:
        commit(timeout_s=timeout_s)
        raise FencedError("as planned")

    connect = connect_with(stage, commit_unheard)
    with stage.consumer(rejects_bad, store_interval=timedelta(hours=1), connect=connect):
        reject_before_a_store(stage)

    check_that_a_successor_handles_only_what_is_new(stage)


@pytest.mark.promise("P9")
def test_a_dead_letter_that_was_handled_again_just_before_the_end_is_answered(stage: Stage) -> None:
    stage.write(b"bad")
    with stage.consumer(rejects_bad):
        stage.wait_for_letters([b"bad"])
    gate = Gate()
    consumer = stage.consumer(gate)
    consumer.start()
    request_replay(stage, 0, key=b"k")
    gate.wait_for_one()

    consumer.stop()
    gate.is_open.set()
    consumer.close()

    wait_until(lambda: len(stage.lab.read(stage.requests)) == 2, within=PATIENCE_S, what="the answer")
    with stage.consumer():
        stage.write(b"last")
        stage.wait_stored(2)
    assert [b"bad", b"bad", b"last"] == stage.journal.values(b"k")


def test_the_last_store_comes_behind_the_answer_to_the_one_before(stage: Stage) -> None:
    """Else the client may send a refused one again behind it, and set back what is stored."""
    order: list[str] = []
    consumer = stage.consumer()
    with consumer:
        stage.write(b"first")
        stage.wait_stored(1)
        engine = consumer._engine
        assert engine is not None
        take, store = engine._reader.take_stored, engine._reader.store_offsets

        def take_at_the_end() -> bool:
            """Not answered while the consumer runs, nor at the first look behind that."""
            if not consumer._stopping.is_set():
                return False
            order.append("looked")
            return order.count("looked") > 2 and take()

        def store_offsets(*arguments: Any, **named: Any) -> None:
            order.append("stored")
            store(*arguments, **named)

        engine._reader.take_stored = take_at_the_end
        engine._reader.store_offsets = store_offsets
        stage.write(b"second")
        stage.wait_stored(2)  # the store that waits for its answer
    assert order == ["looked"] * 3


PARKS_ONE: dict[str, Any] = {"retry": RetryPolicy(after_exhausted=AfterExhausted.PARK), "parked_keys_max": 1}


def close(consumer: OrderedConsumer, _stage: Stage) -> None:
    consumer.close()


def rebuild(consumer: OrderedConsumer, _stage: Stage) -> None:
    """A store of offsets is not answered."""

    def fail() -> bool:
        reader.take_stored = take  # type: ignore[method-assign]  # once
        raise BrokerUnavailableError("as planned")

    assert consumer._engine is not None
    reader = consumer._engine._reader
    take, reader.take_stored = reader.take_stored, fail  # type: ignore[method-assign]  # this one alone
    consumer._engine._storer.is_under_way = True
    wait_until(lambda: consumer.stats().rebuild_count == 1, within=PATIENCE_S, what="a rebuild")


def lose_the_lease(consumer: OrderedConsumer, stage: Stage) -> None:
    locks = LockAdmin(stage.lab.consumer(namespace=stage.namespace))
    (lease,) = [s.lease for s in locks.read()]
    locks.release(lease, reason="zoe: ticket 12")
    locks.close()
    wait_until(lambda: consumer.stats().lost_lease_count == 1, within=PATIENCE_S, what="it is lost")


@pytest.mark.promise("P9")
@pytest.mark.parametrize("give_up", [close, rebuild, lose_the_lease])
@OF_HANDLERS
def test_what_was_rejected_and_waits_for_room_to_park_its_key_is_not_handled_again(
    stage: Stage, give_up: Callable[[OrderedConsumer, Stage], None]
) -> None:
    def is_without_room(consumer: Any) -> Callable[[], bool]:
        return lambda: any(queue.is_without_room for queue in queues_of(consumer))

    stage.write(b"bad", key=b"a")
    first = stage.consumer(rejects_bad, **PARKS_ONE)
    first.start()
    stage.wait_for_letters([b"bad"])
    stage.write(b"bad", key=b"b")
    wait_until(is_without_room(first), within=PATIENCE_S, what="there is no room to park `b`")
    give_up(first, stage)
    first.close()

    with stage.consumer(**PARKS_ONE) as second:
        wait_until(is_without_room(second), within=PATIENCE_S, what="it waits for room again")
        request_replay(stage, 0, key=b"a")
        stage.wait_for_letters([b"bad", b"bad"])

    assert [b"bad"] == stage.journal.values(b"b")
    letter = dead_letter_of(stage.lab.read(stage.letters)[1].headers)
    assert isinstance(letter, DeadLetter)
    assert (DeadLetterReason.REJECTED, 1, "Reject") == (letter.reason, letter.attempt_count, letter.error_type)


@pytest.mark.slow
@pytest.mark.promise("P9")
@OF_HANDLERS
def test_what_was_rejected_is_not_handled_again_if_the_outcome_of_its_dead_letter_is_not_known(stage: Stage) -> None:
    """Neither a message nor the replay of its dead letter: their Kafka transactions are aborted, and the consumer is not told."""
    failing = 1

    def fail_once(commit: Commit, *, timeout_s: float) -> None:
        nonlocal failing
        if not failing:
            return commit(timeout_s=timeout_s)
        failing -= 1
        raise FencedError("as planned")

    connect = connect_with(stage, fail_once)
    stage.write(b"bad")
    with stage.consumer(rejects_bad, connect=connect) as consumer:
        stage.wait_for_letters([b"bad"])
        failing = 1
        request_replay(stage, stage.lab.read(stage.letters)[0].offset, key=b"k")
        wait_until(lambda: len(stage.lab.read(stage.requests)) == 2, within=PATIENCE_S, what="the answer")
        assert 2 == consumer.stats().rebuild_count

    assert [b"bad", b"bad"] == stage.journal.values(b"k")
    answer = decode_replay(stage.lab.read(stage.requests)[1].value)
    assert isinstance(answer, ReplayRecord)
    assert ReplayOutcome.FAILED is answer.outcome


class UnclosableLeases(NoLeases):
    """Leases whose writer was fenced."""

    def close(self) -> None:
        raise MemberFencedError("fenced", group="g")


class UnclosableConsumer(OrderedConsumer):
    def _make_leases(self, connections: ConsumerConnections) -> LeaseKeeper:  # noqa: ARG002 - the consumer's
        return UnclosableLeases()


def test_what_cannot_be_closed_keeps_nothing_else_open(stage: Stage) -> None:
    stage.write(b"0")
    closed: list[str] = []
    before = set(threading.enumerate())

    def connect(config: ConsumerConfig) -> ConsumerConnections:
        made = stage.lab.connect_consumer(config)
        close = made.close

        def close_and_tell() -> None:
            closed.append("connections")
            close()

        made.close = close_and_tell  # type: ignore[method-assign]  # to see it
        return made

    consumer = stage.consumer(kind=UnclosableConsumer, connect=connect)
    consumer.start()
    stage.wait_stored(1)
    with pytest.raises(MemberFencedError):
        consumer.close()

    assert ["connections"] == closed
    left = set(threading.enumerate()) - before
    assert not [thread for thread in left if thread.name.startswith("txlayer-handler")]


class FencedLeases(NoLeases):
    """Leases whose writer can no longer write from the first release on."""

    _is_fenced = False

    def revoked(self, queues: Collection[TopicPartition]) -> None:
        super().revoked(queues)
        self._is_fenced = True
        self._raise_if_fenced()

    def turn(self) -> LeaseChanges:
        self._raise_if_fenced()
        return super().turn()

    def _raise_if_fenced(self) -> None:
        if self._is_fenced:
            raise FencedError("the lock writer writes nothing any more")


class OnceFencedConsumer(OrderedConsumer):
    """Its first lock writer is fenced when it releases leases."""

    _made_count = 0

    def _make_leases(self, connections: ConsumerConnections) -> LeaseKeeper:  # noqa: ARG002 - the consumer's
        self._made_count += 1
        return FencedLeases() if self._made_count == 1 else NoLeases()


@pytest.mark.fault("consumer: its lock writer is fenced when the group rebalances")
@pytest.mark.promise("P10")
def test_a_lock_writer_that_is_fenced_at_a_rebalance_costs_no_assignment(make_stage: MakeStage) -> None:
    """Otherwise it would go on with the partitions that it had, and none would handle those that it has got."""
    stage = make_stage(partitions=2)
    first = stage.consumer(kind=OnceFencedConsumer)
    with first:
        wait_until(lambda: len(first.stats().partitions) == 2, within=PATIENCE_S, what="both partitions")
        with stage.consumer() as second:
            wait_until(
                lambda: [1, 1] == [len(consumer.stats().partitions) for consumer in (first, second)],
                within=PATIENCE_S,
                what="one partition each",
            )
            for partition in range(2):
                stage.write(*numbers(10), key=b"k%d" % partition, partition=partition)
                stage.wait_stored(10, partition=partition)

    assert [numbers(10)] * 2 == [stage.journal.values(b"k%d" % partition) for partition in range(2)]


def test_what_does_not_end_in_time_is_not_stored(stage: Stage) -> None:
    stage.write(b"0")
    gate = Gate()
    consumer = stage.consumer(gate, close_timeout=timedelta(milliseconds=200))
    consumer.start()
    gate.wait_for_one()

    consumer.close()
    gate.is_open.set()

    assert 0 == stage.stored()


def test_partitions_are_paused_at_their_share_of_the_limit_and_read_again(stage: Stage) -> None:
    stage.write(*numbers(200))
    gate = Gate()
    consumer = stage.consumer(gate, record_count_max=20)

    with consumer:
        gate.wait_for_one()
        wait_until(
            lambda: consumer.stats().topics[stage.topic].paused_partitions == 1,
            within=PATIENCE_S,
            what="the partition is paused",
        )
        gate.is_open.set()
        stage.wait_stored(200)

    assert numbers(200) == stage.journal.values(b"k")


@pytest.mark.fault("consumer: more dead letters are replayed at once than fit into memory")
@pytest.mark.promise("P11")
@OF_HANDLERS
def test_a_replay_of_many_large_dead_letters_stays_within_its_share_of_the_limit(stage: Stage) -> None:
    count, size, limit = 400, 50_000, 1_000_000
    for n in range(count):
        stage.write(b"%d" % n + b"x" * size, key=b"k%d" % n)
    with stage.consumer(lambda *_: Reject("as planned"), record_bytes_max=limit):
        stage.wait_stored(count)
    # As `dlq replay --all` without `--rate`, and one that is not there.
    letters = {letter.offset: letter.key for letter in stage.lab.read(stage.letters)}
    for offset, key in {**letters, 1_000_000: b"k"}.items():
        request_replay(stage, offset, key=key)

    sizes: list[int] = []

    def look(_message: ReceivedMessage, _context: Context) -> None:
        sizes.extend(queue.size_bytes for queue in queues_of(consumer))

    def answers() -> list[str]:
        said = [decode_replay(record.value or b"") for record in stage.lab.read(stage.requests)]
        return [s.outcome.value for s in said if isinstance(s, ReplayRecord) and s.outcome]

    consumer = stage.consumer(look, record_bytes_max=limit)
    with consumer:
        wait_until(lambda: len(answers()) == count + 1, within=60, what="all answers")

    assert ["handled"] * count + ["missing"] == sorted(answers())
    assert limit / 2 < max(sizes) <= limit + size + 100
    replayed = [seen.value for seen in stage.journal.seen[count:]]
    assert [b"%d" % n for n in range(count)] == sorted(
        (value.rstrip(b"x") for value in replayed if value is not None), key=int
    )


@pytest.mark.fault("consumer: more dead letters are replayed at once than fit into memory")
@pytest.mark.promise("P11")
@pytest.mark.parametrize("behind", [(), (ReplayKind.RESUME, ReplayKind.PAUSE)])
@OF_HANDLERS
def test_a_replay_of_many_dead_letters_during_a_pause_stays_within_the_limit(
    behind: Collection[ReplayKind], stage: Stage
) -> None:
    """However many requests wait for room, the newest pause or resume behind them counts."""
    count, limit, size = 20, 5_000, 1_000
    for n in range(count):
        stage.write((b"%d" % n).ljust(size, b"x"), key=b"%d" % n)
    with stage.consumer(lambda *_: Reject("as planned")) as consumer:
        stage.wait_stored(count)
        ask_queue(stage, ReplayKind.PAUSE)
        wait_until_paused(consumer, stage)
    for letter in stage.lab.read(stage.letters):
        request_replay(stage, letter.offset, key=letter.key)
    for kind in behind:
        ask_queue(stage, kind)
    with stage.consumer(record_bytes_max=limit) as consumer:
        wait_until(
            lambda: any(queue.replay_bytes for queue in queues_of(consumer)), within=PATIENCE_S, what="a dead letter"
        )
        wait_until_turned(consumer, seconds=0.5)
        (queue,) = queues_of(consumer)
        assert limit <= queue.replay_bytes < limit + 2 * size
        assert count == len(stage.journal.seen)

        ask_queue(stage, ReplayKind.RESUME)
        stage.journal.wait_for(2 * count)


@pytest.mark.fault("consumer: more dead letters are replayed at once than fit into memory")
@pytest.mark.promise("P9")
@OF_HANDLERS
def test_a_request_that_makes_room_for_parked_keys_is_read_behind_one_that_waits_for_it(stage: Stage) -> None:
    stage.write(b"a", key=b"a")
    parks_one: dict[str, Any] = {
        "retry": RetryPolicy(after_exhausted=AfterExhausted.PARK),
        "parked_keys_max": 1,
        "record_count_max": 1,
    }
    with stage.consumer(lambda *_: Reject("as planned"), **parks_one):
        stage.wait_stored(1)
    stage.write(b"b", key=b"b")

    def handle(message: ReceivedMessage, _context: Context) -> Reject | None:
        return Reject("as planned") if message.key == b"b" else None

    consumer = stage.consumer(handle, **parks_one)
    with consumer:
        wait_until(
            lambda: any(queue.is_full for queue in queues_of(consumer)),
            within=PATIENCE_S,
            what="there is no room to park `b`",
        )
        request_replay(stage, 1_000_000, key=b"b")  # retention took it
        wait_until(
            lambda: any(queue.replay_count for queue in queues_of(consumer)),
            within=PATIENCE_S,
            what="the request waits behind `b`",
        )
        request_replay(stage, 0, key=b"a")
        stage.wait_stored(2)

    assert [b"a", b"b"] == [letter.key for letter in stage.lab.read(stage.letters)]


@pytest.mark.promise("P9")
@OF_HANDLERS
def test_answered_requests_are_not_handled_again_when_an_owner_ends_before_it_could_look_for_answers(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    is_mended = False
    looks: list[int] = []
    stage.write(b"a", key=b"a")
    stage.write(b"b", key=b"b")

    def handle(_message: ReceivedMessage, _context: Context) -> Reject | None:
        return None if is_mended else Reject("as planned")

    def find_nothing_out(_reader: object, _topic: str, _partition: int, search: ResultSearch) -> Any:
        looks.append(search.next_offset)
        raise BrokerUnavailableError("as planned")

    with stage.consumer(handle):
        stage.wait_for_letters([b"a", b"b"])
        is_mended = True
        request_replay(stage, 0, key=b"a")
        wait_until(lambda: len(stage.lab.read(stage.requests)) == 2, within=PATIENCE_S, what="an answer")
    lost = {(stage.topic, 0): StoredOffset(2, ""), (stage.requests, 0): StoredOffset(0, "")}
    stage.lab.admin().store_offsets(stage.group, lost)
    with monkeypatch.context() as patch:
        patch.setattr(DeadLetterReader, "look_for_results", find_nothing_out)
        with stage.consumer(handle):
            wait_until(lambda: looks, within=PATIENCE_S, what="an owner that looks for answers")
    request_replay(stage, 1, key=b"b")
    with stage.consumer(handle):
        wait_until(lambda: stage.journal.values(b"b") == [b"b"] * 2, within=PATIENCE_S, what="the other dead letter")
        wait_until(lambda: len(stage.lab.read(stage.requests)) >= 4, within=PATIENCE_S, what="its answer")

    assert [b"a"] * 2 == stage.journal.values(b"a")


@pytest.mark.promise("P9")
@pytest.mark.fault("consumer: so many keys fail that what ended behind them has no room in the metadata")
@OF_HANDLERS
def test_the_next_owner_handles_no_replay_again_whose_end_had_no_room(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor does it answer another request again."""
    monkeypatch.setattr("txlayer.core.progress._bitmap", lambda *_: ("", 0))  # so that few ends fill the metadata
    count, draw = 700, random.Random(1)
    postponed, is_replayed, is_mended = {n for n in range(count) if draw.random() < 0.5}, False, False
    for n in range(count):
        stage.write(b"%d" % n, key=b"%d" % n)

    def handle(message: ReceivedMessage, _context: Context) -> Reject | Later | None:
        if not is_replayed:
            return Reject("as planned")
        return Later(timedelta(hours=1)) if int(message.value or 0) in postponed and not is_mended else None

    def results() -> Counter[int | None]:
        """How many results each dead letter has; None: pauses and resumes."""
        found = (decode_replay(record.value) for record in stage.lab.read(stage.requests))
        return Counter(
            each.dead_letter_offset for each in found if isinstance(each, ReplayRecord) and each.outcome is not None
        )

    settings: dict[str, Any] = {"metadata_bytes_max": 400, "parked_keys_max": 1}
    with stage.consumer(handle, **settings):
        stage.wait_stored(count)
        is_replayed = True
        letters = stage.lab.read(stage.letters)
        for letter in letters:
            request_replay(stage, letter.offset, key=letter.key)
        ask_queue(stage, ReplayKind.PAUSE)
        ask_queue(stage, ReplayKind.RESUME)
        ended = {letter.offset for letter in letters if int(letter.key or b"") not in postponed}
        expected = Counter([*ended, None, None])
        wait_until(lambda: results() == expected, within=PATIENCE_S, what="results of those that are not postponed")
    stored = stage.lab.admin().stored_offsets(stage.group, [(stage.requests, 0)])[stage.requests, 0]
    assert stored is not None
    assert stored.metadata == ""

    is_mended = True
    with stage.consumer(handle, **settings):
        wait_until(lambda: results().total() >= count + 2, within=PATIENCE_S, what="the other results")
    assert Counter([*(letter.offset for letter in letters), None, None]) == results()
    assert all(stage.journal.values(b"%d" % n) == [b"%d" % n] * 2 for n in range(count) if n not in postponed)


def test_a_pause_is_taken_although_a_request_before_it_waits(stage: Stage) -> None:
    """`txlayer consumer pause` waits for that; a replay that fails is a reason to pause."""
    is_replayed = False

    def handle(_message: ReceivedMessage, _context: Context) -> Reject | Retry:
        return Retry(timedelta(hours=1)) if is_replayed else Reject("as planned")

    log = DeadLetterLog(
        stage.lab.admin(),
        group=stage.group,
        topic=stage.topic,
        make_reader=lambda: stage.lab.consumer().make_reader("read_committed"),
    )
    stage.write(b"a")
    with stage.consumer(handle):
        stage.wait_for_letters([b"a"])
        is_replayed = True
        request_replay(stage, 0, key=b"k")
        stage.journal.wait_for(2)
        pause = ReplayRecord(ReplayKind.PAUSE, "ticket-2", None)
        stage.lab.write(stage.requests, encode_replay(pause))
        written = [WrittenRequest(Request(stage.topic, 0, None, pause), 1)]

        assert {0} == wait_until_taken(log, written, patience_s=PATIENCE_S)
        assert log.queues()[0].is_paused
        assert not log.queues()[0].has_taken(9)


@pytest.mark.parametrize(
    ("metadata", "is_paused", "taken"), [("", True, {0}), ("", False, set()), ("1|||||", True, set())]
)
def test_a_pause_in_force_is_taken_where_the_stored_progress_has_no_room_for_what_ended(
    metadata: str, *, is_paused: bool, taken: set[int]
) -> None:
    queue = QueueStatus(is_paused, frozenset(), StoredOffset(3, metadata), {})
    written = [WrittenRequest(Request("orders", 0, None, ReplayRecord(ReplayKind.PAUSE, "ticket-2", None)), 9)]

    class Log:
        def queues(self) -> dict[int, QueueStatus]:
            return {0: queue}

    assert taken == wait_until_taken(cast("Any", Log()), written, patience_s=0)


@OF_HANDLERS
def test_a_resume_is_taken_although_requests_before_it_have_no_room(stage: Stage) -> None:
    is_mended, gate, large = False, Gate(), b"a" * 100_000

    def handle(message: ReceivedMessage, context: Context) -> Reject | None:
        if not is_mended:
            return Reject("as planned")
        gate(message, context)
        return None

    log = DeadLetterLog(
        stage.lab.admin(),
        group=stage.group,
        topic=stage.topic,
        make_reader=lambda: stage.lab.consumer().make_reader("read_committed"),
    )
    for n in range(3):
        stage.write(large, key=b"%d" % n)
    with stage.consumer(handle, record_bytes_max=len(large), worker_count=1) as consumer:
        stage.wait_for_letters([large] * 3)
        is_mended = True
        ask_queue(stage, ReplayKind.PAUSE)
        wait_until_paused(consumer, stage)
        for letter in stage.lab.read(stage.letters):
            request_replay(stage, letter.offset, key=letter.key)
        resume = ReplayRecord(ReplayKind.RESUME, "ticket-3", None)
        (at,) = stage.lab.write(stage.requests, encode_replay(resume))
        gate.wait_for_one()
        written = [WrittenRequest(Request(stage.topic, 0, None, resume), at)]
        stage.write(b"b", key=b"b")
        assert {0} == wait_until_taken(log, written, patience_s=PATIENCE_S, paused={0})
        assert not log.queues()[0].has_taken(at)
        gate.is_open.set()
        assert {0} == wait_until_taken(log, written, patience_s=PATIENCE_S)


def request_replay(stage: Stage, letter: int, *, key: bytes | None) -> None:
    """Ask for a dead letter to be handled again."""
    request = encode_replay(ReplayRecord(ReplayKind.REPLAY, "ticket-1", letter))
    stage.lab.write(stage.requests, request, key=key)


def ask_queue(stage: Stage, kind: ReplayKind) -> None:
    """Ask for a pause of the stage's one partition, or for its end."""
    stage.lab.write(stage.requests, encode_replay(ReplayRecord(kind, "ticket-2", None)), key=None)


def wait_until_turned(consumer: Any, *, seconds: float) -> None:
    """Until its loop, which polls for the group, went on for so long."""

    def turned_at() -> float:
        return consumer.stats().turned_at or 0.0

    since = wait_until(turned_at, within=PATIENCE_S, what="a turn of the loop")
    wait_until(lambda: turned_at() >= since + seconds, within=PATIENCE_S, what=f"turns for {seconds} s")


def wait_until_paused(consumer: Any, stage: Stage) -> None:
    """Until an operator's pause is in force for the stage's one partition."""
    wait_until(
        lambda: stage.topic in consumer.stats().topics and consumer.stats().topics[stage.topic].paused_partitions == 1,
        within=PATIENCE_S,
        what="a pause",
    )


def queues_of(consumer: Any) -> list[PartitionQueue[Any]]:
    """Of the partitions that it has just now."""
    return [owned.queue for owned in list(consumer._engine._assignments.owned.values())]


@pytest.mark.parametrize("token_above", [None, 4711])
def test_a_reset_of_the_offsets_ends_no_operators_pause(stage: Stage, token_above: int | None) -> None:
    pause = ReplayRecord(ReplayKind.PAUSE, "r", None, text="zoe: ticket 12")
    stage.lab.write(stage.requests, encode_replay(pause), key=None, partition=0)
    with stage.consumer() as consumer:
        wait_until_paused(consumer, stage)
    stage.write(b"0")
    admin = stage.lab.admin()
    plan = plan_reset(admin, stage.group, [stage.topic], to="earliest", token_above=token_above)
    admin.store_offsets(stage.group, plan.after)

    with stage.consumer() as consumer:
        wait_until_paused(consumer, stage)
        wait_until_turned(consumer, seconds=0.2)  # it had the time to read on

    assert [] == stage.journal.seen


def test_a_pause_that_a_frozen_consumer_was_storing_stays_when_the_offsets_are_reset(lab: Lab) -> None:
    """Its Kafka transaction is committed behind the reset, whose offsets are newer: those with the pause do not count."""
    stage = Stage(lab)
    paused = Progress(5).snapshot(StoredProgress(is_paused=True)).metadata
    writer = open_writer(lab.coordinator(unique_name("ns")))
    writer.begin()
    store(writer, {(stage.topic, 0): 5}, lab.nobody(stage.group), metadata=paused)
    admin = lab.admin()

    with ThreadPoolExecutor() as pool:
        planning = pool.submit(plan_reset, admin, stage.group, [stage.topic], to="earliest")
        pause(1)  # for which it is frozen
        writer.commit(timeout_s=PATIENCE_S)
        plan = planning.result(PATIENCE_S)

    found = decode(*plan.after[stage.topic, 0])
    assert isinstance(found, StoredProgress)
    assert found.is_paused


@pytest.mark.slow
@pytest.mark.promise("P9")
def test_a_coroutine_within_its_time_is_not_cancelled_while_close_waits_for_it() -> None:
    """A thirtieth of the defaults: a lease of 2 s (60 s); the handler takes 4 s (2 min), `close_timeout` is 10 s (5 min)."""
    stage = Stage(MemoryLab())
    stage.write(b"1", key=b"a")
    told: list[str] = []

    async def main() -> None:
        has_begun = asyncio.Event()
        consumer: AsyncOrderedConsumer = stage.plain(
            AsyncOrderedConsumer,
            retry=RetryPolicy(attempt_count_max=4),
            lease_renewal=timedelta(seconds=0.65),
            lease_expiry=timedelta(seconds=2),
            close_timeout=timedelta(seconds=10),
        )

        @consumer.handler
        async def handle(_message: ReceivedMessage, context: Context) -> Any:
            told.append(f"attempt {context.attempt} began")
            has_begun.set()
            try:
                await asyncio.sleep(4)
            except asyncio.CancelledError as exc:
                told.append(f"cancelled: {exc}")
                raise
            told.append("ended")

        await consumer.start()
        await has_begun.wait()
        await consumer.close()

    asyncio.run(main())
    stored = stage.stored()
    stage.close()
    assert (["attempt 1 began", "ended"], 1) == (told, stored)


def test_close_waits_until_the_last_cancelled_coroutine_has_cleaned_up() -> None:
    """Within the half second that it grants: a coroutine that cleans up for 0.2 s, begun before one that ends at once."""
    stage = Stage(MemoryLab())
    stage.write(b"1", key=b"a")
    stage.write(b"1", key=b"b")
    told: list[str] = []

    async def main() -> None:
        has_begun = asyncio.Event()
        consumer: AsyncOrderedConsumer = stage.plain(AsyncOrderedConsumer, close_timeout=timedelta(seconds=0.1))

        @consumer.handler
        async def handle(message: ReceivedMessage, _context: Context) -> Any:
            told.append("began")
            if len(told) == 2:
                has_begun.set()
            try:
                await asyncio.sleep(60)
            finally:
                if message.key == b"a":
                    await asyncio.sleep(0.2)
                    told.append("cleaned up")

        await consumer.start()
        await has_begun.wait()
        await consumer.close()

    asyncio.run(main())
    stage.close()
    assert "cleaned up" in told
