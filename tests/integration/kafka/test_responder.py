"""Answering check-backs on a real broker: two instances of a producer group."""

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest

from tests.support.arena import Arena
from tests.support.check_back import PATIENCE_S, Asker
from tests.support.waiting import wait_until
from txlayer.core.messages import COMMIT, Resolution
from txlayer.producer.check_handlers import CheckRequest
from txlayer.producer.producer import TransactionalProducer

pytestmark = pytest.mark.kafka

QUESTION_COUNT = 200


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
