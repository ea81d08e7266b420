"""Whoever only looks at what is not settled comes to an end, also where a coordinator would have much to move first."""

from __future__ import annotations

import pytest

from tests.support.core_records import txn_key
from tests.support.still_coordinator import StillCoordinator
from txlayer.core.ledger.ledger import Ledger
from txlayer.operate.overview import Overview

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
    turns, forget = 0, Ledger.forget_batch

    def counted(ledger: Ledger) -> None:
        nonlocal turns
        turns += 1
        assert turns < TURNS_MAX, "the same ones are moved again and again"
        forget(ledger)

    monkeypatch.setattr(Ledger, "forget_batch", counted)
    connections = stage.kafka.connect_coordinator(stage.config, client="onlooker")

    found = [found.txn.key for found in Overview(stage.config, connections).unsettled()]

    assert sorted([held, *others]) == sorted(found)
