"""A check handler gets what its transaction asked for, whichever producer it belongs to, on both logs."""

import asyncio
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest

from tests.contract.conftest import OF_USERS_CODE
from txlayer import (
    COMMIT,
    UNKNOWN,
    AsyncTransactionalProducer,
    AsyncTransactionMQProducer,
    CheckRequest,
    Message,
    Resolution,
    TransactionalProducer,
    TransactionMQProducer,
)
from txlayer.producer.identity import TransactionOptions
from txlayer.testing import KafkaAccess, Stage

CHECK_WITH = ("key", "tags", "headers:order-id", "query_id", "content")
ASKED: TransactionOptions = {"check_with": CHECK_WITH, "query_id": "invoice 7"}


@pytest.fixture
def stage(kafka: KafkaAccess) -> Iterator[Stage]:
    settings = {"check_immunity": timedelta(milliseconds=50), "check_interval": timedelta(milliseconds=200)}
    with Stage(kafka, settings=settings) as made:
        yield made


class Shop:
    """Says nothing when it is asked first, and commits the second time: then the coordinator has read doubt."""

    def __init__(self) -> None:
        self.requests: list[CheckRequest] = []

    def check(self, request: CheckRequest) -> Resolution:
        self.requests.append(request)
        return COMMIT if request.number > 1 else UNKNOWN

    async def check_on_loop(self, request: CheckRequest) -> Resolution:
        return self.check(request)

    def execute_local_transaction(self, _prepared: Any, _arg: Any) -> Resolution:
        return UNKNOWN

    check_local_transaction = check

    def message(self, topic: str) -> Message:
        return Message(topic, "customer-7", "bought", {"order-id": "4711", "other": "x"}, "big")

    def assert_asked(self) -> None:
        assert 1 < len(self.requests)
        for request in self.requests:
            assert (b"customer-7", "big", b"bought") == (request.key, request.tags, request.content)
            assert ((("order-id", b"4711"),), "invoice 7", ()) == (request.headers, request.query_id, request.left_out)


def test_threads(stage: Stage) -> None:
    shop, orders = Shop(), stage.topic("orders")
    producer: TransactionalProducer = stage.producer("shop", check=shop.check)

    with producer.transaction("order-1", **ASKED) as tx:
        tx.send(**shop.message(orders)._asdict())
        tx.prepare()
        tx.unknown()

    stage.assert_published(orders, txn_id="order-1")
    shop.assert_asked()


@OF_USERS_CODE
def test_rocketmq(stage: Stage) -> None:
    shop, orders = Shop(), stage.topic("orders")

    with TransactionMQProducer(
        **stage.producer_options, group="shop", listener=shop, check_with=CHECK_WITH
    ) as producer:
        producer.send_message_in_transaction(shop.message(orders), txn_id="order-1", query_id="invoice 7")
        stage.assert_published(orders, txn_id="order-1")

    shop.assert_asked()


@OF_USERS_CODE
def test_asyncio(stage: Stage) -> None:
    shop, orders = Shop(), stage.topic("orders")

    async def run() -> None:
        options = stage.producer_options
        async with AsyncTransactionalProducer(**options, group="shop", check=shop.check_on_loop) as producer:
            async with producer.transaction("order-1", **ASKED) as tx:
                tx.send(**shop.message(orders)._asdict())
                await tx.prepare()
                tx.unknown()
            await asyncio.to_thread(stage.assert_published, orders, txn_id="order-1")

    asyncio.run(run())
    shop.assert_asked()


@OF_USERS_CODE
def test_rocketmq_with_asyncio(stage: Stage) -> None:
    shop, orders = Shop(), stage.topic("orders")

    class Listener:
        async def execute_local_transaction(self, _prepared: Any, _arg: Any) -> Resolution:
            return UNKNOWN

        async def check_local_transaction(self, request: CheckRequest) -> Resolution:
            return shop.check(request)

    async def run() -> None:
        options = {**stage.producer_options, "group": "shop", "check_with": CHECK_WITH}
        async with AsyncTransactionMQProducer(listener=Listener(), **options) as producer:
            await producer.send_message_in_transaction(shop.message(orders), txn_id="order-1", query_id="invoice 7")
            await asyncio.to_thread(stage.assert_published, orders, txn_id="order-1")

    asyncio.run(run())
    shop.assert_asked()
