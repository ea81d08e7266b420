"""A member of a group whose broker stops answering while it stores offsets."""

import os
import signal
import threading

import pytest
from confluent_kafka import Producer

from tests.support.broker import create_topic, member_of, unique_name
from tests.support.kafka_cluster import KafkaCluster
from tests.support.waiting import wait_until
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


def test_a_member_whose_store_is_not_answered_says_so_at_once_and_reads_on_when_it_is(
    local_config: LocalConfig,
) -> None:
    """Otherwise its consumer would not look whether to stop."""
    with KafkaCluster(brokers=1, config=local_config) as cluster:
        topic = create_topic(cluster.bootstrap_servers, unique_name("orders"), partitions=1)
        config = ClientConfig(bootstrap_servers=cluster.bootstrap_servers)
        writer = Producer({"bootstrap.servers": cluster.bootstrap_servers})
        writer.produce(topic, b"order")
        assert 0 == writer.flush(30)
        reader = member_of(config, topic)
        said: list[BaseException | None] = []

        def read() -> None:
            try:
                reader.read(record_count_max=1, timeout_s=0.1)
            except BrokerUnavailableError as exc:
                said.append(exc)
            else:
                said.append(None)

        os.kill(cluster.pids[1], signal.SIGSTOP)
        try:
            with pytest.raises(BrokerUnavailableError):
                reader.store_offsets({(topic, 0): StoredOffset(1, "")}, timeout_s=1)
            for call in (lambda: reader.resume_at({(topic, 0): 0}), read):
                calling = threading.Thread(target=call, daemon=True)
                calling.start()
                calling.join(5)
                assert not calling.is_alive()
            assert isinstance(said[0], BrokerUnavailableError)
        finally:
            os.kill(cluster.pids[1], signal.SIGCONT)

        def reads_it() -> bool:
            if reader.take_assignment() is not None:  # its session may have ended
                reader.resume_at({(topic, 0): 0})
            try:
                return bool(reader.read(record_count_max=1, timeout_s=0.1))
            except BrokerUnavailableError:
                return False

        wait_until(reads_it, within=60, what="a record")
        reader.close()
