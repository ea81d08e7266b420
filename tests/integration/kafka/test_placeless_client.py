"""What the real client reports of a record that the broker says it has already."""

from typing import Any

import pytest

from tests.support.mock_cluster import PRODUCE, MockCluster
from tests.support.waiting import wait_until
from txlayer.adapters.errors import Code
from txlayer.adapters.kafka.writers import KafkaHalfWriter
from txlayer.config import ProducerConfig


@pytest.mark.fault(
    "producer: the answer to a batch is lost, and the answer to a later one shows that it was stored, but not where"
)
@pytest.mark.parametrize("code", [Code.NO_ERROR, Code.DUPLICATE_SEQUENCE_NUMBER])
def test_a_record_that_the_broker_has_already_is_stored_and_nobody_tells_where(code: Code) -> None:
    with MockCluster() as cluster:
        cluster.create_topic("orders", partitions=1)
        config = ProducerConfig(bootstrap_servers=cluster.bootstrap_servers)
        writer = KafkaHalfWriter(config, batch_bytes_max=1_000_000, message_timeout_ms=20_000, linger_ms=1)
        reports: list[tuple[Any, int | None]] = []
        cluster.refuse(PRODUCE, code)

        writer.produce("orders", b"v", None, 0, lambda e, r: reports.append((e, r.offset())))
        wait_until(lambda: writer.poll(0.1), within=20, what="the report")
        writer.close(1)

    assert [(None, 0 if code is Code.NO_ERROR else None)] == reports
