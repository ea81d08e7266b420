"""Answering check-backs on a real broker: two instances, limits, handlers that misbehave, asyncio, an outage."""

import threading
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest

from tests.support.arena import Arena
from tests.support.check_back import PATIENCE_S, Asker
from tests.support.waiting import wait_until
from txlayer.core.messages import COMMIT, ROLLBACK, UNKNOWN, Resolution, Source
from txlayer.producer.check_handlers import CheckRequest
from txlayer.producer.producer import TransactionalProducer

pytestmark = pytest.mark.kafka

QUESTION_COUNT = 200
QUICK_S = 2.5
"""How long a quick answer may take where the machine does much else; a slow one takes longer."""


@pytest.fixture
def asker(arena: Arena) -> Asker:
    return Asker(arena)


def made(asker: Asker, **settings: Any) -> TransactionalProducer:
    return TransactionalProducer(
        bootstrap_servers=asker.arena.servers,
        group=asker.group,
        namespace=asker.arena.namespace,
        check_session_timeout=timedelta(seconds=6),
        **settings,
    )


@pytest.mark.fault("check handler: is slow, silent, unknown, answers garbage, or changes its answer")
def test_only_a_clear_word_decides_and_every_answer_names_its_question(asker: Asker) -> None:
    said = {"commit": COMMIT, "rollback": ROLLBACK, "none": None, "text": "COMMIT", "number": 1}
    all_are_answered = threading.Event()

    def misbehaving(request: CheckRequest) -> Any:
        """Answers as the transaction's id says."""
        if request.txn_id in said:
            return said[request.txn_id]
        if request.txn_id == "slow":
            assert all_are_answered.wait(PATIENCE_S)
            return COMMIT
        raise KeyError(request.txn_id)

    with made(asker, check=misbehaving, check_timeout=timedelta(seconds=QUICK_S)) as producer:
        asker.wait_for_members(1)
        names = ("commit", "rollback", "none", "text", "number", "slow", "raises")
        asker.ask(*(asker.question(name, number=n) for n, name in enumerate(names, start=1)))
        found = {op.key.split("/")[0]: op for op in asker.wait_for(len(names))}
        stats = producer.responder_stats()
        all_are_answered.set()

    causes = {
        "none": "returned NoneType",
        "text": "returned str",
        "number": "returned int",
        "slow": "TimeoutError",
        "raises": "KeyError",
    }
    assert (COMMIT, "") == (found["commit"].resolution, found["commit"].reason)
    assert (ROLLBACK, "") == (found["rollback"].resolution, found["rollback"].reason)
    for name, cause in causes.items():
        assert (UNKNOWN, f"handler: {cause}") == (found[name].resolution, found[name].reason)
    for number, name in enumerate(names, start=1):
        op = found[name]
        assert (number, 7, 1_700_000_000_000) == (op.check_number, op.last_offset, op.born_ms)
        assert Source.CHECK is op.source
    assert stats is not None
    assert dict.fromkeys(causes.values(), 1) == stats.unknown


class Instances:
    """Two producers of one group; what each was asked."""

    def __init__(self, asker: Asker) -> None:
        self.asked: list[list[str]] = [[], []]
        self.producers = [made(asker, check=self._check(0)), made(asker, check=self._check(1))]

    def _check(self, number: int) -> Any:
        def check(request: CheckRequest) -> Resolution:
            self.asked[number].append(request.txn_id)
            return COMMIT

        return check


@pytest.fixture
def instances(asker: Asker) -> Iterator[Instances]:
    made_both = Instances(asker)
    for producer in made_both.producers:
        producer.start()
    asker.wait_for_members(2)

    def are_ready() -> bool:
        stats = [p.responder_stats() for p in made_both.producers]
        return all(s is not None and s.own_partitions for s in stats)

    wait_until(are_ready, within=PATIENCE_S, what="both have their share")
    yield made_both
    for producer in made_both.producers:
        producer.close()


def test_two_instances_answer_each_question_once(asker: Asker, instances: Instances) -> None:
    names = [f"t{n}" for n in range(QUESTION_COUNT)]
    asker.ask(*(asker.question(name, partition=n % 4) for n, name in enumerate(names)))

    found = asker.wait_for(QUESTION_COUNT)

    assert sorted(names) == sorted(op.key.split("/")[0] for op in found)
    assert sorted(names) == sorted(instances.asked[0] + instances.asked[1])
    assert all(instances.asked)
