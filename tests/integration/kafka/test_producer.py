"""The producers on a real broker: what they store, and how they are used."""

import asyncio

import pytest

from tests.support.arena import Arena
from tests.support.broker import unique_name
from tests.support.producers import GROUP, halves, made_for, ops, resolutions
from txlayer.core import codec
from txlayer.core.ledger.transitions import TxnState
from txlayer.core.messages import COMMIT, ROLLBACK, HalfHeader, HalfOptions, Message, OpMessage, OrderMode
from txlayer.core.partitions import half_partition, key_hash, murmur2
from txlayer.producer.aio import AsyncTransactionalProducer
from txlayer.producer.producer import TransactionalProducer

pytestmark = pytest.mark.kafka


# --- what is stored ---------------------------------------------------------------------------------------------------


def test_the_bytes_on_the_topics_are_those_of_the_codec(arena: Arena, producer: TransactionalProducer) -> None:
    txn_id = unique_name("order")
    orders, loyalty = arena.targets
    with producer.transaction(txn_id, ordering_key="customer-7", order="prepare") as tx:
        tx.send(orders, key="customer-7", value="ä", headers=[("h", b"1"), ("h", None)], tags="TagA")
        tx.send(loyalty, value=b"", partition=1, timestamp=1_700_000_000_000)
        tx.send(loyalty)
        tx.prepare()
    result = tx.result(30)

    partition = half_partition(ordering_key=b"customer-7", txn_id=txn_id, partition_count=4)
    (first, born), (second, _), (third, _) = halves(arena, txn_id)
    key = f"{txn_id}/{result.nonce}"
    options = HalfOptions(key_hash(b"customer-7"), OrderMode.PREPARE)
    expected = HalfHeader(key, GROUP, orders, 0, 3, born.born_ms, options)
    assert (partition, b"customer-7", "ä".encode()) == (first.partition, first.key, first.value)
    assert [("h", b"1"), ("h", None), ("tags", b"TagA"), ("txl", codec.encode_half_header(expected))] == first.headers
    placed = options._replace(partition=1, timestamp_ms=1_700_000_000_000)
    expected = HalfHeader(key, GROUP, loyalty, 1, 3, born.born_ms, placed)
    assert (None, b"") == (second.key, second.value)
    assert [("txl", codec.encode_half_header(expected))] == second.headers
    by_key = options._replace(key_murmur=murmur2(b"customer-7"))
    expected = HalfHeader(key, GROUP, loyalty, 2, 3, born.born_ms, by_key)
    assert (None, None) == (third.key, third.value)
    assert [("txl", codec.encode_half_header(expected))] == third.headers
    assert [first.offset, first.offset + 1, first.offset + 2] == [r.offset for r in (first, second, third)]

    ((record, op),) = ops(arena, txn_id)
    line = codec.encode_op(OpMessage(COMMIT, key, GROUP, third.offset, op.born_ms))
    assert (partition, None, codec.encode_ops([line]), []) == (
        record.partition,
        record.key,
        record.value,
        record.headers,
    )
    assert (partition, third.offset, record.offset) == (
        result.half_partition,
        result.last_half_offset,
        result.op_offset,
    )


def test_every_way_of_sending_stores_the_same_bytes(arena: Arena, producer: TransactionalProducer) -> None:
    """By a block, by publish, pipelined in the plain form and in the general one, and from asyncio."""
    orders = arena.targets[0]
    plain = Message(orders, b"k", b"v")
    with producer.transaction() as tx:
        tx.send(orders, key=b"k", value=b"v")
        tx.prepare()
    results = [
        tx.result(30),
        producer.publish(plain),
        producer.submit(plain).result(30),
        producer.submit([plain._replace(value="v", key="k")]).result(30),
    ]

    async def from_asyncio() -> None:
        async with AsyncTransactionalProducer(
            bootstrap_servers=arena.servers, group=GROUP, namespace=arena.namespace
        ) as twin:
            results.append(await twin.publish(plain))
            async with twin.transaction() as one:
                one.send(orders, key=b"k", value=b"v")
                await one.prepare()
            results.append(await one.result(30))

    asyncio.run(from_asyncio())

    seen = set()
    for result in results:
        ((half, header),) = halves(arena, result.txn_id)
        ((_, op),) = ops(arena, result.txn_id)
        assert (half.offset, half.offset) == (op.last_offset, result.last_half_offset)
        key = f"{result.txn_id}/{result.nonce}"
        raw = codec.half_header_of(half.headers) or b""
        seen.add(
            (
                half.key,
                half.value,
                len(half.headers),
                raw.replace(key.encode(), b"KEY").replace(str(header.born_ms).encode(), b"BORN"),
                op._replace(key="KEY", last_offset=0, born_ms=0),
            )
        )
    assert 1 == len(seen)


# --- how they are used ------------------------------------------------------------------------------------------------


def test_close_loses_nothing_of_what_was_submitted(arena: Arena) -> None:
    txn_id = unique_name("bulk")
    producer = made_for(arena)
    futures = [producer.submit(Message(arena.targets[0], b"k", str(n)), txn_id=txn_id) for n in range(3_000)]
    producer.close()

    assert all(future.done() for future in futures)
    assert [COMMIT] * 3_000 == resolutions(arena, txn_id)
    assert 3_000 == len(halves(arena, txn_id))


def test_a_thousand_tasks_share_one_asyncio_producer(arena: Arena) -> None:
    txn_id = unique_name("tasks")

    async def run() -> None:
        async with AsyncTransactionalProducer(
            bootstrap_servers=arena.servers, group=GROUP, namespace=arena.namespace, in_flight_max=300
        ) as producer:

            async def work(number: int) -> None:
                async with producer.transaction(txn_id) as tx:
                    tx.send(arena.targets[0], key=str(number), value=b"v")
                    await tx.prepare()
                    if number % 10 == 9:
                        tx.rollback()

            await asyncio.gather(*(work(n) for n in range(1_000)))
            published = [producer.publish(Message(arena.targets[1], b"k", b"v")) for _ in range(100)]
            assert {COMMIT} == {r.resolution for r in await asyncio.gather(*published)}
            assert 1_000 == len(await producer.status(txn_id))

    asyncio.run(run())
    said = resolutions(arena, txn_id)
    assert (900, 100) == (said.count(COMMIT), said.count(ROLLBACK))


@pytest.mark.fault("producer: is frozen, and goes on after another instance decided")
def test_status_tells_what_became_of_a_transaction(arena: Arena, producer: TransactionalProducer) -> None:
    txn_id, keyed = unique_name("order"), unique_name("keyed")
    producer.publish(Message(arena.targets[0], b"k", b"1"), txn_id=txn_id)
    with producer.transaction(txn_id) as tx:
        tx.send(arena.targets[0], value="2")
        tx.send(arena.targets[1], value="3")
        tx.prepare()
        (committed, undecided) = producer.status(txn_id)
        tx.rollback()
    tx.result(30)
    producer.publish(Message(arena.targets[0]), txn_id=keyed, ordering_key="c")

    assert (TxnState.COMMITTED, 1) == (committed.state, committed.message_count)
    assert (TxnState.OPEN, 2, tx.nonce) == (undecided.state, undecided.message_count, undecided.nonce)
    assert [TxnState.COMMITTED, TxnState.ROLLED_BACK] == [history.state for history in producer.status(txn_id)]
    (history,) = producer.status(keyed)
    assert [arena.targets[0]] == [half.topic for half in history.half_records]
    assert [] == producer.status(unique_name("nobody"))
