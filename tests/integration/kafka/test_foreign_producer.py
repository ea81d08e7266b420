"""A producer in Java, which knows txlayer from docs/reference/vectors.json alone, against our coordinator."""

import json
import time
from collections.abc import Sequence
from typing import Any

import pytest

from tests.conftest import LOCAL_CONFIG, Broker
from tests.support.arena import Arena
from tests.support.broker import unique_name
from tests.support.java_client import run_java
from tests.support.logs import Seen
from tests.support.vectors import FILE
from tests.support.waiting import wait_until
from txlayer.testing.stage import RunningCoordinator

pytestmark = pytest.mark.kafka

GROUP = "foreign"
HOUR_MS = 3_600_000


def test_it_computes_every_vector(broker: Broker) -> None:  # noqa: ARG001 - it skips without Java
    *differing, last = run_java(LOCAL_CONFIG, "ForeignProducer.java", "vectors", str(FILE)).splitlines()

    assert [] == differing
    checked, wrong = int(last.split()[1]), int(last.split()[3])
    assert (True, 0) == (checked > 120, wrong)


def raw(text: str | None) -> dict[str, str] | None:
    return None if text is None else {"text": text, "hex": text.encode().hex()}


def message(topic: str, key: str | None, value: str, **more: Any) -> dict[str, Any]:
    absent: dict[str, Any] = {"headers": [], "partition": None, "timestamp_ms": None, "deliver_at_ms": None}
    return {"topic": topic, "key": raw(key), "value": raw(value), **absent, **more}


def transaction(txn_id: str, ends: Sequence[str], *messages: dict[str, Any], **more: Any) -> dict[str, Any]:
    named = {"txn_id": txn_id, "nonce": "5f3a90c2", "producer_group": GROUP, "born_ms": int(time.time() * 1_000)}
    order = {"ordering_key": "of messages", "order": "commit", "immunity_ms": None}
    return {"input": {**named, **order, **more, "messages": messages}, "ends": ends}


@pytest.mark.promise("P1", "P2", "P3", "P5", "P6", "P7")
def test_what_it_commits_arrives_once_and_what_it_leaves_is_asked_about(
    arena: Arena, coordinator: RunningCoordinator
) -> None:
    assert coordinator.failure is None
    first, second = arena.targets[:2]
    soon_ms = int(time.time() * 1_000) + 8_000
    both, away, later, never, *left = (unique_name("java") for _ in range(7))
    moved, asked_commit, asked_rollback = left
    ordered = [unique_name("java") for _ in range(10)]
    plan = {
        "producer_group": GROUP,
        "transactions": [
            transaction(both, ["commit"], message(first, "a", "1"), message(second, "b", "2")),
            transaction(away, ["rollback"], message(first, "a", "rolled back")),
            *(
                transaction(txn_id, ["commit"], message(first, None, txn_id), ordering_key=raw("Zürich"))
                for txn_id in ordered
            ),
            transaction(later, ["commit"], message(first, "l", "later", deliver_at_ms=soon_ms)),
            transaction(never, ["commit", "cancel"], message(first, "l", "cancelled", deliver_at_ms=soon_ms + HOUR_MS)),
            transaction(moved, ["commit"], message(first, "h", "headers", headers=[{"name": "h", "value": raw("ä")}])),
            transaction(asked_commit, [], message(first, "q", "asked"), immunity_ms=500),
            transaction(asked_rollback, [], message(first, "q", "asked and rolled back"), immunity_ms=500),
        ],
        "answers": {asked_commit: "commit", asked_rollback: "rollback"},
    }

    lines = run_java(
        LOCAL_CONFIG,
        "ForeignProducer.java",
        *("run", str(FILE), arena.servers, arena.namespace),
        told=json.dumps(plan, ensure_ascii=True),
    ).splitlines()

    assert {f"answered {asked_commit} commit", f"answered {asked_rollback} rollback"} <= {
        line.rpartition(" ")[0] for line in lines
    }
    for txn_id, count in ((both, 2), (later, 1), (moved, 1), (asked_commit, 1), *((one, 1) for one in ordered)):
        arena.wait_until_visible(txn_id, count=count)
    arena.wait_until_applied(within=30)
    found = {txn_id: arena.visible(txn_id) for txn_id in (both, away, later, never, asked_commit, asked_rollback)}
    assert [2, 0, 1, 0, 1, 0] == [len(seen) for seen in found.values()]
    assert found[later][0].timestamp_ms >= soon_ms
    in_order = [record for txn_id in ordered for record in arena.visible(txn_id)]
    assert 1 == len({record.partition for record in in_order})
    assert sorted(in_order, key=_offset) == in_order
    assert ("h", "ä".encode()) in arena.visible(moved)[0].headers
    wait_until(lambda: not arena.doubt().summaries, within=30, what="nothing is left on doubt")
    assert [] == arena.verdict().findings


def _offset(record: Seen) -> int:
    return record.offset
