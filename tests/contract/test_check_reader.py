"""Questions and answers of check-backs over both logs: who reads them, and that a handler gets what its transaction asked for."""

import asyncio
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest

from tests.contract.clients import PATIENCE_S, TIMEOUT_S, open_writer, put
from tests.contract.conftest import OF_USERS_CODE
from tests.support.broker import unique_name
from tests.support.lab import Lab
from tests.support.waiting import wait_until
from txlayer import (
    COMMIT,
    UNKNOWN,
    AsyncTransactionMQProducer,
    CheckRequest,
    Message,
    Resolution,
    TransactionalProducer,
    TransactionMQProducer,
)
from txlayer.adapters.connect import ProducerConnections
from txlayer.adapters.readers import CheckReader
from txlayer.errors import ConfigError
from txlayer.producer.identity import TransactionOptions
from txlayer.testing import KafkaAccess, Stage

PARTITION_COUNT = 4
GROUP = "orders"


class Instance:
    """One reader, and what it heard: (value, whether it was its own)."""

    def __init__(self, connections: ProducerConnections, topic: str) -> None:
        self._connections = connections
        self._topic = topic
        self.positions: dict[int, int] = {}
        self.heard: list[tuple[bytes | None, bool]] = []
        self.reader = self._opened()

    def reopen(self) -> None:
        """A new reader that goes on where the last one stopped."""
        self.reader.close()
        self.reader = self._opened()

    def serve(self) -> None:
        """One read."""
        heard = self.reader.read(record_count_max=100, timeout_s=0.02)
        for record in heard.records:
            self.heard.append((record.value(), record.partition() in heard.own_partitions))

    @property
    def values(self) -> list[bytes]:
        return sorted(value or b"" for value, _ in self.heard)

    @property
    def own(self) -> set[int]:
        return set(self.reader.own_partitions)

    def _opened(self) -> CheckReader:
        return CheckReader(
            self._connections.make_check_member(GROUP),
            topic=self._topic,
            count_partitions=lambda: PARTITION_COUNT,
            positions=self.positions,
        )


@pytest.fixture
def topic(lab: Lab) -> str:
    return lab.topic(partitions=PARTITION_COUNT)


@pytest.fixture
def make(lab: Lab, topic: str) -> Iterator[Callable[[], Instance]]:
    """One more instance, not started."""
    connections = lab.producer(namespace=unique_name("ns"), check_session_timeout=timedelta(seconds=6))
    made: list[Instance] = []

    def instance() -> Instance:
        made.append(Instance(connections, topic))
        return made[-1]

    yield instance
    for one in made:
        one.reader.close()


def settled(*instances: Instance) -> None:
    """Serve until they share all partitions."""

    def is_shared() -> bool:
        for instance in instances:
            instance.serve()
        owned = [p for i in instances for p in i.own]
        return sorted(owned) == list(range(PARTITION_COUNT)) and all(i.own for i in instances)

    wait_until(is_shared, within=PATIENCE_S, what="every partition has its instance")


def hear(*instances: Instance, count: int) -> None:
    """Serve until each heard so many."""

    def is_heard() -> bool:
        for instance in instances:
            instance.serve()
        return all(len(i.heard) >= count for i in instances)

    wait_until(is_heard, within=PATIENCE_S, what=f"{count} records")


def write(lab: Lab, topic: str, word: str) -> list[bytes]:
    """One record into every partition."""
    values = [f"{word}-{p}".encode() for p in range(PARTITION_COUNT)]
    for partition, value in enumerate(values):
        lab.write(topic, value, partition=partition)
    return values


def test_what_was_before_the_start_is_not_heard_and_what_came_before_the_first_share_is(
    lab: Lab, topic: str, make: Callable[[], Instance]
) -> None:
    write(lab, topic, "before")
    instance = make()
    instance.reader.start()
    after = write(lab, topic, "after")

    hear(instance, count=PARTITION_COUNT)

    assert after == instance.values


def test_everybody_hears_everything_and_each_question_belongs_to_one(
    lab: Lab, topic: str, make: Callable[[], Instance]
) -> None:
    instances = [make(), make()]
    for instance in instances:
        instance.reader.start()
    settled(*instances)

    values = write(lab, topic, "q")
    hear(*instances, count=PARTITION_COUNT)

    assert [values, values] == [i.values for i in instances]
    owned = sorted(value or b"" for i in instances for value, is_own in i.heard if is_own)
    assert values == owned


def test_a_rebalance_loses_and_repeats_nothing(lab: Lab, topic: str, make: Callable[[], Instance]) -> None:
    first, second = make(), make()
    first.reader.start()
    settled(first)
    expected = write(lab, topic, "a")
    hear(first, count=len(expected))

    second.reader.start()
    expected += write(lab, topic, "b")
    settled(first, second)
    expected += write(lab, topic, "c")
    hear(first, count=len(expected))
    second.reader.close()
    expected += write(lab, topic, "d")
    settled(first)
    hear(first, count=len(expected))

    assert sorted(expected) == first.values


def test_the_group_has_a_member_that_an_administrator_sees(lab: Lab, topic: str, make: Callable[[], Instance]) -> None:
    del topic
    instance = make()
    instance.reader.start()
    settled(instance)
    group = instance._connections._config.topics.check_group(GROUP)

    assert ["stable", 1] == [lab.admin().group(group).state, len(lab.admin().group(group).members)]
    instance.reader.close()
    wait_until(lambda: not lab.admin().group(group).members, within=PATIENCE_S, what="nobody is there")


def test_only_what_was_committed_is_heard(lab: Lab, topic: str, make: Callable[[], Instance]) -> None:
    instance = make()
    instance.reader.start()
    settled(instance)
    writer = open_writer(lab.coordinator(unique_name("ns")))
    writer.begin()
    put(writer, topic, b"0-committed")
    writer.commit(timeout_s=TIMEOUT_S)
    writer.begin()
    put(writer, topic, b"1-open", partition=1)
    lab.write(topic, b"2-plain", partition=2)

    hear(instance, count=2)
    assert [b"0-committed", b"2-plain"] == instance.values

    writer.commit(timeout_s=TIMEOUT_S)
    hear(instance, count=3)
    writer.close()


def test_a_pause_hears_nothing_and_loses_nothing(lab: Lab, topic: str, make: Callable[[], Instance]) -> None:
    instance = make()
    instance.reader.start()
    settled(instance)
    instance.reader.pause(is_paused=True)
    values = write(lab, topic, "q")
    for _ in range(10):
        instance.serve()
    assert [] == instance.heard

    instance.reader.pause(is_paused=False)
    hear(instance, count=PARTITION_COUNT)

    assert values == instance.values


def test_a_new_reader_goes_on_where_the_last_one_stopped(lab: Lab, topic: str, make: Callable[[], Instance]) -> None:
    instance = make()
    instance.reader.start()
    settled(instance)
    expected = write(lab, topic, "a")
    hear(instance, count=PARTITION_COUNT)

    instance.reader.close()
    expected += write(lab, topic, "b")
    instance.reopen()
    instance.reader.start()
    hear(instance, count=len(expected))

    assert sorted(expected) == instance.values


def test_a_position_that_is_gone_is_told(lab: Lab, topic: str, make: Callable[[], Instance]) -> None:
    instance = make()
    lab.write(topic, b"0", b"1", b"2")
    instance.positions[0] = 1
    lab.delete_records(topic, before=3)
    instance.reader.start()

    def is_told() -> bool:
        try:
            instance.serve()
        except ConfigError:
            return True
        return False

    wait_until(is_told, within=PATIENCE_S, what="the position is gone")


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
