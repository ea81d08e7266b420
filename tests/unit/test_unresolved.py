"""What a coordinator does with a transaction that stays without an answer, by its policy, and when op refuses that."""

import logging
from datetime import timedelta
from itertools import permutations
from typing import Any

import pytest

from tests.simulation.unguarded import InsistentCoordinator
from tests.support.core_records import op_line, txn_key
from tests.support.still_coordinator import RefusedTopic, StillCoordinator
from txlayer.adapters.errors import Code
from txlayer.coordinator.loop import Coordinator
from txlayer.core import codec
from txlayer.core.messages import HalfOptions, OpMessage, Resolution, Source, UnresolvedAction, txn_id_of

A, B = txn_key("a"), txn_key("b")
AGE_S = 60


def open_stage(unresolved: str, **settings: Any) -> StillCoordinator:
    return StillCoordinator(
        unresolved=unresolved,
        doubt_after=timedelta(seconds=5),
        transaction_age_max=timedelta(seconds=AGE_S),
        **settings,
    )


def decisions(stage: StillCoordinator) -> list[tuple[Resolution, Source, str]]:
    """What coordinators wrote to op."""
    lines = [codec.decode_op(line.decode()) for line in stage.said()]
    return [(op.resolution, op.source, op.reason) for op in lines if isinstance(op, OpMessage)]


def states(stage: StillCoordinator) -> dict[str, tuple[str, str]]:
    return {key: (summary.state, summary.reason) for key, summary in stage.on_doubt().items()}


@pytest.mark.promise("P7")
@pytest.mark.parametrize(
    ("unresolved", "visible", "letters", "left"),
    [
        ("commit", [txn_id_of(A)], [Resolution.COMMIT], {}),
        ("rollback", [], [Resolution.ROLLBACK], {}),
        ("park", [], [], {A: ("parked", "too-old")}),
    ],
)
def test_the_policy_of_the_namespace_ends_what_stays_without_an_answer(
    unresolved: str, visible: list[str], letters: list[Resolution], left: dict[str, tuple[str, str]]
) -> None:
    stage = open_stage(unresolved)
    stage.half(A)
    stage.work(seconds=AGE_S + 20)

    assert (visible, left) == (stage.visible(), states(stage))
    assert [(letter, Source.POLICY, "too-old") for letter in letters] == decisions(stage)


@pytest.mark.promise("P7")
@pytest.mark.parametrize(("own", "policy"), [(own, other.value) for own, other in permutations(UnresolvedAction, 2)])
@pytest.mark.parametrize("is_restarted", [False, True])
def test_a_transactions_own_policy_counts_also_after_a_restart(
    own: UnresolvedAction, policy: str, is_restarted: bool
) -> None:
    stage = open_stage("park", group_policies={"shop.unresolved": policy})
    stage.half(A, options=HalfOptions(unresolved=own))
    for _ in range(4 if is_restarted else 1):
        stage.work(seconds=(AGE_S + 20) / (4 if is_restarted else 1))

    expected = {
        UnresolvedAction.COMMIT: ([txn_id_of(A)], {}),
        UnresolvedAction.ROLLBACK: ([], {}),
        UnresolvedAction.PARK: ([], {A: ("parked", "too-old")}),
    }
    assert expected[own] == (stage.visible(), states(stage))


@pytest.mark.promise("P1")
def test_a_policy_commits_nothing_whose_half_messages_are_not_all_there() -> None:
    stage = open_stage("commit")
    stage.half(A, count=2)
    stage.work(seconds=AGE_S + 20)

    assert ([], [], {A: ("parked", "too-old")}) == (stage.visible(), decisions(stage), states(stage))


@pytest.mark.promise("P4")
def test_a_rollback_that_is_read_before_the_commit_by_policy_is_final() -> None:
    stage = open_stage("commit")
    offset = stage.half(A)
    stage.work(seconds=10)
    stage.world.advance(ms=AGE_S * 1000)
    stage.op(op_line("R", A, offset))
    stage.work(seconds=20)

    assert ([], {}) == (stage.visible(), states(stage))


def rebuilds(caplog: pytest.LogCaptureFixture) -> int:
    return [record.getMessage() for record in caplog.records].count("coordinator.rebuild")


REFUSALS = [Code.TOPIC_AUTHORIZATION_FAILED, Code.NOT_ENOUGH_REPLICAS, Code.MSG_SIZE_TOO_LARGE]


@pytest.mark.fault("rights: the coordinator may not write op, or op takes nothing")
@pytest.mark.promise("P7")
@pytest.mark.parametrize("code", REFUSALS)
def test_what_a_policy_cannot_write_is_parked_and_nothing_else_waits(
    code: Code, caplog: pytest.LogCaptureFixture
) -> None:
    stage = open_stage("rollback")
    op = RefusedTopic(stage, stage.topics.op, code)
    stage.half(A)
    with caplog.at_level(logging.WARNING, "txlayer.coordinator"):
        stage.work(seconds=AGE_S + 60)

    assert {A: ("parked", "too-old")} == states(stage)
    told = [record for record in caplog.records if record.getMessage() == "policy.refused"]
    assert "right to write txlayer.op" in told[0].advice  # type: ignore[attr-defined]  # an extra field
    assert 1 <= rebuilds(caplog) <= 5

    op.is_refused = False
    offset = stage.half(B)
    stage.commit(B, offset)
    stage.work(seconds=10)
    assert [txn_id_of(B)] == stage.visible()

    stage.half(txn_key("c"))
    stage.work(seconds=AGE_S + 400)
    assert (Resolution.ROLLBACK, Source.POLICY, "too-old") == decisions(stage)[-1]
    stage.op(op_line("C", A, 0))  # nothing of it is lost
    stage.work(seconds=10)
    assert ([txn_id_of(B), txn_id_of(A)], {}) == (stage.visible(), states(stage))


@pytest.mark.fault("rights: the coordinator may not write op, or op takes nothing")
@pytest.mark.promise("P1")
@pytest.mark.parametrize("code", REFUSALS)
def test_scheduled_messages_wait_whole_while_op_refuses_and_nothing_else_waits(
    code: Code, caplog: pytest.LogCaptureFixture
) -> None:
    stage = StillCoordinator()
    at_ms = stage.world.now_ms() + 20_000
    offset = stage.half(A, options=HalfOptions(deliver_at_ms=at_ms))
    stage.commit(A, offset)
    stage.work(seconds=5)
    op = RefusedTopic(stage, stage.topics.op, code)
    stage.work(seconds=120)
    assert {A: ("scheduled", "")} == states(stage)
    assert 1 <= rebuilds(caplog) <= 10
    op.is_refused = False
    stage.commit(B, stage.half(B))
    op.is_refused = True
    stage.work(seconds=60)
    assert [txn_id_of(B)] == stage.visible()

    op.is_refused = False
    stage.work(seconds=400)
    assert ([txn_id_of(B), txn_id_of(A)], {}) == (stage.visible(), states(stage))


@pytest.mark.promise("P7")
@pytest.mark.parametrize(("make", "state"), [(Coordinator, "parked"), (InsistentCoordinator, "open")])
def test_without_the_pause_what_a_policy_decides_is_neither_decided_nor_parked(
    make: type[Coordinator], state: str, caplog: pytest.LogCaptureFixture
) -> None:
    stage = open_stage("rollback", make=make)
    RefusedTopic(stage, stage.topics.op, Code.TOPIC_AUTHORIZATION_FAILED)
    stage.half(A)
    with caplog.at_level(logging.WARNING, "txlayer.coordinator"):
        stage.work(seconds=AGE_S + 600)

    assert state == stage.on_doubt()[A].state
    assert (rebuilds(caplog) > 20) is (make is InsistentCoordinator)
