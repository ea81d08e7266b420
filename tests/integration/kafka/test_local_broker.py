"""The embedded broker as tests and notebooks use it: real processes, real data."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient

from tests.support.broker import create_topic, unique_name
from tests.support.kafka_cluster import KafkaCluster
from tests.support.records import read_all, write
from tests.support.waiting import wait_until
from txlayer.adapters.kafka.local import LocalBroker, LocalConfig
from txlayer.adapters.kafka.local.server import free_ports, is_broker, read_properties
from txlayer.errors import ConfigError, LifecycleError

pytestmark = pytest.mark.kafka

CHILD = """
import sys, time
from pathlib import Path
from txlayer.adapters.kafka.local import LocalBroker, LocalConfig
broker = LocalBroker(config=LocalConfig(home=Path(sys.argv[1])), data=(sys.argv[2:] or [None])[0])
broker.start()
print(broker.pid, broker.folder, flush=True)
time.sleep(600)
"""


@pytest.fixture
def own_tmp(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A temporary folder of the test's own, for this process and its children."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def test_data_survive_a_kill_and_a_stop_and_the_next_start_clears_what_its_java_unpacked(
    local_config: LocalConfig, own_tmp: Path
) -> None:
    topic = unique_name("t")
    with LocalBroker(config=local_config, properties={"message.max.bytes": "2000"}) as broker:
        servers, first = broker.bootstrap_servers, broker.pid
        assert "message.max.bytes=2000\n" in (broker.folder / "node-1" / "server.properties").read_text("utf-8")
        left = broker.folder / "node-1" / "tmp" / "left-by-a-killed-java.so"
        left.touch()
        # lz4 is one of the libraries that Kafka unpacks when it first meets them.
        create_topic(servers, topic, config={"compression.type": "lz4"})
        write(servers, topic, b"before the kill")
        unpacked = [path.name for path in left.parent.glob("liblz4*.so")]

        broker.kill()
        assert broker.pid is None
        broker.start()
        assert 1 == len(unpacked)
        assert not left.exists()
        assert [broker.folder] == list(own_tmp.iterdir())
        write(servers, topic, b"before the stop")
        broker.stop()
        broker.start()

        assert first != broker.pid
        assert servers == broker.bootstrap_servers
        assert [b"before the kill", b"before the stop"] == read_all(servers, topic)


def test_a_temporary_folder_ends_with_its_broker_also_when_its_process_is_killed_and_no_other_does(
    local_config: LocalConfig, own_tmp: Path
) -> None:
    broker = LocalBroker(config=local_config)
    broker.start()
    pid, properties_file = broker.pid, broker.folder / "node-1" / "server.properties"
    assert pid is not None
    assert is_broker(pid, properties_file=properties_file)
    with subprocess.Popen([sys.executable, "-c", CHILD, str(local_config.home)], stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        folder = Path(parent.stdout.readline().decode().split()[1])
        assert {broker.folder, folder} == set(own_tmp.iterdir())

        parent.send_signal(signal.SIGKILL)

        wait_until(lambda: not folder.exists(), within=30, what="the folder goes with its broker")
        assert [broker.folder] == list(own_tmp.iterdir())

    broker.close()
    broker.close()

    assert [] == list(own_tmp.iterdir())
    assert not is_broker(pid, properties_file=properties_file)
    with pytest.raises(LifecycleError, match="start"):
        _ = broker.bootstrap_servers


def test_a_broker_ends_with_the_process_that_started_it_even_when_that_is_killed(
    local_config: LocalConfig, tmp_path: Path
) -> None:
    data = tmp_path / "data"
    with subprocess.Popen([sys.executable, "-c", CHILD, local_config.home, data], stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline().split()[0])
        properties_file = data / "node-1" / "server.properties"
        assert is_broker(pid, properties_file=properties_file)

        parent.send_signal(signal.SIGKILL)

    wait_until(
        lambda: not is_broker(pid, properties_file=properties_file), within=30, what="the broker ends with its parent"
    )


def test_a_kept_folder_goes_on_with_its_data_in_a_later_broker(local_config: LocalConfig, tmp_path: Path) -> None:
    with LocalBroker(config=local_config, data=tmp_path / "data") as broker:
        create_topic(broker.bootstrap_servers, "kept")
        write(broker.bootstrap_servers, "kept", b"value")

        with pytest.raises(ConfigError, match="running already"):
            LocalBroker(config=local_config, data=tmp_path / "data").start()

    with LocalBroker(config=local_config, data=tmp_path / "data") as broker:
        assert [b"value"] == read_all(broker.bootstrap_servers, "kept")


@pytest.mark.fault("network: the name or the advertised address of a broker is wrong")
def test_a_proxied_listener_leads_its_clients_to_the_proxy(local_config: LocalConfig) -> None:
    (proxy_port,) = free_ports(1)
    with KafkaCluster(brokers=1, config=local_config, proxied_listeners=[[proxy_port]]) as broker:
        # The broker's answer names the proxy, so the client goes there next.
        host, port = broker.upstream(listener=1)
        with socket.create_server(("127.0.0.1", proxy_port)) as proxy:
            proxy.settimeout(30)
            admin = AdminClient({"bootstrap.servers": f"{host}:{port}", "log_level": 0})
            admin.poll(0)
            connection, _ = proxy.accept()
            connection.close()

        assert f"127.0.0.1:{proxy_port}" == broker.proxied_servers(listener=1)


@pytest.mark.fault("broker: is killed, also one that leads the group or the Kafka transactions")
@pytest.mark.slow
def test_three_brokers_lose_one_and_go_on(local_config: LocalConfig) -> None:
    topic = unique_name("t")
    with KafkaCluster(config=local_config) as cluster:
        servers = cluster.bootstrap_servers
        create_topic(servers, topic, config={"min.insync.replicas": "2"})
        admin = AdminClient({"bootstrap.servers": servers, "log_level": 0})
        wait_until(
            lambda: topic in admin.list_topics(timeout=10).topics, within=30, what="this broker hears of the topic"
        )
        topics = admin.list_topics(timeout=10).topics
        copies = {
            name: {len(p.replicas) for p in topics[name].partitions.values()}
            for name in (topic, "__transaction_state", "__consumer_offsets")
        }
        metas = [read_properties(folder / "node-1" / "data" / "meta.properties") for folder in cluster.folders]
        write(servers, topic, b"three")

        cluster.kill(2)
        write(servers, topic, b"two")
        cluster.start(2)

        assert {name: {3} for name in copies} == copies
        assert ["1", "2", "3"] == [meta["node.id"] for meta in metas]
        assert 3 == len({meta["directory.id"] for meta in metas})
        assert 1 == len({meta["cluster.id"] for meta in metas})
        assert [1, 2, 3] == sorted(cluster.pids)
        assert [b"three", b"two"] == read_all(servers, topic)
