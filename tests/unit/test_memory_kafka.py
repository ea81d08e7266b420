"""The cluster in memory as its user sees it: time, faults, brokers that go and come, and the world of threads."""

import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from tests.support.memory_stage import GROUP, Stage, commit, serve
from txlayer.adapters.memory import ClientCrashedError, Fault, NoAnswerError, ThreadWorld
from txlayer.adapters.ports import StoredOffset
from txlayer.errors import (
    BrokerUnavailableError,
    ForbiddenTopicError,
    NotAuthorisedError,
    OutcomeUnknownError,
    RefusedRecordError,
    TxLayerError,
    UsageError,
)

# --- time -------------------------------------------------------------------------------------------------------------


def test_retention_works_by_the_brokers_clock() -> None:
    stage = Stage()
    stage.kafka.create_topic("brief", settings={"retention.ms": "1000"})
    stage.kafka.append("brief", b"v")

    stage.world.advance(ms=20_000)

    assert [] == stage.kafka.records("brief")
    assert {("brief", 0): 1} == stage.connections().start_offsets([("brief", 0)])


@pytest.mark.fault("coordinator: a batch takes longer than the group's poll interval")
def test_a_member_whose_client_runs_keeps_its_share_without_reading_until_the_poll_interval() -> None:
    stage = Stage()
    member = stage.member()
    serve(member)

    stage.world.advance(ms=59_000)
    serve(member)
    assert not member.take_revocation()

    stage.world.advance(ms=120_000)
    with pytest.raises(TxLayerError, match="MAX_POLL_EXCEEDED"):
        serve(member)
    assert member.take_revocation()
    serve(member)
    assert member.take_assignment() is not None


# --- faults -----------------------------------------------------------------------------------------------------------


def test_a_join_whose_answer_is_lost_leaves_no_second_member() -> None:
    stage = Stage()
    stage.world.faults.plan(Fault.LOSE_ANSWER, "JoinGroup")
    member = stage.member()

    serve(member)
    stage.world.advance(ms=200)
    serve(member)

    share = member.take_assignment()
    assert share is not None
    assert 2 == len(share.partitions)
    assert 1 == len(stage.kafka.admin().group(GROUP).members)


@pytest.mark.fault("producer: its op is stored, but the answer is lost")
def test_a_repeated_produce_is_stored_once() -> None:
    stage = Stage()
    writer = stage.half_writer()
    stage.world.faults.plan(Fault.REPEAT, "Produce")
    stage.world.faults.plan(Fault.LOSE_ANSWER, "Produce")
    reports: list[Any] = []

    for value in (b"0", b"1"):
        writer.produce("orders", value, None, 0, lambda *report: reports.append(report))
        writer.poll(1)
        writer.poll(1)

    assert [None, None] == [error for error, _ in reports]
    assert [0, 1] == [record.offset() for _, record in reports]
    assert [b"0", b"1"] == stage.values()


def test_a_record_of_unknown_outcome_may_arrive_late_and_what_follows_is_written_once() -> None:
    stage = Stage()
    writer = stage.half_writer(prepare_timeout=timedelta(seconds=2))
    stage.world.faults.plan(Fault.KEEP, "Produce", times=1)
    stage.world.faults.plan(Fault.LOSE_REQUEST, "Produce", times=1000)
    reports: list[Any] = []
    writer.produce("orders", b"late", None, 0, lambda error, _: reports.append(error))
    while not reports:
        writer.poll(1)
    unknown = writer.error_of(reports[0], topic="txlayer.half", txn_id="id")
    assert isinstance(unknown, OutcomeUnknownError)

    stage.world.faults.forget()
    assert 1 == stage.world.faults.release()
    writer.produce("orders", b"next", None, 0, lambda error, _: reports.append(error))
    writer.poll(1)

    assert reports[1] is None
    assert [b"late", b"next"] == stage.values()


def test_a_fault_meets_the_client_that_it_is_planned_for() -> None:
    stage = Stage()
    stage.world.faults.refuse("Metadata", "CLUSTER_AUTHORIZATION_FAILED", client="c")

    assert 2 == stage.kafka.admin().partition_count("orders")
    with pytest.raises(NotAuthorisedError):
        stage.connections().topic_limits("orders")
    assert stage.connections().topic_limits("orders") is not None


@pytest.mark.fault("producer: its op is stored, but the answer is lost")
def test_a_record_that_was_to_be_sent_again_when_its_writer_was_closed_may_be_stored() -> None:
    stage = Stage()
    writer = stage.half_writer()
    stage.world.faults.plan(Fault.LOSE_ANSWER, "Produce")
    reports: list[Any] = []
    writer.produce("orders", b"v", None, 0, lambda error, _: reports.append(error))
    writer.poll(0)

    writer.close(0)

    [error] = reports
    assert ([b"v"], "_PURGE_QUEUE") == (stage.values(), error.name())
    assert isinstance(writer.error_of(error, topic="txlayer.half", txn_id="order-1"), OutcomeUnknownError)


def test_a_fatal_error_of_a_half_writer_is_told_and_nothing_is_written_any_more() -> None:
    stage = Stage()
    writer = stage.half_writer()
    stage.world.faults.refuse("Produce", "OUT_OF_ORDER_SEQUENCE_NUMBER")
    reports: list[Any] = []
    for _ in range(2):
        writer.produce("orders", b"v", None, 0, lambda error, _: reports.append(error))
        writer.poll(0)

    assert writer.failure() is not None
    assert ["OUT_OF_ORDER_SEQUENCE_NUMBER", "_PURGE_QUEUE"] == [e.name() for e in reports]
    assert [] == stage.values()


def test_a_full_queue_takes_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("txlayer.adapters.memory.writers.HALF_QUEUE_MAX", 2)
    writer = Stage().half_writer()
    for _ in range(2):
        writer.produce("orders", b"v", None, 0)

    with pytest.raises(BufferError):
        writer.produce("orders", b"v", None, 0)
    assert 2 == writer.poll(0)
    writer.produce("orders", b"v", None, 0)


# --- brokers and topics -----------------------------------------------------------------------------------------------


@pytest.mark.fault("broker: all brokers are down")
def test_brokers_that_are_down_answer_nobody_and_take_no_session_with_them() -> None:
    stage = Stage()
    member = stage.member()
    serve(member)
    stage.kafka.stop()

    with pytest.raises(BrokerUnavailableError) as raised:
        stage.connections().topic_limits("orders")
    assert 3_000 <= (raised.value.waited_ms or 0)
    stage.world.advance(ms=30_000)
    stage.kafka.start()
    serve(member)

    assert not member.take_revocation()
    assert stage.connections().topic_limits("orders") is not None


@pytest.mark.fault("rights: the coordinator may not write to a topic")
def test_a_denied_topic_is_denied_to_all() -> None:
    stage = Stage()
    stage.kafka.deny("orders")

    with pytest.raises(NotAuthorisedError):
        stage.connections().topic_limits("orders")
    with pytest.raises(ForbiddenTopicError):
        commit(stage.writer(), b"v")
    with pytest.raises(ForbiddenTopicError):
        stage.kafka.records("orders")

    stage.kafka.deny("orders", is_denied=False)
    commit(stage.writer("other"), b"v")
    assert [b"v"] == stage.values()


def test_a_topic_without_a_leader_is_not_reachable_and_loses_nothing() -> None:
    stage = Stage()
    writer = stage.half_writer()
    stage.kafka.lead("orders", is_led=False)
    limits = stage.connections().topic_limits("orders")
    assert limits is not None
    assert limits.unavailable

    reports: list[Any] = []
    writer.produce("orders", b"v", None, 0, lambda error, _: reports.append(error))
    writer.poll(0)
    stage.kafka.lead("orders", is_led=True)
    writer.poll(1)

    assert [None] == reports
    assert [b"v"] == stage.values()


def test_a_topic_is_created_once_and_what_is_not_there_is_said_so() -> None:
    kafka = Stage().kafka

    with pytest.raises(ForbiddenTopicError):
        kafka.create_topic("orders")
    with pytest.raises(UsageError):
        kafka.create_topic("bad", settings={"no.such.setting": "1"})
    with pytest.raises(ForbiddenTopicError):
        kafka.delete_topic("missing")
    with pytest.raises(ForbiddenTopicError):
        kafka.records("missing")
    with pytest.raises(ForbiddenTopicError):
        kafka.append("missing", b"v")
    with pytest.raises(RefusedRecordError):
        kafka.append("orders", b"x" * 2_000_000)


def test_a_namespace_is_ready_for_a_coordinator() -> None:
    kafka = Stage().kafka

    kafka.create_namespace("ns", partitions=2)

    names = {f"ns.{role}" for role in ("half", "op", "doubt", "check", "locks")}
    assert names == kafka.cluster.topics.keys() - {"orders", "source"}
    stored = kafka.stored_offsets("ns.coordinator")
    assert {(f"ns.{role}", p): StoredOffset(0, "") for role in ("half", "op") for p in (0, 1)} == stored


def test_the_same_dice_give_the_same_member_ids_and_partitions() -> None:
    def run() -> tuple[list[int], str]:
        stage = Stage()
        writer = stage.half_writer()
        for _ in range(20):
            writer.produce("orders", b"v", None, -1)
        writer.poll(0)
        member = stage.member()
        serve(member)
        share = member.take_assignment()
        assert share is not None
        return [r.partition() for r in stage.kafka.records("orders")], share.member.member_id

    assert run() == run()


PATIENCE_S = 10.0


@pytest.fixture
def world() -> ThreadWorld:
    return ThreadWorld(seed=1)


def ask(world: ThreadWorld, answer: Callable[[], int], *, client: str = "c") -> int:
    return world.exchange(client, "Fetch", answer)


def test_who_waits_is_woken_by_a_change_of_another_thread(world: ThreadWorld) -> None:
    changed: list[int] = []
    other = threading.Thread(target=lambda: world.change(lambda: changed.append(1)))

    other.start()

    assert world.wait(lambda: bool(changed), timeout_s=PATIENCE_S)
    other.join()


def test_a_wait_in_vain_ends_after_its_time(world: ThreadWorld) -> None:
    started = world.monotonic()

    assert not world.wait(lambda: False, timeout_s=0.05)

    assert 0.05 <= world.monotonic() - started


@pytest.mark.fault("clock: a coordinator's clock is wrong or jumps back")
def test_the_brokers_clock_can_be_moved_and_the_clients_cannot(world: ThreadWorld) -> None:
    before_ms, before_s = world.now_ms(), world.monotonic()

    world.advance(ms=3_600_000)

    assert before_ms + 3_600_000 <= world.now_ms()
    assert 3_600 > world.monotonic() - before_s


def test_no_two_requests_overlap(world: ThreadWorld) -> None:
    inside: list[int] = []
    deepest: list[int] = []

    def act() -> int:
        inside.append(1)
        deepest.append(len(inside))
        inside.pop()
        return 0

    threads = [threading.Thread(target=lambda: [ask(world, act) for _ in range(200)]) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_S)

    assert [1] * 800 == deepest


@pytest.mark.parametrize(
    ("fault", "done_count", "is_answered"),
    [
        (Fault.LOSE_REQUEST, 0, False),
        (Fault.LOSE_ANSWER, 1, False),
        (Fault.REPEAT, 2, True),
        (Fault.KEEP, 0, False),
        (Fault.ECHO, 1, False),
        (Fault.DELAY, 1, True),
    ],
)
def test_a_fault_does_what_it_says_as_often_as_it_says(
    world: ThreadWorld, fault: Fault, done_count: int, is_answered: bool
) -> None:
    done: list[int] = []

    def act() -> int:
        done.append(1)
        return len(done)

    world.faults.plan(fault, "Fetch")
    if is_answered:
        ask(world, act)
    else:
        with pytest.raises(NoAnswerError):
            ask(world, act)
    assert done_count == len(done)

    assert done_count + 1 == ask(world, act)
    late_count = world.faults.release()
    assert (fault in (Fault.KEEP, Fault.ECHO)) == late_count
    assert done_count + 1 + late_count == len(done)
    assert 1 == world.faults.seen[fault, "Fetch"]


def test_a_code_that_nobody_knows_is_refused_when_it_is_planned(world: ThreadWorld) -> None:
    with pytest.raises(KeyError):
        world.faults.refuse("Fetch", "NO_SUCH_CODE")


def test_a_late_request_that_is_refused_disturbs_nobody(world: ThreadWorld) -> None:
    def refuse() -> int:
        raise NoAnswerError("nobody is there")

    world.faults.plan(Fault.KEEP, "Fetch")
    with pytest.raises(NoAnswerError):
        ask(world, refuse)

    assert 1 == world.faults.release()


def test_a_client_that_is_cut_off_comes_back_and_one_that_crashed_does_not(world: ThreadWorld) -> None:
    world.faults.cut_off("one")
    world.faults.crash("two")
    assert [False, False, True] == [world.is_running(c) for c in ("one", "two", "three")]
    with pytest.raises(NoAnswerError):
        ask(world, lambda: 1, client="one")

    world.faults.reconnect("one")
    world.faults.reconnect("two")

    assert 1 == ask(world, lambda: 1, client="one")
    with pytest.raises(ClientCrashedError):
        ask(world, lambda: 1, client="two")


def test_forgotten_plans_do_not_happen(world: ThreadWorld) -> None:
    world.faults.plan(Fault.LOSE_REQUEST, times=1 << 30)
    with pytest.raises(NoAnswerError):
        ask(world, lambda: 1)

    world.faults.forget()

    assert 1 == ask(world, lambda: 1)
