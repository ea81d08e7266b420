"""A process's leases over Kafka in memory: rebalances, crashes, freezes, wrong clocks, short and lagging logs."""

from __future__ import annotations

import pytest

from tests.support.lock_stage import (
    EXPIRY_MS,
    NAME,
    QUEUE,
    RENEWAL_MS,
    TOPICS,
    LockStage,
    Process,
)
from txlayer.adapters.memory import Fault
from txlayer.consumer.lock_registry import CLOSE_S, VALID_SHARE, WRITE_AGAIN_S, LockRegistry
from txlayer.core.handling import LockKind, LockRecord
from txlayer.errors import NotAuthorisedError, RetriableError, TopicMismatchError

MINUTE_MS = 60_000
OTHER = ("orders", 4)


@pytest.fixture
def stage() -> LockStage:
    return LockStage()


def run_until_it_may_start(stage: LockStage, process: Process, *, instead_of: Process) -> None:
    """Never may both."""
    for _ in range(2 * EXPIRY_MS // 500):
        stage.run(500)
        assert not (instead_of.may_start() and process.may_start())
        if process.may_start():
            return
    raise AssertionError(stage.kinds())


# --- one process ------------------------------------------------------------------------------------------------------


def test_a_process_holds_what_it_was_assigned_once_its_claim_is_read_back(stage: LockStage) -> None:
    a = stage.process("a")
    a.registry.assigned([QUEUE], generation=5)
    a.turn()
    assert {} == a.tokens
    assert a.registry.valid_until(QUEUE) is None

    stage.run()

    assert {QUEUE: 0} == a.tokens
    assert ("a", 0) == stage.holder()
    assert a.may_start()


def test_a_lease_is_renewed_as_long_as_the_process_turns(stage: LockStage) -> None:
    a = stage.process("a")
    stage.assign(a, 5)

    for _ in range(10):
        stage.run(MINUTE_MS)
        assert a.may_start()

    assert ["gained"] == a.history
    assert "C" + "N" * (10 * MINUTE_MS // RENEWAL_MS) in (stage.kinds(), stage.kinds() + "N")
    assert ("a", 0) == stage.holder()


def test_queues_have_leases_of_their_own(stage: LockStage) -> None:
    a, b = stage.process("a"), stage.process("b")
    stage.assign(a, 5, QUEUE, OTHER)
    a.registry.revoked([OTHER])
    del a.tokens[OTHER]
    stage.assign(b, 6, OTHER)

    assert ([QUEUE], [OTHER]) == (list(a.tokens), list(b.tokens))
    assert a.may_start()
    assert not a.may_start(OTHER)


def test_a_turn_with_nothing_to_do_asks_nobody(stage: LockStage) -> None:
    a = stage.process("a")
    stage.assign(a, 5)
    stage.run()
    stage.world.requests.clear()

    for _ in range(100):
        a.turn()

    assert [] == stage.world.requests


def test_what_was_given_back_is_free_at_once(stage: LockStage) -> None:
    a = stage.process("a")
    stage.assign(a, 5)

    a.registry.revoked([QUEUE, OTHER])
    stage.run()

    assert "CR" == stage.kinds()
    assert stage.holder() is None
    assert a.registry.valid_until(QUEUE) is None


def test_what_was_given_back_before_its_claim_was_read_is_released_all_the_same(
    stage: LockStage,
) -> None:
    a = stage.process("a")
    a.registry.assigned([QUEUE], generation=5)
    a.turn()
    a.registry.revoked([QUEUE])
    stage.run()

    assert "CR" == stage.kinds()
    assert stage.holder() is None
    assert [] == a.history


def test_close_gives_everything_back_and_may_be_called_twice(stage: LockStage) -> None:
    a = stage.process("a")
    stage.assign(a, 5)

    a.registry.close()
    a.registry.close()

    assert stage.holder() is None


def test_close_does_not_wait_for_a_broker_that_is_gone(stage: LockStage) -> None:
    a = stage.process("a")
    stage.assign(a, 5)
    stage.world.faults.cut_off("a")
    began = stage.world.monotonic()

    a.registry.close()

    assert stage.world.monotonic() - began < CLOSE_S + 1


def test_a_queue_that_comes_back_in_the_next_generation_has_a_new_token(stage: LockStage) -> None:
    a = stage.process("a")
    stage.assign(a, 5)
    a.registry.revoked([QUEUE])
    a.tokens.clear()

    stage.assign(a, 6)

    assert {QUEUE: 2} == a.tokens
    assert "CRC" == stage.kinds()


# --- the next owner ---------------------------------------------------------------------------------------------------


@pytest.mark.promise("P10")
def test_a_member_of_the_next_generation_takes_a_dead_ones_queue_at_once(stage: LockStage) -> None:
    a, b = stage.process("a"), stage.process("b")
    stage.assign(a, 5)
    stage.freeze(a)

    stage.assign(b, 6)

    assert {QUEUE: 1} == b.tokens


@pytest.mark.promise("P10")
def test_who_was_not_told_of_the_rebalance_loses_when_it_reads_the_next_claim(
    stage: LockStage, caplog: pytest.LogCaptureFixture
) -> None:
    a, b = stage.process("a"), stage.process("b")
    stage.assign(a, 5)

    stage.assign(b, 6)
    stage.run(5 * MINUTE_MS)

    assert ["gained", "lost"] == a.history
    assert {QUEUE: 1} == b.tokens
    assert "CC" == stage.kinds().replace("N", "")
    assert ["lease.lost"] == [r.message for r in caplog.records if r.levelname == "WARNING"]


@pytest.mark.promise("P10")
def test_a_process_frozen_past_its_expiry_starts_nothing_when_it_wakes(stage: LockStage) -> None:
    a, b = stage.process("a"), stage.process("b")
    stage.assign(a, 5)
    stage.freeze(a)
    stage.assign(b, 6)
    stage.run(MINUTE_MS)

    assert not a.may_start()  # before it has read anything
    stage.thaw(a)
    stage.run(MINUTE_MS)
    assert ["gained", "lost"] == a.history
    assert ["gained"] == b.history
    assert ("b", 1) == stage.holder()


@pytest.mark.promise("P10")
def test_no_two_processes_may_start_handlers_when_a_lease_runs_out(stage: LockStage) -> None:
    a, b = stage.process("a"), stage.process("b")
    stage.assign(a, 5)
    stage.freeze(a)
    b.registry.assigned([QUEUE], generation=4)  # the group was made anew

    run_until_it_may_start(stage, b, instead_of=a)
    assert EXPIRY_MS / 1000 <= stage.world.monotonic() <= EXPIRY_MS / 1000 + RENEWAL_MS / 1000


@pytest.mark.promise("P10")
def test_a_frozen_process_whose_queue_nobody_took_goes_on_with_it(stage: LockStage) -> None:
    a = stage.process("a")
    stage.assign(a, 5)
    stage.freeze(a)
    stage.run(2 * MINUTE_MS)
    stage.thaw(a)
    assert not a.may_start()

    stage.run()

    assert ["gained", "lost", "gained"] == a.history
    assert {QUEUE: 0} == a.tokens
    assert a.may_start()


@pytest.mark.promise("P10")
def test_of_a_static_member_the_restarted_process_has_the_queue(stage: LockStage) -> None:
    a = stage.process("a", instance_id="i")
    stage.assign(a, 5)
    again = stage.process("again", instance_id="i")

    stage.assign(again, 5)
    stage.run(5 * MINUTE_MS)

    assert {QUEUE: 1} == again.tokens
    assert ["gained", "lost"] == a.history
    assert "CC" == stage.kinds().replace("N", "")


# --- void claims ------------------------------------------------------------------------------------------------------


def test_a_claim_of_a_lower_generation_is_answered_by_the_holder(stage: LockStage) -> None:
    a = stage.process("a")
    stage.assign(a, 5)
    stage.claim("stranger", 4)
    stage.run(2_000)

    assert "CCC" == stage.kinds()
    assert ["gained", "gained"] == a.history
    assert {QUEUE: 2} == a.tokens
    assert a.may_start()


def test_a_stream_of_void_claims_is_answered_once_a_second_at_most(stage: LockStage) -> None:
    a = stage.process("a")
    stage.assign(a, 5)
    for _ in range(20):
        stage.claim("stranger", 4)
        stage.run(500)

    answers = sum(record.holder == "a" for _, _, record in stage.log())
    assert 5 <= answers <= 10 / WRITE_AGAIN_S + 2
    assert a.may_start()


def test_a_void_claim_is_answered_also_when_the_answer_is_lost_at_first(stage: LockStage) -> None:
    a = stage.process("a")
    stage.assign(a, 5)
    stage.claim("stranger", 4)
    stage.world.faults.refuse("Produce", "TOPIC_AUTHORIZATION_FAILED", client="b")
    stage.world.faults.plan(Fault.LOSE_REQUEST, "Produce", client="a", times=3)
    stage.run(5_000)

    assert stage.world.faults.seen[Fault.LOSE_REQUEST, "Produce"] == 3
    assert {QUEUE: 2} == a.tokens


def test_who_claims_in_vain_waits_until_the_lease_is_over(stage: LockStage) -> None:
    a, b = stage.process("a"), stage.process("b")
    stage.assign(a, 5)
    stage.assign(b, 4)
    stage.run(3 * MINUTE_MS)
    assert [] == b.history
    assert 1 == sum(record.holder == "b" for _, _, record in stage.log())

    a.registry.close()
    stage.freeze(a)
    stage.run()

    assert ["gained"] == b.history


def test_an_operators_release_lets_whoever_waits_come_first(stage: LockStage) -> None:
    a, b = stage.process("a"), stage.process("b")
    stage.assign(a, 5)
    stage.assign(b, 4)
    stage.run(5_000)
    held = stage.holder()
    assert held is not None
    assert "a" == held[0]

    stage.append(LockRecord(LockKind.RELEASE, NAME, 5, "a", "", held[1], "zoe: stuck"))
    stage.run(5_000)

    assert "lost" == a.history[-1]
    assert ["gained"] == b.history


def test_a_released_holder_whom_nobody_follows_claims_again(stage: LockStage) -> None:
    a = stage.process("a")
    stage.assign(a, 5)
    stage.append(LockRecord(LockKind.RELEASE, NAME, 5, "a", "", 0, "zoe: stuck"))
    stage.run(RENEWAL_MS // 2)
    assert {} == a.tokens

    stage.run(RENEWAL_MS)

    assert {QUEUE: 2} == a.tokens


# --- clocks -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rate", [0.96, 1.04])
@pytest.mark.promise("P10")
def test_a_clock_that_runs_apart_from_the_brokers_starts_nothing_too_late(
    stage: LockStage, rate: float
) -> None:
    a, b = stage.process("a", clock_rate=rate), stage.process("b")
    stage.assign(a, 5)
    stage.run(2 * MINUTE_MS)
    stage.freeze(a)
    b.registry.assigned([QUEUE], generation=4)

    run_until_it_may_start(stage, b, instead_of=a)


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
    a = stage.process("a")
    stage.assign(a, 5)
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
    a = stage.process("a")
    stage.assign(a, 5)
    fill(stage, a, ms=3 * MINUTE_MS)
    stage.kafka.delete_records(TOPICS.locks, 3, before=stage.log()[-1][0])

    b = stage.process("b")
    stage.assign(b, 5)
    stage.run(3 * MINUTE_MS)

    assert [] == b.history
    assert a.may_start()
    assert a.tokens == {QUEUE: stage.holder()[1]}  # type: ignore[index]  # it is held


def test_an_empty_log_is_one_that_nobody_holds_anything_of(stage: LockStage) -> None:
    a = stage.process("a")
    stage.assign(a, 5)
    stage.freeze(a)
    stage.kafka.delete_records(TOPICS.locks, 3, before=len(stage.log()))

    b = stage.process("b")
    stage.assign(b, 5)

    assert {QUEUE: 1} == b.tokens


def test_a_reader_behind_which_the_log_was_deleted_begins_anew(stage: LockStage) -> None:
    a = stage.process("a")
    stage.assign(a, 5)
    stage.freeze(a)
    for _ in range(3):
        stage.claim("stranger", 4)
    stage.kafka.delete_records(TOPICS.locks, 3, before=3)

    with pytest.raises(RetriableError, match="deleted"):
        a.turn()


@pytest.mark.promise("P10")
def test_who_cannot_read_the_log_holds_nothing_for_long_though_its_renewals_arrive(
    stage: LockStage,
) -> None:
    a = stage.process("a")
    stage.assign(a, 5)
    stage.world.faults.plan(Fault.LOSE_REQUEST, "Fetch", client="a", times=100_000)

    stage.run(EXPIRY_MS)

    assert stage.kinds().count("N") > 0
    assert ["gained", "lost"] == a.history
    stage.world.faults.forget()
    stage.run()
    assert ["gained", "lost", "gained"] == a.history


@pytest.mark.promise("P10")
def test_nothing_is_claimed_before_the_log_was_read_to_its_end(stage: LockStage) -> None:
    a = stage.process("a")
    stage.assign(a, 5)
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
def test_who_cannot_write_loses_its_leases_in_time(stage: LockStage) -> None:
    a, b = stage.process("a"), stage.process("b")
    stage.assign(a, 5)
    stage.world.faults.plan(Fault.LOSE_REQUEST, "Produce", client="a", times=100_000)
    b.registry.assigned([QUEUE], generation=4)

    run_until_it_may_start(stage, b, instead_of=a)
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


def test_what_is_no_lock_record_is_passed_over(
    stage: LockStage, caplog: pytest.LogCaptureFixture
) -> None:
    stage.kafka.append(TOPICS.locks, b"garbage", key=NAME.encode(), partition=3)
    stage.kafka.append(TOPICS.locks, b"1|C|9|thief|||", key=NAME.encode(), partition=2)
    a = stage.process("a")
    stage.assign(a, 5)

    assert {QUEUE: 1} == a.tokens
    assert 2 == sum(record.message == "locks.unreadable" for record in caplog.records)


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
    a = stage.process("a", kind=Timeless)
    stage.assign(a, 5)
    stage.freeze(a)
    stage.assign(stage.process("b"), 6)
    stage.run(10 * MINUTE_MS)

    assert a.may_start()


def test_without_an_answer_to_void_claims_a_new_reader_believes_them(stage: LockStage) -> None:
    beliefs = []
    for kind in (LockRegistry, Silent):
        stage = LockStage()
        a = stage.process("a", kind=kind)
        stage.assign(a, 5)
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
