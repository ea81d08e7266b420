"""Answering check-backs on a real broker: two instances, limits, handlers that misbehave, asyncio, an outage."""

import asyncio
import threading
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest

from tests.support.arena import Arena
from tests.support.check_back import PATIENCE_S, Asker
from tests.support.waiting import wait_until
from txlayer.core.messages import COMMIT, ROLLBACK, UNKNOWN, Message, Resolution, Source
from txlayer.producer.aio import AsyncTransactionalProducer
from txlayer.producer.check_handlers import CheckRequest
from txlayer.producer.producer import TransactionalProducer
from txlayer.producer.rocketmq import PreparedMessage, TransactionMQProducer

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


def test_a_coroutine_function_answers_on_its_loop_while_that_does_other_things(asker: Asker) -> None:
    loops: list[bool] = []

    async def check(request: CheckRequest) -> Resolution:
        loops.append(threading.current_thread() is threading.main_thread())
        await asyncio.sleep(10 * QUICK_S if request.txn_id == "slow" else 0)
        return ROLLBACK

    async def run() -> None:
        async with AsyncTransactionalProducer(
            bootstrap_servers=asker.arena.servers,
            group=asker.group,
            namespace=asker.arena.namespace,
            check=check,
            check_timeout=timedelta(seconds=QUICK_S),
        ):
            loop = asyncio.get_running_loop()
            await loop.run_in_executor(None, asker.wait_for_members, 1)
            asker.ask(*(asker.question(name) for name in ("slow", "a", "b")))
            await loop.run_in_executor(None, asker.wait_for, 3)

    asyncio.run(run())

    found = {op.key.split("/")[0]: (op.resolution, op.reason) for op in asker.answers()}
    assert {"slow": (UNKNOWN, "handler: TimeoutError"), "a": (ROLLBACK, ""), "b": (ROLLBACK, "")} == found
    assert [True] * 3 == loops


class Shop:
    """A listener as in RocketMQ, whose local transactions all stay unknown."""

    def __init__(self) -> None:
        self.done: dict[str, Any] = {}

    def execute_local_transaction(self, prepared: PreparedMessage, arg: Any) -> Resolution | None:
        self.done[prepared.txn_id] = arg
        return UNKNOWN

    def check_local_transaction(self, request: CheckRequest) -> Resolution:
        return COMMIT if request.txn_id in self.done else ROLLBACK


def test_a_listener_does_local_transactions_and_answers_for_them(asker: Asker) -> None:
    shop = Shop()
    with TransactionMQProducer(
        listener=shop, bootstrap_servers=asker.arena.servers, group=asker.group, namespace=asker.arena.namespace
    ) as producer:
        asker.wait_for_members(1)
        order = Message(asker.arena.targets[0], b"k", b"v")
        result = producer.send_message_in_transaction(order, {"order": 7})
        asker.ask(asker.question(result.txn_id, nonce=result.nonce))
        asker.ask(asker.question("never-begun"))
        found = {op.key.split("/")[0]: op.resolution for op in asker.wait_for(3) if op.check_number}

    assert UNKNOWN is result.resolution
    assert {result.txn_id: {"order": 7}} == shop.done
    assert {result.txn_id: COMMIT, "never-begun": ROLLBACK} == found
