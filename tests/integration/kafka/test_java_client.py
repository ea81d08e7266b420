"""Kafka's own client beside ours: it reads what was forwarded, and what it wrote is handled."""

from collections.abc import Iterator

import pytest

from tests.conftest import LOCAL_CONFIG, Broker
from tests.support.arena import Arena
from tests.support.broker import create_topic, unique_name
from tests.support.consumers import Stage
from tests.support.java_client import JavaRecord, read_with_java, write_with_java
from tests.support.lab_kafka import KafkaLab
from txlayer.consumer.context import Context, ReceivedMessage
from txlayer.core.codec import ID_HEADER
from txlayer.core.messages import Message
from txlayer.core.retry import HandlerResult, Reject
from txlayer.producer.producer import TransactionalProducer
from txlayer.testing.stage import RunningCoordinator

pytestmark = pytest.mark.kafka

CODECS = ["zstd", *(pytest.param(codec, marks=pytest.mark.nightly) for codec in ("none", "gzip", "snappy", "lz4"))]
HEADERS: tuple[tuple[str, bytes | None], ...] = (("h", b"1"), ("h", b"\xff\x00"), ("null", None), ("empty", b""))


@pytest.fixture
def stage(broker: Broker) -> Iterator[Stage]:
    made = Stage(KafkaLab(broker.bootstrap_servers))
    yield made
    made.close()


@pytest.mark.promise("P3")
def test_it_reads_what_was_committed_and_nothing_else(
    arena: Arena, coordinator: RunningCoordinator, producer: TransactionalProducer
) -> None:
    assert coordinator.failure is None
    topic = create_topic(arena.servers, unique_name("read"))
    with producer.transaction() as rolled_back:
        rolled_back.send(topic, key="k", value="rolled back")
        rolled_back.prepare()
        rolled_back.rollback()
    with producer.transaction() as undecided:
        undecided.send(topic, key="k", value="undecided")
        undecided.prepare()
        undecided.unknown()
    sent = [JavaRecord(b"k%d" % n, b"value %d" % n, HEADERS) for n in range(3)]
    sent += [JavaRecord(None, b"without a key"), JavaRecord(b"k", None), JavaRecord(b"", b"")]

    for record in sent:
        producer.publish(Message(topic, record.key, record.value, list(record.headers)), txn_id=unique_name("sale"))

    def seen(record: JavaRecord) -> JavaRecord:
        return record._replace(headers=tuple(h for h in record.headers if not h[0].startswith("txl-")))

    found = read_with_java(LOCAL_CONFIG, arena.servers, topic, len(sent))
    assert sorted(map(repr, sent)) == sorted(repr(seen(record)) for record in found)
    assert all(dict(record.headers)[ID_HEADER] for record in found)


@pytest.mark.parametrize("codec", CODECS)
def test_what_it_writes_is_handled_in_order_and_a_dead_letter_is_the_message_as_it_was(
    codec: str, stage: Stage
) -> None:
    written = [JavaRecord(b"k%d" % (n % 3), b"%d " % n * 100, HEADERS) for n in range(60)]
    written += [JavaRecord(None, b"without a key"), JavaRecord(b"gone", None), JavaRecord(b"bad", b"bad", HEADERS)]
    got: list[JavaRecord] = []

    def act(message: ReceivedMessage, _: Context) -> HandlerResult:
        got.append(JavaRecord(message.key, message.value, tuple(message.headers)))
        return Reject("as planned") if message.key == b"bad" else None

    write_with_java(LOCAL_CONFIG, stage.lab.servers, stage.topic, written, codec=codec)
    with stage.consumer(act):
        stage.wait_for_letters([b"bad"])
        stage.journal.wait_for(len(written))

    assert sorted(map(repr, written)) == sorted(map(repr, got))
    for key in {record.key for record in written}:
        assert [r.value for r in written if r.key == key] == stage.journal.values(key)
    (letter,) = read_with_java(LOCAL_CONFIG, stage.lab.servers, stage.letters, 1)
    assert (b"bad", b"bad", HEADERS) == (letter.key, letter.value, letter.headers[: len(HEADERS)])
