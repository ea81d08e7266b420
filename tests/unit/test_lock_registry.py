"""A process's leases over Kafka in memory: rebalances, crashes, freezes, wrong clocks, short and lagging logs."""

from dataclasses import replace

import pytest

from tests.support.commands import run_command
from tests.support.lock_stage import EXPIRY_MS, NAME, QUEUE, RENEWAL_MS, STEP_MS, LockStage
from txlayer.adapters.memory import Fault, memory_clients
from txlayer.cli import locks
from txlayer.config import ConsumerConfig
from txlayer.consumer.lease_keeper import CLOSE_S, WRITE_AGAIN_S
from txlayer.core.leases import LeaseEffect, LockKind, LockRecord, QueueLease
from txlayer.operate.queues import LockAdmin

MINUTE_MS = 60_000
OTHER = ("orders", 4)


@pytest.fixture
def stage() -> LockStage:
    return LockStage()


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
    a = stage.assigned("a", generation=5)

    for _ in range(10):
        stage.run(MINUTE_MS)
        assert a.may_start()

    assert ["gained"] == a.history
    assert "C" + "N" * (10 * MINUTE_MS // RENEWAL_MS) in (stage.kinds(), stage.kinds() + "N")
    assert ("a", 0) == stage.holder()


def test_what_a_holder_says_of_a_queue_is_written_at_once_and_kept_with_its_lease(stage: LockStage) -> None:
    def said() -> str:
        lease = stage.table().lease(NAME)
        return "" if lease is None else lease.reason

    a = stage.assigned("a", generation=5)
    stage.run(3_000)
    a.registry.remark(QUEUE, "breaker open")
    stage.run(2_000)
    assert ("CN", "breaker open") == (stage.kinds(), said())

    stage.run(2 * RENEWAL_MS)
    assert ("CNNN", "breaker open") == (stage.kinds(), said())

    a.registry.remark(QUEUE, "")
    a.registry.remark(OTHER, "of a queue that it does not hold")
    stage.run(2_000)
    assert ("CNNNN", "", ["gained"]) == (stage.kinds(), said(), a.history)


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
    a = stage.assigned("a", generation=5)
    stage.run()
    stage.world.requests.clear()

    for _ in range(100):
        a.turn()

    assert [] == stage.world.requests


def test_what_was_given_back_is_free_at_once(stage: LockStage) -> None:
    a = stage.assigned("a", generation=5)

    a.registry.revoked([QUEUE, OTHER])
    stage.run()

    assert "CR" == stage.kinds()
    assert stage.holder() is None
    assert a.registry.valid_until(QUEUE) is None


def test_what_was_given_back_before_its_claim_was_read_is_released_all_the_same(stage: LockStage) -> None:
    a = stage.process("a")
    a.registry.assigned([QUEUE], generation=5)
    a.turn()
    a.registry.revoked([QUEUE])
    stage.run()

    assert "CR" == stage.kinds()
    assert stage.holder() is None
    assert [] == a.history


def test_close_gives_everything_back_and_may_be_called_twice(stage: LockStage) -> None:
    a = stage.assigned("a", generation=5)

    a.registry.close()
    a.registry.close()

    assert stage.holder() is None


def test_close_does_not_wait_for_a_broker_that_is_gone(stage: LockStage) -> None:
    a = stage.assigned("a", generation=5)
    stage.world.faults.cut_off("a")
    began = stage.world.monotonic()

    a.registry.close()

    assert stage.world.monotonic() - began < CLOSE_S + 1


def test_a_queue_that_comes_back_in_the_next_generation_has_a_new_token(stage: LockStage) -> None:
    a = stage.assigned("a", generation=5)
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
    assert a.may_start()  # if it was only frozen: it has not read that; its token is the lower one
    stage.thaw(a)
    stage.run()
    assert not a.may_start()


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
    assert ["lease.lost"] == [r.getMessage() for r in caplog.records if r.levelname == "WARNING"]


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

    stage.run_until_it_may_start(b, instead_of=a)
    assert EXPIRY_MS / 1000 <= stage.world.monotonic() <= EXPIRY_MS / 1000 + RENEWAL_MS / 1000


@pytest.mark.promise("P10")
def test_a_frozen_process_whose_queue_nobody_took_goes_on_with_it(stage: LockStage) -> None:
    a = stage.assigned("a", generation=5)
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
    a = stage.assigned("a", instance_id="i", generation=5)
    again = stage.process("again", instance_id="i")

    stage.assign(again, 5)
    stage.run(5 * MINUTE_MS)

    assert {QUEUE: 1} == again.tokens
    assert ["gained", "lost"] == a.history
    assert "CC" == stage.kinds().replace("N", "")


@pytest.mark.fault("consumer: a static member freezes before its first claim, and its next process has the partition")
@pytest.mark.promise("P10")
@pytest.mark.parametrize("is_held", [True, False])
def test_a_static_process_that_freezes_before_its_first_claim_takes_nothing_from_the_next_one(
    stage: LockStage, *, is_held: bool
) -> None:
    """The group fences it when it wakes; the next one would wait for a new assignment, which a static member seldom gets."""
    a = stage.process("a", instance_id="i")
    stage.run()
    a.registry.assigned([QUEUE], generation=5)
    stage.freeze(a)
    b = stage.assigned("b", instance_id="i", generation=5)
    if not is_held:
        b.registry.close()
        stage.freeze(b)

    stage.thaw(a)
    stage.run(MINUTE_MS)

    assert (["gained"], []) == ((b.history, a.history) if is_held else (a.history, []))
    assert "C" * (1 if is_held else 2) == stage.kinds().replace("N", "").replace("R", "")


@pytest.mark.promise("P10")
def test_a_static_process_waits_for_no_claim_of_the_process_before_that_was_on_its_way(stage: LockStage) -> None:
    """The log shows it a moment after the assignment of the next generation."""
    a, b = stage.process("a", instance_id="i"), stage.process("b", instance_id="i")
    stage.run()
    b.registry.assigned([QUEUE], generation=6)
    stage.freeze(b)
    stage.assign(a, 5)
    stage.freeze(a)

    stage.thaw(b)
    stage.run()

    assert ["gained"] == b.history


# --- void claims ------------------------------------------------------------------------------------------------------


def test_a_claim_of_a_lower_generation_is_answered_by_the_holder(stage: LockStage) -> None:
    a = stage.assigned("a", generation=5)
    stage.claim("stranger", 4)
    stage.run(2_000)

    assert "CCC" == stage.kinds()
    assert ["gained", "gained"] == a.history
    assert {QUEUE: 2} == a.tokens
    assert a.may_start()


def test_a_stream_of_void_claims_is_answered_once_a_second_at_most(stage: LockStage) -> None:
    a = stage.assigned("a", generation=5)
    for _ in range(20):
        stage.claim("stranger", 4)
        stage.run(500)

    answers = sum(record.holder == "a" for _, _, record in stage.log())
    assert 5 <= answers <= 10 / WRITE_AGAIN_S + 2
    assert a.may_start()


def test_a_void_claim_is_answered_also_when_the_answer_is_lost_at_first(stage: LockStage) -> None:
    a = stage.assigned("a", generation=5)
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
    a = stage.assigned("a", generation=5)
    stage.append(LockRecord(LockKind.RELEASE, NAME, 5, "a", "", 0, "zoe: stuck"))
    stage.run(RENEWAL_MS // 2)
    assert {} == a.tokens

    stage.run(RENEWAL_MS)

    assert {QUEUE: 2} == a.tokens


# --- who does not claim, and who releases -----------------------------------------------------------------------------


@pytest.mark.promise("P10")
def test_a_queue_that_comes_back_before_its_claim_is_not_released(stage: LockStage) -> None:
    a = stage.process("a")
    a.registry.assigned([QUEUE], generation=5)
    a.registry.revoked([QUEUE])
    stage.assign(a, 6)

    stage.run(2 * MINUTE_MS)

    assert "R" not in stage.kinds()
    assert (["gained"], True) == (a.history, a.may_start())


@pytest.mark.promise("P10")
@pytest.mark.parametrize("is_static", [False, True])
def test_who_lost_a_queue_to_a_newer_owner_does_not_claim_it_when_it_is_free(
    stage: LockStage, *, is_static: bool
) -> None:
    """The group has gone on without it, and only the group may send it back."""
    instance_id, generation = ("static", 5) if is_static else ("", 6)
    a = stage.assigned("a", instance_id=instance_id, generation=5)
    b = stage.process("b", instance_id=instance_id)
    stage.assign(b, generation)
    assert ["gained", "lost"] == a.history

    b.registry.revoked([QUEUE])
    stage.run(3 * MINUTE_MS)

    assert ["gained", "lost"] == a.history
    assert stage.holder() is None


@pytest.mark.promise("P10")
def test_a_lease_that_is_being_written_again_is_released_all_the_same(stage: LockStage) -> None:
    a = stage.assigned("a", generation=5)
    stage.run(2 * STEP_MS)
    stage.claim("b", 4)
    a.turn()  # it reads the void claim, and answers
    a.registry.revoked([QUEUE])

    stage.run(2 * STEP_MS)

    assert "CCCRR" == stage.kinds()
    assert stage.holder() is None


# --- released by people -----------------------------------------------------------------------------------------------


def test_a_lease_that_two_people_release_at_once_is_over_for_both(
    stage: LockStage, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    stage.assigned("a", generation=5)
    clients = memory_clients(stage.kafka._link("cli", "cli"), ConsumerConfig())
    clients = replace(clients, wall_clock=lambda: stage.world.now_ms() / 1000)
    monkeypatch.setattr("txlayer.cli.locks.kafka_clients", lambda _config: clients)
    release = LockAdmin.release

    def release_behind_another(admin: LockAdmin, lease: QueueLease, *, reason: str) -> LeaseEffect:
        held = lease.generation, lease.holder, lease.instance_id, lease.token
        stage.append(LockRecord(LockKind.RELEASE, NAME, *held, "amy: first"))
        return release(admin, lease, reason=reason)

    monkeypatch.setattr(LockAdmin, "release", release_behind_another)
    code, out, err = run_command(locks.app, "release", NAME, "--reason", "second", "--yes", capsys=capsys)

    assert (0, "") == (code, err)
    assert f"released {NAME}" in out
