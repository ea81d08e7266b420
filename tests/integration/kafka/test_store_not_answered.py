"""A member of a group whose broker stops answering while it stores offsets."""

import os
import signal
import threading

import pytest

from tests.support.broker import create_topic, member_of, unique_name
from tests.support.kafka_cluster import KafkaCluster
from txlayer.adapters.kafka.local import LocalConfig
from txlayer.adapters.ports import StoredOffset
from txlayer.config import ClientConfig
from txlayer.errors import BrokerUnavailableError

pytestmark = pytest.mark.kafka


@pytest.mark.parametrize("instance_id", ["", "one"])
def test_a_member_whose_store_is_not_answered_can_be_closed(instance_id: str, local_config: LocalConfig) -> None:
    with KafkaCluster(brokers=1, config=local_config) as cluster:
        topic = create_topic(cluster.bootstrap_servers, unique_name("orders"), partitions=1)
        config = ClientConfig(bootstrap_servers=cluster.bootstrap_servers)
        reader = member_of(config, topic, instance_id=instance_id)
        os.kill(cluster.pids[1], signal.SIGSTOP)
        try:
            with pytest.raises(BrokerUnavailableError):
                reader.store_offsets({(topic, 0): StoredOffset(1, "")}, timeout_s=1)
            closing = threading.Thread(target=reader.close, daemon=True)
            closing.start()
            closing.join(20)
            assert not closing.is_alive()
            reader.resume_at({})
        finally:
            os.kill(cluster.pids[1], signal.SIGCONT)
