"""Copies of dead letters in another topic: each once for its request, also after a crash, over both logs."""

from __future__ import annotations

from typing import Any

import pytest

from tests.contract.clients import PATIENCE_S
from tests.support.broker import unique_name
from tests.support.dead_letter_stage import FakeRecord, Stage, make_stage
from tests.support.lab import Lab
from tests.support.waiting import wait_until
from txlayer.adapters.ports import TransactionalWriter
from txlayer.core.dead_letters import ReplayKind, ReplayOutcome, ReplayRecord, decode_replay
from txlayer.core.messages import Origin
from txlayer.errors import LifecycleError
from txlayer.operate.dead_letters import DeadLetterPlace
from txlayer.operate.requests import BATCH_COUNT_MAX, Copy, Republisher, transactional_id
from txlayer.runtime.kafka_transactions import KafkaTransactions


class KilledError(Exception):
    """The process is gone at this very place."""


class _Doomed:
    """A writer that is killed before its n-th commit."""

    def __init__(self, inner: TransactionalWriter, *, killed_at: int) -> None:
        self._inner = inner
        self._left = killed_at

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def commit(self, *, timeout_s: float) -> None:
        self._left -= 1
        if self._left < 0:
            raise KilledError
        self._inner.commit(timeout_s=timeout_s)


class _Connections:
    def __init__(self, stage: Stage, killed_at: int) -> None:
        self._stage = stage
        self._killed_at = killed_at

    def make_writer(self, transactional_id: str, *, batch_bytes_max: int) -> Any:
        inner = self._stage.connections.make_writer(transactional_id, batch_bytes_max=batch_bytes_max)
        return _Doomed(inner, killed_at=self._killed_at)


def republisher(stage: Stage, to: str, request_id: str, *, killed_at: int = 1_000) -> Republisher:
    transactions = KafkaTransactions(
        _Connections(stage, killed_at), name=transactional_id(stage.group, request_id), recycle_after_s=600.0
    )
    made = Republisher(transactions, group=stage.group, request_id=request_id, to=to, text="zoe: mended")
    made.start()
    return made


def copies(stage: Stage, *offsets: int) -> list[Copy]:
    return [
        Copy(
            DeadLetterPlace(stage.topic, 0, offset),
            FakeRecord(b"k", b"v%d" % offset, [("txl-dlq", b"x"), ("a", b"b")], Origin("t", 0, 0)),
        )
        for offset in offsets
    ]


def wait_for(lab: Lab, topic: str, expected: list[bytes]) -> None:
    wait_until(
        lambda: expected == [each.value for each in lab.read(topic)], within=PATIENCE_S, what=f"{expected} in {topic}"
    )


@pytest.fixture
def stage(lab: Lab) -> Stage:
    made = make_stage(lab)
    made.reader.close()
    return made


def test_a_copy_and_the_record_of_it_are_one(lab: Lab, stage: Stage) -> None:
    to = lab.topic()
    told: list[int] = []

    republisher(stage, to, "r1").publish(copies(stage, 3, 4), on_progress=told.append)

    wait_for(lab, to, [b"v3", b"v4"])
    assert [("a", b"b"), ("txl-replay", b"r1/0:3")] == list(lab.read(to)[0].headers)
    expected = ReplayRecord(ReplayKind.RESULT, "r1", 3, ReplayOutcome.REPUBLISHED, f"{to}: zoe: mended")
    said = wait_until(lambda: lab.read(stage.replays), within=PATIENCE_S, what="the record of it")
    assert expected == decode_replay(said[0].value)
    assert [2] == told


def test_a_run_that_was_killed_is_taken_up_by_the_same_request(lab: Lab, stage: Stage) -> None:
    to, request_id = lab.topic(), unique_name("r")
    killed = republisher(stage, to, request_id, killed_at=1)
    many = copies(stage, *range(BATCH_COUNT_MAX + 5))
    with pytest.raises(KilledError):
        killed.publish(many)
    with pytest.raises(LifecycleError):
        killed.publish(many)

    successor = republisher(stage, to, request_id)
    done = {record.dead_letter_offset for record in map(_record, lab.read(stage.replays))}
    successor.publish([each for each in many if each.place.offset not in done])

    assert set(range(BATCH_COUNT_MAX)) == done
    wait_for(lab, to, [b"v%d" % n for n in range(BATCH_COUNT_MAX + 5)])


def test_a_rate_is_kept_in_small_kafka_transactions(lab: Lab, stage: Stage) -> None:
    now, to = [0.0], lab.topic()
    pauses: list[float] = []

    def pause(seconds: float) -> None:
        pauses.append(seconds)
        now[0] += seconds

    transactions = KafkaTransactions(stage.connections, name=unique_name("id"))
    slow = Republisher(
        transactions, group=stage.group, request_id="r", to=to, text="", clock=lambda: now[0], pause=pause
    )
    slow.publish(copies(stage, *range(10)), rate_max=4.0)

    assert 3 == transactions.count
    assert [1.0, 1.0] == pauses
    transactions.close()


def _record(seen: Any) -> ReplayRecord:
    found = decode_replay(seen.value)
    assert isinstance(found, ReplayRecord)
    return found
