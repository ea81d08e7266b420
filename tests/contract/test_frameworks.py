"""`txlayer.ext.fastapi` and `txlayer.ext.faststream`: producers that live as long as an app. `django` is in integration/sql."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from datetime import timedelta
from functools import partial

import pytest
from fastapi import APIRouter, FastAPI
from faststream import FastStream, TestApp
from faststream.confluent import KafkaBroker, KafkaMessage, TestKafkaBroker
from httpx import ASGITransport, AsyncClient, Response

from txlayer import (
    AsyncTransactionalProducer,
    ConfigError,
    LifecycleError,
    Message,
    OutcomeUnknownError,
    RetriableError,
    RollbackRequiredError,
    TransactionalProducer,
)
from txlayer.adapters.memory import MemoryKafka
from txlayer.ext import fastapi, faststream
from txlayer.testing import Stage, memory_access


@pytest.fixture
def stage() -> Iterator[Stage]:
    with Stage(memory_access(MemoryKafka())) as made:
        yield made


def ask(app: FastAPI, *paths: str) -> list[Response]:
    """The answers of an app that is started and ended."""

    async def asked() -> list[Response]:
        transport = ASGITransport(app, raise_app_exceptions=False)
        async with app.router.lifespan_context(app), AsyncClient(transport=transport, base_url="http://shop") as client:
            return [await client.post(path) for path in paths]

    return asyncio.run(asked())


# --- FastAPI ----------------------------------------------------------------------------------------------------------


def test_an_app_has_a_producer_of_its_own_at_each_start_inside_its_own_lifespan(stage: Stage) -> None:
    topic = stage.topic("orders")
    events: list[str] = []
    made: list[AsyncTransactionalProducer] = []

    @asynccontextmanager
    async def lifespan(_app: FastAPI) -> AsyncIterator[None]:
        events.append("begin")
        yield
        with pytest.raises(LifecycleError, match="closed"):
            await made[-1].publish(Message(topic, value="late"))
        events.append("end")

    def make_producer() -> AsyncTransactionalProducer:
        events.append("make")
        made.append(AsyncTransactionalProducer(group="shop", **stage.producer_options))
        return made[-1]

    app, router = FastAPI(lifespan=lifespan), APIRouter()
    fastapi.install(app, make_producer)

    @router.post("/{value}")
    async def send(value: str, producer: fastapi.Producer) -> None:
        await producer.publish(Message(topic, value=value))

    app.include_router(router)

    statuses = [answer.status_code for path in ("/a", "/b") for answer in ask(app, path)]

    assert [200, 200] == statuses
    assert ["begin", "make", "end"] * 2 == events
    stage.wait_until_settled()
    assert [b"a", b"b"] == [message.raw_value for message in stage.messages(topic)]


def test_plain_endpoints_take_a_producer_for_threads(stage: Stage) -> None:
    topic = stage.topic("orders")
    app = FastAPI()
    fastapi.install(app, lambda: TransactionalProducer(group="shop", **stage.producer_options))

    @app.post("/")
    def send(producer: fastapi.BlockingProducer) -> str:
        producer.publish(Message(topic, value="a"))
        return producer.group

    (answer,) = ask(app, "/")

    assert "shop" == answer.json()
    with pytest.raises(LifecycleError, match="closed"):
        app.state.txlayer_producer.publish(Message(topic, value="late"))


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (RetriableError("not sent"), 503),
        (OutcomeUnknownError("perhaps"), 503),
        (RollbackRequiredError("lost"), 503),
        (ConfigError("wrong"), 500),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_client_may_repeat_what_did_not_happen(stage: Stage, error: Exception, status: int) -> None:
    app = FastAPI()
    fastapi.install(
        app,
        partial(AsyncTransactionalProducer, group="shop", **stage.producer_options),
        retry_after=timedelta(seconds=7),
    )

    @app.post("/")
    async def fail() -> None:
        raise error

    (answer,) = ask(app, "/")

    assert (status, "7" if status == 503 else None) == (answer.status_code, answer.headers.get("Retry-After"))
    assert str(error) not in answer.text


# --- FastStream -------------------------------------------------------------------------------------------------------


def test_handlers_take_the_apps_producer_and_the_inbox_knows_a_message_again(stage: Stage) -> None:
    topic = stage.topic("points")
    broker = KafkaBroker("127.0.0.1:9092")
    app = FastStream(broker)
    made: list[AsyncTransactionalProducer] = []
    keys: list[str] = []

    def make_producer() -> AsyncTransactionalProducer:
        made.append(AsyncTransactionalProducer(group="loyalty", **stage.producer_options))
        return made[-1]

    faststream.install(app, make_producer)

    @broker.subscriber("orders", group_id="loyalty", **faststream.COMMITTED)
    async def handle(value: str, message: KafkaMessage, producer: faststream.Producer) -> None:
        keys.append(faststream.message_key(message))
        await producer.publish(Message(topic, value=value))

    headers = {"txl-id": "order-1", "txl-origin": "3:17|0/1|1700000000000"}

    async def hear() -> None:
        async with TestKafkaBroker(broker), TestApp(app):
            await broker.publish("a", "orders", headers=headers)
            await broker.publish("b", "orders")
        with pytest.raises(LifecycleError, match="closed"):
            await made[-1].publish(Message(topic, value="late"))

    for _ in range(2):
        asyncio.run(hear())

    assert 2 == len(made)
    assert ["txn:order-1/1700000000000/0"] * 2 == keys[::2]
    assert all(key.startswith("at:orders/") for key in keys[1::2])
    stage.wait_until_settled()
    assert [b"a", b"b"] * 2 == [message.raw_value for message in stage.messages(topic)]
