"""Topics that belong together and have other numbers of partitions than they should, as an assignment shows it.

A topic and its replay topic may differ for a while: what is assigned of both goes on. Half and op may not.
"""

from datetime import timedelta
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tests.support.still_world import StillWorld
from txlayer.adapters.memory.cluster import assign_ranges
from txlayer.adapters.ports import Assignment, TopicLimits, TopicPartition
from txlayer.config import ConsumerConfig, SystemTopics
from txlayer.consumer.assignments import APART_S, Assignments
from txlayer.consumer.lease_keeper import NoLeases
from txlayer.consumer.plan import ConsumerPlan
from txlayer.coordinator.recovery import assigned_partitions
from txlayer.core.dead_letters import replay_topic
from txlayer.errors import BrokerUnavailableError, TopicMismatchError
from txlayer.runtime.environment import Environment

GROUP, TOPIC = "g", "orders"
REQUESTS = replay_topic(GROUP, TOPIC)


class Group:
    """A member whose assignments the test says."""

    def __init__(self) -> None:
        self.assignment: Assignment | None = None
        self.request_partitions = 0
        self.has_answer = True

    def topic_limits(self, topic: str) -> TopicLimits:
        """As the cluster says."""
        assert REQUESTS == topic
        if not self.has_answer:
            raise BrokerUnavailableError("as planned")
        return TopicLimits(self.request_partitions, 1_000_000)

    def take_revocation(self) -> bool:
        return False

    def take_assignment(self) -> Assignment | None:
        taken, self.assignment = self.assignment, None
        return taken

    def assign(self, *, topic: int, requests: int) -> None:
        """So many partitions of each."""
        self.request_partitions = requests
        self.assign_share(assign_ranges({"": [TOPIC, REQUESTS]}, {TOPIC: topic, REQUESTS: requests})[""])

    def assign_share(self, share: tuple[TopicPartition, ...]) -> None:
        """These."""
        self.assignment = Assignment(share, None, 1)


def assignments_of(world: StillWorld, group: Group) -> Assignments:
    nothing: Any = SimpleNamespace(end=lambda: None, forget=lambda: None)
    return Assignments(
        ConsumerConfig(start_timeout=timedelta(seconds=1)),
        ConsumerPlan(group=GROUP, topics=(TOPIC,), routes={}),
        connections=cast("Any", group),
        reader=cast("Any", group),
        make_leases=NoLeases,
        storer=nothing,
        dispatcher=nothing,
        chunk_s=0.0,
        environment=Environment(clock=world.monotonic, sleep=lambda _: None),
        now_ms=world.now_ms,
    )


def test_what_is_assigned_of_both_goes_on_until_the_other_topic_has_as_many() -> None:
    world, group = StillWorld(), Group()
    assignments = assignments_of(world, group)

    group.assign(topic=3, requests=2)
    assert assignments.take_rebalance()
    assert 2 == assignments.assigned_count
    world.advance(ms=int(APART_S * 1000) - 1)
    assignments.take_rebalance()
    group.assign(topic=3, requests=3)
    assignments.take_rebalance()
    world.advance(ms=int(APART_S * 1000))
    assert not assignments.take_rebalance()

    assert 3 == assignments.assigned_count


@pytest.mark.promise("P9")
@pytest.mark.parametrize(("has_answer", "expected"), [(True, [4, 4, 0, 0]), (False, [2, 0, 0, 0])])
def test_of_eight_partitions_that_become_sixteen_the_eight_go_on_until_the_other_topic_has_as_many(
    *, has_answer: bool, expected: list[int]
) -> None:
    shares = assign_ranges({f"member-{n}": [TOPIC, REQUESTS] for n in range(4)}, {TOPIC: 16, REQUESTS: 8})
    handled = []
    for share in shares.values():
        group = Group()
        group.request_partitions, group.has_answer = 8, has_answer
        assignments = assignments_of(StillWorld(), group)
        group.assign_share(share)
        assignments.take_rebalance()
        handled.append(assignments.assigned_count)

    assert expected == handled


def test_topics_that_stay_apart_end_the_consumer_also_when_the_group_rebalances() -> None:
    world, group = StillWorld(), Group()
    assignments = assignments_of(world, group)

    group.assign(topic=2, requests=3)
    assignments.take_rebalance()
    world.advance(ms=int(APART_S * 500))
    group.assign(topic=2, requests=3)
    assignments.take_rebalance()
    world.advance(ms=int(APART_S * 500))

    with pytest.raises(TopicMismatchError, match="assigned apart"):
        assignments.take_rebalance()


# --- half and op ------------------------------------------------------------------------------------------------------


@pytest.mark.fault("broker: a topic is deleted, or only one of half and op gets more partitions")
@pytest.mark.parametrize(
    ("half_count", "op_count", "says"),
    [(4, 4, ""), (4, 6, "not assigned alike"), (6, 4, "not assigned alike"), (6, 6, "got more partitions")],
)
def test_a_coordinator_reads_nothing_of_half_and_op_that_got_more_partitions_since_it_started(
    half_count: int, op_count: int, says: str
) -> None:
    topics = SystemTopics("ns")
    given = [(topics.half, p) for p in range(half_count)] + [(topics.op, p) for p in range(op_count)]
    assignment = Assignment(tuple(given), None, 1)

    if not says:
        assert [0, 1, 2, 3] == assigned_partitions(assignment, topics, partition_count=4)
        return
    with pytest.raises(TopicMismatchError, match=says):
        assigned_partitions(assignment, topics, partition_count=4)
