"""The whole way of a message, with the real producer and the real coordinator: prepared, decided, forwarded, told."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from datetime import timedelta

import pytest

from tests.support.broker import unique_name
from tests.support.lab import FaultyLab, Lab
from tests.support.waiting import wait_until
from txlayer.adapters.namespace import Namespace
from txlayer.adapters.ports import CoordinatorConnections
from txlayer.adapters.topic_files import read_topic_files
from txlayer.config import CoordinatorConfig, SystemTopics
from txlayer.coordinator.loop import Coordinator
from txlayer.core.codec import ID_HEADER
from txlayer.core.messages import Message
from txlayer.core.transitions import TxnState
from txlayer.producer.sync import TransactionalProducer

SESSION = timedelta(seconds=2)


class Running:
    """A coordinator in a thread of its own; what it raised is raised at its end."""

    def __init__(self, config: CoordinatorConfig, connections: CoordinatorConnections) -> None:
        self.coordinator = Coordinator(config, connections)
        self._is_stopping = threading.Event()
        self._failures: list[BaseException] = []
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._is_stopping.set()
        self._thread.join(30)
        assert not self._thread.is_alive(), "the coordinator does not end"
        for failure in self._failures:
            raise failure

    def _run(self) -> None:
        try:
            self.coordinator.run(should_stop=self._is_stopping.is_set)
        except BaseException as exc:  # noqa: BLE001 - raised by `stop`
            self._failures.append(exc)


class Shop:
    """A namespace with one real topic."""

    def __init__(self, lab: Lab) -> None:
        self.lab = lab
        self.topics = SystemTopics(unique_name("ns"))
        self.orders = lab.topic(partitions=2)
        files = read_topic_files()
        Namespace(lab.admin(), topics=self.topics, files=files).apply(
            partition_count=2, replication_factor=1
        )

    def producer(self) -> TransactionalProducer:
        """One more producer."""
        return TransactionalProducer(
            bootstrap_servers="127.0.0.1:9",  # the lab's connections know theirs
            group="shop",
            namespace=self.topics.namespace,
            connect=lambda _config: self.lab.producer(namespace=self.topics.namespace),
        )

    def coordinator(self, connections: CoordinatorConnections | None = None) -> Running:
        """One more coordinator."""
        namespace = self.topics.namespace
        config = CoordinatorConfig(namespace=namespace, session_timeout=SESSION)
        return Running(
            config, connections or self.lab.coordinator(namespace, session_timeout=SESSION)
        )

    def visible(self) -> list[tuple[bytes | None, bytes | None]]:
        """(transaction id, value) of every forwarded message."""
        return [(dict(r.headers)[ID_HEADER], r.value) for r in self.lab.read(self.orders)]

    def wait_for(self, count: int) -> None:
        wait_until(lambda: len(self.visible()) >= count, within=40, what=f"{count} messages")


@pytest.fixture
def shop(lab: Lab) -> Shop:
    return Shop(lab)


@pytest.fixture
def coordinator(shop: Shop) -> Iterator[Running]:
    running = shop.coordinator()
    yield running
    running.stop()


@pytest.mark.usefixtures("coordinator")
def test_what_is_committed_is_forwarded_once_and_what_is_rolled_back_never(shop: Shop) -> None:
    with shop.producer() as producer:
        for name in ("order-1", "order-2"):
            with producer.transaction(name, ordering_key="customer") as tx:
                tx.send(shop.orders, key="customer", value=name)
                tx.prepare()
                if name == "order-1":
                    tx.rollback()
        shop.wait_for(1)

        (history,) = producer.status("order-1")
        assert TxnState.ROLLED_BACK is history.state
    assert [(b"order-2", b"order-2")] == shop.visible()


@pytest.mark.usefixtures("coordinator")
def test_many_transactions_in_flight_all_arrive_in_order_of_their_key(shop: Shop) -> None:
    with shop.producer() as producer:
        futures = [
            producer.submit(Message(shop.orders, b"k", b"%d" % n), ordering_key="k")
            for n in range(200)
        ]
        for future in futures:
            future.result(30)
    shop.wait_for(200)

    assert [b"%d" % n for n in range(200)] == [value for _, value in shop.visible()]


def test_a_coordinator_goes_on_where_the_one_before_stopped(shop: Shop) -> None:
    with shop.producer() as producer:
        for round_number in range(2):
            running = shop.coordinator()
            for n in range(10):
                producer.publish(Message(shop.orders, None, b"%d-%d" % (round_number, n)))
            shop.wait_for(10 * (round_number + 1))
            running.stop()

    assert 20 == len({txn_id for txn_id, _ in shop.visible()}) == len(shop.visible())


def test_two_coordinators_share_the_work_and_double_nothing(shop: Shop) -> None:
    running = [shop.coordinator(), shop.coordinator()]
    with shop.producer() as producer:
        for n in range(50):
            producer.publish(Message(shop.orders, None, b"%d" % n))
    shop.wait_for(50)
    for each in running:
        each.stop()

    assert 50 == len({txn_id for txn_id, _ in shop.visible()}) == len(shop.visible())


def test_a_coordinator_that_is_cut_off_is_replaced_and_nothing_is_lost_or_doubled(
    faulty_lab: FaultyLab,
) -> None:
    shop = Shop(faulty_lab)
    namespace = shop.topics.namespace
    distant = shop.coordinator(faulty_lab.distant(namespace, session_timeout=SESSION))
    with shop.producer() as producer:
        producer.publish(Message(shop.orders, None, b"before"))
        shop.wait_for(1)
        faulty_lab.cut_off()
        producer.publish(Message(shop.orders, None, b"meanwhile"))
        heir = shop.coordinator()
        shop.wait_for(2)
        faulty_lab.reconnect()
        producer.publish(Message(shop.orders, None, b"after"))
        shop.wait_for(3)
        heir.stop()
    distant.stop()

    assert {b"before", b"meanwhile", b"after"} == {value for _, value in shop.visible()}
    assert 3 == len(shop.visible())
