"""The embedded broker as tests and notebooks use it: real processes, real data."""

import signal
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient

from tests.support.broker import create_topic, unique_name
from tests.support.faultproxy import FaultProxy, Rules
from tests.support.kafka_cluster import KafkaCluster
from tests.support.records import read_all, write
from tests.support.waiting import wait_until
from txlayer.adapters.kafka.local import LocalBroker, LocalConfig, server
from txlayer.adapters.kafka.local.server import free_ports, is_broker
from txlayer.errors import ConfigError, LifecycleError

pytestmark = pytest.mark.kafka

CHILD = """
import sys, time
from pathlib import Path
from txlayer.adapters.kafka.local import LocalBroker, LocalConfig, server
broker = LocalBroker(config=LocalConfig(home=Path(sys.argv[1])))
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


def test_data_survive_a_kill_a_stop_and_a_later_broker_and_the_next_start_clears_what_its_java_unpacked(
    local_config: LocalConfig, own_tmp: Path
) -> None:
    topic, data = unique_name("t"), own_tmp / "data"
    with LocalBroker(config=local_config, data=data, properties={"message.max.bytes": "2000"}) as broker:
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
        with pytest.raises(ConfigError, match="running already"):
            LocalBroker(config=local_config, data=data).start()

    with LocalBroker(config=local_config, data=data) as later:
        assert [b"before the kill", b"before the stop"] == read_all(later.bootstrap_servers, topic)


def test_a_broker_ends_with_the_process_that_started_it_and_its_temporary_folder_with_it_and_no_other(
    local_config: LocalConfig, own_tmp: Path
) -> None:
    broker = LocalBroker(config=local_config)
    broker.start()
    pid, properties_file = broker.pid, broker.folder / "node-1" / "server.properties"
    assert pid is not None
    assert is_broker(pid, properties_file=properties_file)
    with subprocess.Popen([sys.executable, "-c", CHILD, str(local_config.home)], stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        child, folder = parent.stdout.readline().decode().split()
        assert {broker.folder, Path(folder)} == set(own_tmp.iterdir())
        assert is_broker(int(child), properties_file=Path(folder) / "node-1" / "server.properties")

        parent.send_signal(signal.SIGKILL)

        wait_until(lambda: not Path(folder).exists(), within=30, what="the folder goes with its broker")
        assert not is_broker(int(child), properties_file=Path(folder) / "node-1" / "server.properties")
        assert [broker.folder] == list(own_tmp.iterdir())

    broker.close()
    broker.close()

    assert [] == list(own_tmp.iterdir())
    assert not is_broker(pid, properties_file=properties_file)
    with pytest.raises(LifecycleError, match="start"):
        _ = broker.bootstrap_servers


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


def test_a_broker_that_is_slow_to_answer_becomes_ready_all_the_same(
    local_config: LocalConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "READY_TIMEOUT_S", 60)
    (port,) = free_ports(1)
    with (
        KafkaCluster(brokers=1, config=local_config, proxied_listeners=[[port]]) as broker,
        FaultProxy(broker.upstream(listener=1), port=port) as proxy,
    ):
        # A new client needs several answers until it has a Kafka transaction, so more than a second of these.
        proxy.use(Rules(latency_s=0.2))

        server.wait_until_ready(broker.proxied_servers(listener=1), check_alive=lambda: None)
