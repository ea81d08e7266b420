"""A partition without a leader while a consumer takes its queues over: the other partitions go on."""

from collections.abc import Iterator

import pytest

from tests.contract.test_unwritten_dead_letters import NoLeader
from tests.support.consumers import Stage
from tests.support.lab_memory import MemoryLab
from tests.support.waiting import wait_until
from txlayer.config import ConsumerConfig


@pytest.fixture
def stage() -> Iterator[Stage]:
    made = Stage(MemoryLab(), partitions=2)
    yield made
    made.close()


@pytest.mark.parametrize("is_of_requests", [False, True], ids=["topic", "replay-topic"])
def test_a_partition_without_a_leader_keeps_no_other_partition_from_being_taken_over(
    stage: Stage, *, is_of_requests: bool
) -> None:
    with stage.consumer() as consumer:
        stage.write(b"1", key=b"a", partition=0)
        stage.write(b"1", key=b"b", partition=1)
        stage.journal.wait_for(2)
    config = ConsumerConfig(bootstrap_servers=stage.lab.servers, namespace=stage.namespace)
    cluster = NoLeader(stage.lab.connect_consumer(config))
    cluster.place = (stage.requests if is_of_requests else stage.topic, 0)
    stage.write(b"2", key=b"b", partition=1)
    with stage.consumer(connect=lambda _: cluster) as consumer:
        try:
            wait_until(lambda: len(stage.journal.values(b"b")) == 2, within=15, what="the other partition")
        finally:
            cluster.place = None
    assert consumer
