"""What the real client does when it can write nothing any more."""

from typing import Any

from tests.support.mock_cluster import PRODUCE, MockCluster
from tests.support.waiting import wait_until
from txlayer.adapters.errors import Code
from txlayer.adapters.kafka.writers import KafkaHalfWriter
from txlayer.config import ProducerConfig
from txlayer.errors import FencedError


def test_a_client_that_can_write_nothing_any_more_says_so_and_raises_nothing_of_its_own() -> None:
    """Otherwise the thread that serves it ends, and says that txlayer is broken."""
    with MockCluster() as cluster:
        cluster.create_topic("orders", partitions=1)
        config = ProducerConfig(bootstrap_servers=cluster.bootstrap_servers)
        writer = KafkaHalfWriter(config, batch_bytes_max=1_000_000, message_timeout_ms=20_000, linger_ms=1)
        reports: list[Any] = []
        cluster.refuse(PRODUCE, Code.OUT_OF_ORDER_SEQUENCE_NUMBER)

        def failure() -> Any:
            writer.poll(0.1)
            return reports and writer.failure()

        writer.produce("orders", b"v", None, 0, lambda error, _: reports.append(error))
        found = wait_until(failure, within=20, what="a failure")
        writer.close(1)

    assert isinstance(found, FencedError)
