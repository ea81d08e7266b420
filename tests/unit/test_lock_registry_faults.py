"""A process's leases under faults, over Kafka in memory: wrong clocks, short and lagging logs, lost requests; and the guards."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.lock_stage import EXPIRY_MS, NAME, QUEUE, TOPICS, LockStage, Process
from txlayer.adapters import lock_log
from txlayer.adapters.errors import Code
from txlayer.adapters.memory import Fault
from txlayer.adapters.memory.world import ClientError, ClientFailureError
from txlayer.consumer.lease_keeper import LockRegistry
from txlayer.core.leases import VALID_SHARE
from txlayer.errors import NotAuthorisedError, RetriableError, TopicMismatchError, TxLayerError

MINUTE_MS = 60_000


@pytest.fixture
def stage() -> LockStage:
    return LockStage()


# --- clocks -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rate", [0.96, 1.04])
@pytest.mark.promise("P10")
def test_a_clock_that_runs_apart_from_the_brokers_starts_nothing_too_late(stage: LockStage, rate: float) -> None:
    a, b = stage.process("a", clock_rate=rate), stage.process("b")
    stage.assign(a, 5)
    stage.run(2 * MINUTE_MS)
    stage.freeze(a)
    b.registry.assigned([QUEUE], generation=4)

    stage.run_until_it_may_start(b, instead_of=a)


def test_a_lease_counts_from_when_its_renewal_was_sent(stage: LockStage) -> None:
    a = stage.process("a")
    a.registry.assigned([QUEUE], generation=5)
    stage.world.faults.plan(Fault.DELAY, "Produce", client="a", seconds=10)
    sent_at = a.clock()
    stage.run()

    valid_until = a.registry.valid_until(QUEUE)
    assert valid_until is not None
    assert sent_at + EXPIRY_MS / 1000 * VALID_SHARE == pytest.approx(valid_until)
    assert a.clock() >= sent_at + 10


# --- the log ----------------------------------------------------------------------------------------------------------


def fill(stage: LockStage, holder: Process, *, ms: int) -> None:
    stage.run(ms)
    assert holder.may_start()


def test_a_new_reader_begins_ten_expiries_before_the_newest_record(stage: LockStage) -> None:
    a = stage.assigned("a", generation=5)
    fill(stage, a, ms=30 * MINUTE_MS)
    count = len(stage.log())

    b = stage.process("b")
    before = len(b.registry._table._leases)
    b.turn()

    assert 0 == before
    lease = b.registry._table.lease(NAME)
    assert lease is not None
    assert ("a", 0) == (lease.holder, lease.token)
    assert count > 80
    assert 31 >= b.registry._log._positions[3] - (count - 31) >= 0


def test_the_lease_outlives_the_record_that_made_it(stage: LockStage) -> None:
    a = stage.assigned("a", generation=5)
    fill(stage, a, ms=3 * MINUTE_MS)
    stage.kafka.delete_records(TOPICS.locks, 3, before=stage.log()[-1][0])

    b = stage.assigned("b", generation=5)
    stage.run(3 * MINUTE_MS)

    assert [] == b.history
    assert a.may_start()
    assert a.tokens == {QUEUE: stage.holder()[1]}  # type: ignore[index]  # it is held


def test_an_empty_log_is_one_that_nobody_holds_anything_of(stage: LockStage) -> None:
    a = stage.assigned("a", generation=5)
    stage.freeze(a)
    stage.kafka.delete_records(TOPICS.locks, 3, before=len(stage.log()))

    b = stage.assigned("b", generation=5)

    assert {QUEUE: 1} == b.tokens


def test_a_reader_behind_which_the_log_was_deleted_begins_anew(stage: LockStage) -> None:
    a = stage.assigned("a", generation=5)
    stage.freeze(a)
    for _ in range(3):
        stage.claim("stranger", 4)
    stage.kafka.delete_records(TOPICS.locks, 3, before=3)

    with pytest.raises(RetriableError, match="deleted"):
        a.turn()


@pytest.mark.promise("P10")
def test_who_cannot_read_the_log_holds_nothing_for_long_though_its_renewals_arrive(stage: LockStage) -> None:
    a = stage.assigned("a", generation=5)
    stage.world.faults.plan(Fault.LOSE_REQUEST, "Fetch", client="a", times=100_000)

    stage.run(EXPIRY_MS)

    assert stage.kinds().count("N") > 0
    assert ["gained", "lost"] == a.history
    stage.world.faults.forget()
    stage.run()
    assert ["gained", "lost", "gained"] == a.history


@pytest.mark.promise("P10")
def test_nothing_is_claimed_before_the_log_was_read_to_its_end(stage: LockStage) -> None:
    stage.assigned("a", generation=5)
    b = stage.process("b")
    b.registry.assigned([QUEUE], generation=4)
    stage.world.faults.plan(Fault.LOSE_REQUEST, "Fetch", client="b", times=100_000)
    stage.run(10_000)
    assert all(record.holder == "a" for _, _, record in stage.log())

    stage.world.faults.forget()
    stage.run(5_000)

    assert any(record.holder == "b" for _, _, record in stage.log())
    assert [] == b.history


@pytest.mark.promise("P10")
def test_nothing_is_claimed_behind_the_first_of_many_records(stage: LockStage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lock_log, "READ_COUNT_MAX", 1)
    fill(stage, stage.assigned("a", generation=5), ms=3 * MINUTE_MS)
    count = len(stage.log())
    b = stage.process("b")
    b.registry.assigned([QUEUE], generation=6)

    for _ in range(count - 1):
        b.turn()
    assert count == len(stage.log())
    stage.run()

    assert count > 5
    assert b.may_start()


@pytest.mark.promise("P10")
def test_who_cannot_write_loses_its_leases_in_time(stage: LockStage) -> None:
    a, b = stage.process("a"), stage.process("b")
    stage.assign(a, 5)
    stage.world.faults.plan(Fault.LOSE_REQUEST, "Produce", client="a", times=100_000)
    b.registry.assigned([QUEUE], generation=4)

    stage.run_until_it_may_start(b, instead_of=a)
    assert ["gained", "lost"] == a.history
    stage.world.faults.forget()
    stage.run(MINUTE_MS)
    assert ["gained", "lost"] == a.history


def test_a_claim_that_is_not_acknowledged_is_written_again(stage: LockStage) -> None:
    a = stage.process("a")
    stage.world.faults.plan(Fault.LOSE_REQUEST, "Produce", client="a", times=60)
    stage.assign(a, 5)
    assert {} == a.tokens

    stage.run(MINUTE_MS)

    assert [QUEUE] == list(a.tokens)


def test_what_is_no_lock_record_is_passed_over(stage: LockStage, caplog: pytest.LogCaptureFixture) -> None:
    stage.kafka.append(TOPICS.locks, b"garbage", key=NAME.encode(), partition=3)
    stage.kafka.append(TOPICS.locks, b"1|C|9|thief|||", key=NAME.encode(), partition=2)
    a = stage.assigned("a", generation=5)

    assert {QUEUE: 1} == a.tokens
    assert 2 == sum(record.getMessage() == "locks.unreadable" for record in caplog.records)


def test_of_very_many_records_that_are_no_lock_records_few_are_logged(
    stage: LockStage, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(300):
        stage.kafka.append(TOPICS.locks, b"garbage", key=NAME.encode(), partition=3)
    stage.assigned("a", generation=5)

    counts = [vars(record)["count"] for record in caplog.records if record.getMessage() == "locks.unreadable"]
    assert [*range(1, 21), 32, 64, 128, 256] == counts


def test_a_topic_without_append_times_is_refused() -> None:
    stage = LockStage(settings={"message.timestamp.type": "CreateTime"})
    stage.claim("a", 5)

    with pytest.raises(TopicMismatchError, match="clock"):
        stage.process("b")


def test_a_namespace_without_a_lock_topic_is_refused(stage: LockStage) -> None:
    stage.kafka.delete_topic(TOPICS.locks)

    with pytest.raises(TopicMismatchError, match="topics apply"):
        stage.process("a")


def test_who_may_not_write_is_told_so(stage: LockStage) -> None:
    a = stage.process("a")
    stage.world.faults.refuse("Produce", "TOPIC_AUTHORIZATION_FAILED", client="a")
    a.registry.assigned([QUEUE], generation=5)

    with pytest.raises(NotAuthorisedError):
        stage.run()


@pytest.mark.parametrize("fault", [Code.LOCAL_FATAL, Code.LOCAL_UNKNOWN_PARTITION, None])
def test_a_client_that_takes_no_record_fails_the_registry_alone(stage: LockStage, fault: Code | None) -> None:
    """The consumer replaces the registry after an error of ours, and ends with any other."""
    a = stage.assigned("a", generation=5)

    def refuse(*_: object) -> None:
        raise (
            BufferError("full")
            if fault is None
            else ClientFailureError(ClientError(fault, is_fatal=fault is Code.LOCAL_FATAL))
        )

    writer = a.registry._log._writer
    assert writer is not None
    writer.produce = refuse

    with pytest.raises(TxLayerError):
        stage.run(MINUTE_MS)
    with pytest.raises(TxLayerError):
        a.registry.revoked([QUEUE])


class Unreadable:
    """A cluster that does not say where the lock log ends, and counts the clients that are open."""

    partition_count = 1
    message_bytes_max = None

    def __init__(self) -> None:
        self.open_count = 0

    def topic_limits(self, _topic: str) -> Unreadable:
        return self

    def make_client(self, *_: object, **__: object) -> Unreadable:
        self.open_count += 1
        return self

    make_reader = make_log_writer = make_client

    def end_offsets(self, *_: object, **__: object) -> None:
        raise NotAuthorisedError("no", resource=TOPICS.locks, operation="read")

    def close(self, *_: object) -> None:
        self.open_count -= 1


@pytest.mark.promise("P11")
def test_a_registry_that_could_not_start_keeps_no_client_open() -> None:
    """A consumer makes another one every few seconds until the log can be read."""
    cluster: Any = Unreadable()
    registry = LockRegistry(cluster, group="g", holder="a", topics=TOPICS)
    with pytest.raises(NotAuthorisedError):
        registry.start()
    registry.close()
    registry.close()

    assert 0 == cluster.open_count


# --- the guards -------------------------------------------------------------------------------------------------------


class Timeless(LockRegistry):
    """Holds what the log last said, however long ago that was."""

    def valid_until(self, queue: tuple[str, int]) -> float | None:
        return None if super().valid_until(queue) is None else float("inf")


class Silent(LockRegistry):
    """Answers no void claim."""

    def _answers_void_claim(self) -> bool:
        return False


def test_without_its_own_end_of_validity_a_frozen_process_starts_handlers(stage: LockStage) -> None:
    a = stage.assigned("a", kind=Timeless, generation=5)
    stage.freeze(a)
    stage.assign(stage.process("b"), 6)
    stage.run(10 * MINUTE_MS)

    assert a.may_start()


def test_without_an_answer_to_void_claims_a_new_reader_believes_them(stage: LockStage) -> None:
    beliefs = []
    for kind in (LockRegistry, Silent):
        stage = LockStage()
        a = stage.assigned("a", kind=kind, generation=5)
        fill(stage, a, ms=2 * MINUTE_MS)
        stage.kafka.delete_records(TOPICS.locks, 3, before=len(stage.log()))
        stage.claim("stranger", 4)
        stage.run(MINUTE_MS // 2)
        b = stage.process("b")
        b.turn()
        lease = b.registry._table.lease(NAME)
        assert lease is not None
        beliefs.append(lease.holder)

    assert ["a", "stranger"] == beliefs
