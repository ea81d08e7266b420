"""Handlers that take a body of their own type, in consumers of every kind; over memory and over real Kafka."""

import asyncio
import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.contract.conftest import OF_HANDLERS
from tests.support.consumers import PATIENCE_S, Stage
from tests.support.waiting import wait_until
from txlayer import JSON, Message, OrderedConsumer
from txlayer.adapters.memory import MemoryKafka
from txlayer.consumer.aio import AsyncOrderedConsumer
from txlayer.consumer.context import Context, ReceivedMessage
from txlayer.core.dead_letters import dead_letter_of
from txlayer.core.messages import Undecodable
from txlayer.core.retry import RetryPolicy
from txlayer.errors import UsageError
from txlayer.testing import Stage as UserStage
from txlayer.testing import memory_access


@dataclass(frozen=True)
class Order:
    """What the handlers want."""

    cents: int
    shop: str = "corner"


NULL: Any = None
"""The value of a message without one."""


def reasons_of(stage: Stage) -> list[tuple[str, int, str]]:
    """(reason, attempts, text) of each dead letter."""
    letters = [dead_letter_of(record.headers) for record in stage.lab.read(stage.letters)]
    return [(d.reason.value, d.attempt_count, d.error_message) for d in letters if not isinstance(d, Undecodable)]


@OF_HANDLERS
@pytest.mark.fault("consumer: a deserializer cannot read a message, or the schema registry does not answer")
def test_a_body_of_another_form_is_a_dead_letter_at_once_and_its_key_goes_on(stage: Stage) -> None:
    stage.write(b'{"cents":1}', b'{"cents":"much"}', b"no json", NULL, b'{"cents":2,"shop":"market","new":0}')
    given: list[tuple[Order, bytes | None, int]] = []
    consumer: OrderedConsumer = stage.plain(retry=RetryPolicy(attempt_count_max=5, backoff_first_ms=60_000))

    @consumer.handler(stage.topic, body=Order)
    def note(order: Order, message: ReceivedMessage, context: Context) -> None:
        assert message.value is order
        given.append((order, message.raw_value, context.attempt))

    with consumer:
        stage.wait_stored(5)

    last = b'{"cents":2,"shop":"market","new":0}'
    assert [(Order(1), b'{"cents":1}', 1), (Order(2, "market"), last, 1)] == given
    assert [
        ("undecodable", 0, "not readable as Order: cents: int is needed, not str"),
        ("undecodable", 0, "not readable as Order: no JSON: Expecting value: line 1 column 1 (char 0)"),
        ("undecodable", 0, "not readable as Order: an object (Order) is needed, not null"),
    ] == reasons_of(stage)


@OF_HANDLERS
def test_coroutines_take_bodies_too_and_say_by_their_annotation_which(stage: Stage) -> None:
    stage.write(b'{"cents":1}', NULL)

    async def consume() -> list[Order | None]:
        given: asyncio.Queue[Order | None] = asyncio.Queue()
        consumer: AsyncOrderedConsumer = stage.plain(AsyncOrderedConsumer)

        @consumer.handler
        async def note(order: Order | None) -> None:
            await given.put(order)

        async with consumer:
            return [await asyncio.wait_for(given.get(), PATIENCE_S) for _ in range(2)]

    assert [Order(1), None] == asyncio.run(consume())


def note_in_file(order: Order, _message: ReceivedMessage) -> None:
    """Runs in another process, which shares no memory with the test."""
    with Path(os.environ["TXLAYER_TEST_NOTES"]).open("a", encoding="utf-8") as notes:
        notes.write(json.dumps([order.cents, os.getpid()]) + "\n")


@pytest.mark.slow
@OF_HANDLERS
def test_other_processes_read_bodies_themselves(stage: Stage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    notes = tmp_path / "notes"
    monkeypatch.setenv("TXLAYER_TEST_NOTES", str(notes))
    stage.write(b'{"cents":7}', b"no json")
    consumer = stage.plain(workers="processes", worker_count=1)
    consumer.handler(body=Order)(note_in_file)

    with consumer:
        stage.wait_stored(2)

    ((cents, pid),) = [json.loads(line) for line in notes.read_text(encoding="utf-8").splitlines()]
    assert (7, True) == (cents, pid != os.getpid())
    assert ["undecodable"] == [reason for reason, *_ in reasons_of(stage)]


def test_a_producers_codec_writes_what_handlers_of_bodies_read_each_by_its_tags() -> None:
    given: list[Any] = []
    with UserStage(memory_access(MemoryKafka())) as stage:
        topic = stage.topic("orders", consumer_group="packing")
        consumer = OrderedConsumer(group="packing", topics=[topic], start_at="earliest", **stage.consumer_options)

        @consumer.handler(tags="sale")
        def sold(order: Order) -> None:
            given.append(order)

        @consumer.handler
        def others(names: list[str], message: ReceivedMessage) -> None:
            given.append((names, message.key))

        producer = stage.producer("shop", codec=JSON)
        producer.publish([Message(topic, "k", Order(3), tags="sale"), Message(topic, "k", ["a"])])
        with pytest.raises(UsageError, match="no JSON can be made of this Stage"):
            producer.publish(Message(topic, "k", stage))

        with consumer:
            wait_until(lambda: len(given) == 2, within=PATIENCE_S, what=f"both, not {given}")

        assert [Order(3), (["a"], b"k")] == given
        assert b'{"cents":3,"shop":"corner"}' == stage.messages(topic)[0].raw_value
