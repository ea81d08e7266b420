"""Consumers of a topic that natural retention empties: markers that go are no loss, messages that go are told as one."""

import threading
from collections.abc import Iterator
from datetime import timedelta

import pytest
from confluent_kafka import Producer

from tests.conftest import Broker
from tests.support.consumers import PATIENCE_S, Stage
from tests.support.lab_kafka import KafkaLab
from tests.support.waiting import wait_until
from txlayer.adapters.kafka.local import LocalBroker, LocalConfig
from txlayer.consumer.context import Context, ReceivedMessage
from txlayer.core.topics import AlterSetting
from txlayer.errors import ConfigError

pytestmark = [pytest.mark.kafka]

CLEANING = {
    "log.retention.check.interval.ms": "200",
    "log.segment.delete.delay.ms": "100",
    "log.initial.task.delay.ms": "100",
}
WITHIN_S = 60.0


@pytest.fixture(scope="module")
def servers(
    broker: Broker,  # noqa: ARG001 - it skips where no broker can run
    local_config: LocalConfig,
) -> Iterator[str]:
    """A broker that looks for what is too old all the time."""
    with LocalBroker(config=local_config, properties=CLEANING) as started:
        yield started.bootstrap_servers


@pytest.fixture
def stage(servers: str) -> Iterator[Stage]:
    lab = KafkaLab(servers)
    made = Stage(lab)
    try:
        yield made
    finally:
        made.close()
        lab.close()


def commit(servers: str, topic: str, *values: bytes) -> None:
    """Messages in one Kafka transaction, as a coordinator forwards them: a marker stands behind them."""
    producer = Producer({"bootstrap.servers": servers, "transactional.id": f"{topic}.writer", "log_level": 0})
    producer.init_transactions(30)
    producer.begin_transaction()
    for value in values:
        producer.produce(topic, value, b"k", 0)
    producer.commit_transaction(30)


def empty(stage: Stage) -> int:
    """Let retention take everything that is there now; where the log begins then."""
    place = (stage.topic, 0)
    end = stage._connections.end_offsets([place])[place]
    keep(stage, "500")

    def is_empty() -> bool:
        return stage._connections.start_offsets([place])[place] == end

    wait_until(is_empty, within=WITHIN_S, what=f"the log begins at {end}")
    keep(stage, "-1")
    return end


def keep(stage: Stage, retention_ms: str) -> None:
    """Change how long the topic keeps its messages."""
    change = AlterSetting(stage.topic, "retention.ms", None, retention_ms, why="a test")
    stage.lab.admin().alter_settings([change])


@pytest.mark.fault("consumer: retention empties its partition up to behind the marker of a Kafka transaction")
def test_retention_that_empties_a_partition_ends_no_consumer(stage: Stage, servers: str) -> None:
    commit(servers, stage.topic, b"0", b"1", b"2")

    with stage.consumer() as first:
        stage.journal.wait_for(3)
        assert 4 == empty(stage)  # three messages and a marker
        assert 1 == first.stats().assigned_count
        with stage.consumer() as second:
            wait_until(
                lambda: {first.stats().assigned_count, second.stats().assigned_count} == {0, 1},
                within=WITHIN_S,
                what="the group shares the one partition",
            )
            commit(servers, stage.topic, b"3")
            stage.wait_stored(6)
            assert first.failure is None
            assert second.failure is None

    assert [b"0", b"1", b"2", b"3"] == stage.journal.values(b"k")


@pytest.mark.fault("consumer: retention overtakes it")
def test_a_consumer_that_retention_overtook_is_told_how_to_reset_its_own_group(stage: Stage) -> None:
    gate = threading.Event()

    def act(message: ReceivedMessage, _context: Context) -> None:
        if message.value == b"0":
            assert gate.wait(WITHIN_S)

    stage.write(*(b"%d" % n for n in range(10)))
    consumer = stage.consumer(act, record_count_max=1, attempt_timeout=timedelta(seconds=WITHIN_S))
    consumer.start()
    stage.journal.wait_for(1)
    stage.write(*(b"%d" % n for n in range(10, 20)))  # the client has fetched none of these yet
    empty(stage)
    gate.set()

    with pytest.raises(ConfigError) as raised:
        consumer.join(timedelta(seconds=PATIENCE_S))

    advice = f"txlayer consumer reset --group {stage.group} --topic {stage.topic} --to"
    assert advice in str(raised.value)
    assert "coordinator" not in str(raised.value)


@pytest.mark.fault("consumer: retention overtakes it")
def test_messages_that_retention_took_before_a_restart_are_told_as_lost(stage: Stage) -> None:
    stage.write(b"0")
    with stage.consumer():
        stage.wait_stored(1)
    stage.write(b"1")
    assert 2 == empty(stage)
    consumer = stage.consumer()
    consumer.start()

    with pytest.raises(ConfigError, match=f"{stage.topic}-0@1, but the log begins at 2"):
        consumer.join(timedelta(seconds=PATIENCE_S))
