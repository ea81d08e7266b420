"""A broadcast without a name keeps its position in memory: it goes on there after an error, and stores nothing."""

import pytest

from tests.support.queue_stage import REJECTED, QueueStage
from tests.support.still_world import StillWorld
from tests.unit.test_take_over_reading import AtOnce, routes_to
from txlayer import OrderedConsumer
from txlayer.adapters.memory import MemoryKafka
from txlayer.config import ConsumerConfig
from txlayer.consumer.completions import Completions
from txlayer.consumer.context import Context, Lease, ReceivedMessage
from txlayer.consumer.engine import Engine
from txlayer.consumer.lease_keeper import NoLeases
from txlayer.consumer.metrics import TopicCounts
from txlayer.consumer.offsets import OwnedPartition
from txlayer.consumer.plan import ConsumerPlan
from txlayer.consumer.pools import Caller
from txlayer.core.key_queue import QueueSettings
from txlayer.core.retry import RetryPolicy
from txlayer.errors import ConfigError
from txlayer.runtime.environment import Environment

GROUP, TOPIC = "prices.a1b2", "early"


def test_after_an_error_it_goes_on_where_it_was() -> None:
    world = StillWorld()
    kafka = MemoryKafka(world)
    kafka.create_topic(TOPIC, partitions=1)
    config = ConsumerConfig(bootstrap_servers=kafka.bootstrap_servers)
    values: list[bytes | None] = []

    def handle(message: ReceivedMessage, _context: Context) -> None:
        values.append(message.value)

    routes = routes_to(handle)
    plan = ConsumerPlan(
        group=GROUP, topics=(TOPIC,), routes=routes, start_at="latest", is_broadcast=True, keeps_position=False
    )
    engine = Engine(
        config,
        plan,
        connections=kafka.connect_consumer(config),
        pool=AtOnce(Caller(routes, attempt_timeout_s=60.0, clock=world.monotonic)),
        make_leases=NoLeases,
        environment=Environment(clock=world.monotonic, sleep=lambda _: None),
    )
    engine.start()

    def work() -> None:
        for _ in range(20):
            engine.turn()
            world.advance(ms=100)

    kafka.append(TOPIC, b"before")
    work()
    kafka.append(TOPIC, b"0")
    work()
    engine._assignments.give_up()  # as after an error
    kafka.append(TOPIC, b"1")
    work()
    engine.close()

    assert [b"0", b"1"] == values
    assert (TOPIC, 0) not in kafka.stored_offsets(GROUP)


def broadcast(group: str, **settings: str) -> OrderedConsumer:
    return OrderedConsumer(group=group, topics=[TOPIC], is_broadcast=True, **settings)  # type: ignore[arg-type]  # texts


def test_its_group_follows_its_instance_id_also_if_that_is_set_later() -> None:
    consumer = broadcast("prices")
    consumer.configure(instance_id="pod-1")

    assert "prices.pod-1" == consumer.group


@pytest.mark.parametrize(
    ("group", "instance_id"),
    [
        ("prices", "eu.pod-1"),  # that of the group prices.eu, too
        ("txlayer", "coordinator"),
        ("txlayer.check", "shop"),
    ],
)
def test_an_instance_joins_no_group_that_may_be_anothers(group: str, instance_id: str) -> None:
    with pytest.raises(ConfigError):
        broadcast(group, instance_id=instance_id)


@pytest.mark.promise("P9")
def test_a_message_that_is_given_up_lets_no_other_be_tried_again_before_its_attempt_is_stored() -> None:
    stage = QueueStage([b"a", b"b"], QueueSettings(RetryPolicy(backoff_first_ms=0, backoff_max_ms=0)))
    owned = OwnedPartition(
        Lease(GROUP, TOPIC, 0),
        stage.queue,
        route=routes_to(lambda *_: None)[TOPIC],
        tally=TopicCounts(),
        chunk_s=0.0,
        next_offsets={},
    )
    given_up, failed = stage.take()
    stage.fail(given_up, REJECTED)
    stage.store()
    stage.fail(failed)

    Completions(group=GROUP, now_ms=lambda: stage.now_ms, cut=lambda _: None, kafka_transaction_timeout_ms=10_000).drop(
        [owned]
    )

    assert 1 == stage.queue.count
    assert [] == stage.taken()
    stage.store()
    assert ["1"] == stage.taken()
