"""What the producers refuse on a real broker, before anything is stored."""

from typing import Any

import pytest
from confluent_kafka import Producer

from tests.support.arena import Arena
from tests.support.broker import create_topic, unique_name
from tests.support.producers import GROUP, half_end, halves
from tests.support.waiting import wait_until
from txlayer.core import codec
from txlayer.core.messages import COMMIT, Message
from txlayer.errors import (
    ForbiddenTopicError,
    RefusedRecordError,
    ReservedHeaderError,
    TopicMismatchError,
    TxLayerError,
    UsageError,
)
from txlayer.producer.producer import TransactionalProducer

pytestmark = pytest.mark.kafka


# --- what is refused --------------------------------------------------------------------------------------------------


def test_nothing_is_stored_of_what_is_refused(arena: Arena, producer: TransactionalProducer) -> None:
    topic = arena.targets[0]
    good = Message(topic, b"k", b"v")
    refused: list[tuple[Message, type[TxLayerError]]] = [
        (Message(unique_name("nowhere")), ForbiddenTopicError),
        (Message(arena.topics.half), ForbiddenTopicError),
        (Message(arena.topics.op), ForbiddenTopicError),
        (Message("__consumer_offsets"), ForbiddenTopicError),
        (Message(f"{GROUP}.{topic}.dlq"), ForbiddenTopicError),
        (Message("a b"), ForbiddenTopicError),
        (Message(topic, headers={"txl": b""}), ReservedHeaderError),
        (Message(topic, value=b"x" * 1_048_588), RefusedRecordError),
        (Message(topic, partition=4), RefusedRecordError),
        (Message(topic, value=7), UsageError),
    ]
    before = half_end(arena)

    for bad, error in refused:
        for messages in ([bad], [good, bad]):
            with pytest.raises(error):
                producer.publish(messages)
            with pytest.raises(error), producer.transaction() as tx:  # noqa: PT012 - the block is the subject
                for m in messages:
                    tx.send(**m._asdict())
                tx.prepare()
    with pytest.raises(UsageError):
        producer.publish(good, txn_id="a b")
    assert before == half_end(arena)


def test_ten_thousand_messages_are_one_transaction_and_one_more_is_refused(
    arena: Arena, producer: TransactionalProducer
) -> None:
    messages = [Message(arena.targets[n % 2], b"k", str(n)) for n in range(10_000)]

    result = producer.publish(messages, txn_id=unique_name("large"))
    stored = halves(arena, result.txn_id)
    assert list(range(10_000)) == [header.index for _, header in stored]
    assert {10_000} == {header.count for _, header in stored}
    assert stored[-1][0].offset == result.last_half_offset
    with pytest.raises(UsageError, match="10001 messages"):
        producer.publish([*messages, messages[0]])


def test_the_largest_message_that_passes_is_accepted_by_its_topic(
    arena: Arena, producer: TransactionalProducer
) -> None:
    topic = create_topic(arena.servers, unique_name("small"), config={"max.message.bytes": "10000"})
    headers: list[tuple[str, bytes | str | None]] = [("header", b"value"), ("other", None)]
    low, high = 0, 20_000
    while low + 1 < high:  # the largest value that passes
        size = (low + high) // 2
        try:
            producer.submit(Message(topic, b"k", b"x" * size, headers=headers))
            low = size
        except RefusedRecordError:
            high = size

    origin = codec.encode_origin(partition=999, offset=10**15, index=9_999, count=10_000, born_ms=1_700_000_000_000)
    forwarded = [*headers, ("txl-id", b"i" * 128), ("txl-origin", origin.encode())]
    failed: list[Any] = []
    plain = Producer({"bootstrap.servers": arena.servers, "acks": "all"})
    plain.produce(topic, b"x" * low, b"k", headers=forwarded, on_delivery=lambda error, _: failed.append(error))
    assert 0 == plain.flush(30)
    assert [None] == failed
    assert 9_500 < low < 10_000


def test_a_topic_that_grew_is_noticed(arena: Arena, producer: TransactionalProducer) -> None:
    from confluent_kafka.admin import AdminClient, NewPartitions  # type: ignore[attr-defined] # its stub forgets NewPartitions

    topic = create_topic(arena.servers, unique_name("growing"), partitions=1)
    producer.publish(Message(topic, b"k", b"v"))
    with pytest.raises(RefusedRecordError):
        producer.publish(Message(topic, b"k", b"v", partition=1))
    admin = AdminClient({"bootstrap.servers": arena.servers})
    admin.create_partitions([NewPartitions(topic, 2)])[topic].result(30)
    # A broker's metadata follow the controller's by some milliseconds.
    wait_until(
        lambda: len(admin.list_topics(topic, timeout=10).topics[topic].partitions) == 2,
        within=30,
        what="both partitions are known",
    )

    result = producer.publish(Message(topic, b"k", b"v", partition=1))
    assert COMMIT is result.resolution


def test_a_namespace_that_was_never_made_names_the_command(arena: Arena) -> None:
    producer = TransactionalProducer(bootstrap_servers=arena.servers, group=GROUP, namespace=unique_name("nobody"))

    with pytest.raises(TopicMismatchError, match="txlayer topics apply"):
        producer.start()


def test_batches_stay_below_what_a_small_half_topic_takes(arena: Arena) -> None:
    namespace = unique_name("ns")
    for name in ("half", "op"):
        create_topic(arena.servers, f"{namespace}.{name}", config={"max.message.bytes": "5000"})
    with TransactionalProducer(bootstrap_servers=arena.servers, group=GROUP, namespace=namespace) as producer:
        futures = [producer.submit(Message(arena.targets[0], b"k", b"x" * 1_000)) for _ in range(500)]
        assert {COMMIT} == {future.result(30).resolution for future in futures}
        with pytest.raises(RefusedRecordError):
            producer.submit(Message(arena.targets[0], b"k", b"x" * 4_500))
