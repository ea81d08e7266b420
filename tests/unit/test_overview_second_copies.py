"""Whoever only looks at what is not settled comes to an end, also where a coordinator would have much to move first."""

import pytest

from tests.support.core_records import options, txn_key
from tests.support.still_coordinator import StillCoordinator
from txlayer.core.ledger.ledger import Ledger
from txlayer.core.ledger.transitions import COMMITTING
from txlayer.core.messages import HalfOptions, OrderMode
from txlayer.operate.unsettled import Overview

TURNS_MAX = 100


@pytest.mark.fault("data: one id is used twice")
@pytest.mark.promise("P7")
def test_a_look_ends_where_a_second_copy_drives_more_out_of_half_than_a_batch_takes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("txlayer.core.ledger.ledger.RELEASE_COUNT_MAX", 3)
    stage = StillCoordinator()
    held, *others = [txn_key(f"t-{number}") for number in range(8)]
    stage.commit(held, stage.half(held, topic="missing"))
    stage.work(seconds=2)
    assert {held} == stage.on_doubt().keys()
    for key in others:
        stage.half(key)
    stage.half(held, topic="missing")  # librdkafka #4953
    limit_turns(monkeypatch)
    connections = stage.kafka.connect_coordinator(stage.config, client="onlooker")

    found = [found.txn.key for found in Overview(connections).unsettled()]

    assert sorted([held, *others]) == sorted(found)


@pytest.mark.promise("P7")
def test_a_look_ends_where_more_of_one_ordering_key_wait_than_a_batch_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("txlayer.core.ledger.ledger.KEY_IN_HALF_MAX", 3)
    stage = StillCoordinator()
    first, *others = [txn_key(f"t-{number}") for number in range(8)]
    ours = options("customer", order=OrderMode.PREPARE)
    at = {key: stage.half(key, options=ours) for key in (first, *others)}
    for key in (*others, first):
        stage.commit(key, at[key])
    limit_turns(monkeypatch)
    connections = stage.kafka.connect_coordinator(stage.config, client="onlooker")

    found = {found.txn.key: found.state for found in Overview(connections).unsettled()}

    assert dict.fromkeys([first, *others], COMMITTING) == found


def test_one_whose_first_part_is_committed_and_not_forwarded_yet_is_found_once() -> None:
    stage, key = StillCoordinator(), txn_key("a")
    stage.half(key, count=2)
    due_ms = stage.world.now_ms() + 60_000
    stage.commit(key, stage.half(key, index=1, count=2, options=HalfOptions(deliver_at_ms=due_ms)))
    connections = stage.kafka.connect_coordinator(stage.config, client="onlooker")

    found = [(found.txn.key, found.state) for found in Overview(connections).unsettled()]

    assert [(key, "scheduled")] == found


def limit_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    turns, forget = 0, Ledger.forget_batch

    def counted(ledger: Ledger) -> None:
        nonlocal turns
        turns += 1
        assert turns < TURNS_MAX, "the same ones are moved again and again"
        forget(ledger)

    monkeypatch.setattr(Ledger, "forget_batch", counted)
