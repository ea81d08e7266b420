"""The ordering key of a transaction that names none: the key of its messages, where all have the same one (P6)."""

import asyncio
from typing import Any

import pytest

from tests.support.producer_stage import ProducerStage
from txlayer.adapters.memory.log import MemoryRecord
from txlayer.core import codec
from txlayer.core.messages import HalfHeader, HalfOptions, Message, OrderMode
from txlayer.core.partitions import half_partition, key_hash
from txlayer.errors import UsageError
from txlayer.producer.aio import AsyncTransactionalProducer

HALF = "txlayer.half"
KEYED, OTHER, KEYLESS = (Message("orders", key, b"v") for key in (b"anna", b"ben", None))


def options_of(record: MemoryRecord) -> HalfOptions:
    header = codec.decode_half_header(dict(record.headers() or ())["txl"] or b"")
    assert isinstance(header, HalfHeader)
    return header.options


def partition_of(key: bytes, stage: ProducerStage) -> int:
    return half_partition(
        ordering_key=key, txn_id="", partition_count=stage.producer()._started().identity._partition_count
    )


@pytest.mark.promise("P6")
@pytest.mark.parametrize(
    "messages",
    [
        [KEYED],
        [Message("orders", "anna", b"v")],
        [KEYED, Message("stock", "anna", b"w"), KEYED._replace(partition=0)],
        [Message("orders", bytearray(b"anna"), b"v")],  # type: ignore[arg-type]  # it is taken
    ],
    ids=["bytes", "text", "several", "buffer"],
)
@pytest.mark.parametrize("way", ["publish", "submit", "named", "block"])
def test_the_key_that_all_messages_have_orders_them(stage: ProducerStage, messages: list[Message], way: str) -> None:
    producer = stage.producer()
    for _ in range(2):
        if way == "publish":
            producer.publish(messages)
        elif way == "submit":
            producer.submit(messages[0] if len(messages) == 1 else messages).result(10)
        elif way == "named":
            producer.publish(messages, txn_id="order-1")
        else:
            with producer.transaction() as tx:
                for message in messages:
                    tx.send(message.topic, key=message.key, value=message.value)
                tx.prepare()

    records = stage.writer.of(HALF)
    assert 2 * len(messages) == len(records)
    assert {key_hash(b"anna")} == {options_of(record).key_hash for record in records}
    assert {partition_of(b"anna", stage)} == {record.partition() for record in records}


@pytest.mark.parametrize(
    "messages",
    [[KEYLESS], [KEYED, OTHER], [KEYED, KEYLESS], [KEYLESS, KEYED]],
    ids=["none", "two", "one and none", "none and one"],
)
def test_without_one_key_there_is_no_order(stage: ProducerStage, messages: list[Message]) -> None:
    stage.producer().publish(messages)

    assert {None} == {options_of(record).key_hash for record in stage.writer.of(HALF)}


@pytest.mark.parametrize("wish", [{"ordering_key": None}, {"ordering_key": "till-3"}])
def test_what_is_said_goes_before_the_messages_key(stage: ProducerStage, wish: Any) -> None:
    named = wish["ordering_key"]
    producer = stage.producer()
    producer.publish(KEYED, **wish)
    producer.publish([KEYED, KEYED], **wish)
    with producer.transaction(**wish) as tx:
        tx.send("orders", key=b"anna", value=b"v")
        tx.prepare()

    expected = None if named is None else key_hash(named.encode())
    assert {expected} == {options_of(record).key_hash for record in stage.writer.of(HALF)}


def test_prepare_order_takes_the_messages_key_and_needs_one(stage: ProducerStage) -> None:
    producer = stage.producer()
    producer.publish(KEYED, order="prepare")

    (record,) = stage.writer.of(HALF)
    assert (key_hash(b"anna"), OrderMode.PREPARE) == options_of(record)[:2]
    with pytest.raises(UsageError, match="ordering_key"):
        producer.publish(KEYLESS, order="prepare")
    with pytest.raises(UsageError, match="order is"):
        producer.transaction(order="sideways")
    assert 1 == len(stage.writer.of(HALF))


def test_a_wrong_key_is_told_as_what_it_is(stage: ProducerStage) -> None:
    for key in (7, "\udc80"):
        with pytest.raises(UsageError, match="key"):
            stage.producer().publish(Message("orders", key, b"v"))  # type: ignore[arg-type]  # the mistake


def test_the_one_for_asyncio_does_the_same(stage: ProducerStage) -> None:
    async def main() -> None:
        async with AsyncTransactionalProducer(
            bootstrap_servers="127.0.0.1:9", group="g", connect=stage.connect
        ) as producer:
            await producer.publish(KEYED)
            await producer.publish(KEYED, ordering_key=None)
            async with producer.transaction() as tx:
                tx.send("orders", key="anna", value=b"v")
                await tx.prepare()

    asyncio.run(main())

    anna = key_hash(b"anna")
    assert [anna, None, anna] == [options_of(record).key_hash for record in stage.writer.of(HALF)]
