"""A namespace with one real topic, real producers and real coordinators, over whatever log the contract suite runs on."""

import threading
from datetime import timedelta
from typing import Any

from tests.support.broker import unique_name
from tests.support.lab import Lab
from tests.support.waiting import wait_until
from txlayer.adapters.connect import CoordinatorConnections
from txlayer.adapters.namespace import Namespace
from txlayer.config import CoordinatorConfig, SystemTopics
from txlayer.coordinator.loop import Coordinator
from txlayer.core.codec import HALF_HEADER, ID_HEADER
from txlayer.core.ledger.ledger import Ledger
from txlayer.producer.producer import TransactionalProducer
from txlayer.testing.stage import IN_TESTS

SESSION = timedelta(seconds=2)


class Running:
    """A coordinator in a thread of its own; what it raised is raised at its end."""

    def __init__(self, config: CoordinatorConfig, connections: CoordinatorConnections) -> None:
        self.coordinator = Coordinator(config, connections, environment=IN_TESTS)
        self._is_stopping = threading.Event()
        self._failures: list[BaseException] = []
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    @property
    def ledgers(self) -> list[Ledger]:
        """What it holds at this moment."""
        return [shard.ledger for shard in self.coordinator.view().shards.values()]

    @property
    def is_alive(self) -> bool:
        """False when it has ended by itself."""
        return self._thread.is_alive()

    def stop(self) -> None:
        """End it cleanly."""
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

    def __init__(self, lab: Lab, *, partition_count: int = 2) -> None:
        self.lab = lab
        self.topics = SystemTopics(unique_name("ns"))
        self.orders = lab.topic(partitions=2)
        Namespace(lab.admin(), topics=self.topics).apply(partition_count=partition_count, replication_factor=1)

    def producer(self) -> TransactionalProducer:
        """One more producer."""
        return TransactionalProducer(
            bootstrap_servers="127.0.0.1:9",  # the lab's connections know theirs
            group="shop",
            namespace=self.topics.namespace,
            connect=lambda _config: self.lab.producer(namespace=self.topics.namespace),
        )

    def coordinator(self, connections: CoordinatorConnections | None = None, **settings: Any) -> Running:
        """One more coordinator."""
        namespace = self.topics.namespace
        config = CoordinatorConfig(namespace=namespace, session_timeout=SESSION, **settings)
        return Running(config, connections or self.lab.coordinator(namespace, session_timeout=SESSION))

    def half(self, *records: tuple[bytes, bytes]) -> None:
        """Half records of partition 0, each with this header and value."""
        connections = self.lab.producer(namespace=self.topics.namespace)
        writer = connections.make_half_writer(batch_bytes_max=100_000)
        for header, value in records:
            writer.produce(self.topics.half, value, b"k", 0, None, None, 0, [(HALF_HEADER, header)])
        writer.close(20)
        connections.close()

    def visible(self) -> list[tuple[bytes | None, bytes | None]]:
        """(transaction id, value) of every forwarded message."""
        return [(dict(r.headers)[ID_HEADER], r.value) for r in self.lab.read(self.orders)]

    def wait_for(self, count: int) -> None:
        """Until so many messages are visible."""
        wait_until(lambda: len(self.visible()) >= count, within=40, what=f"{count} messages")
