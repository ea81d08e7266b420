"""What a consumer consumes, and how: topics, order, policies, start. Never the cluster's state, but for one look at its topics."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from txlayer.adapters.consumer_ports import ConsumerConnections
from txlayer.config import ConsumerConfig
from txlayer.consumer.handlers import Route
from txlayer.consumer.starts import StartAt
from txlayer.core.attempts import RetryPolicy
from txlayer.core.dead_letters import dead_letter_topic, replay_topic
from txlayer.core.items import NullKeys, Order, QueueSettings
from txlayer.errors import TopicMismatchError


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerPlan:
    """One consumer's word."""

    group: str
    topics: tuple[str, ...]
    routes: Mapping[str, Route]
    order: Order = Order.KEY
    null_keys: NullKeys = NullKeys.ORDERED
    start_at: StartAt | None = None
    policy: RetryPolicy = field(default_factory=RetryPolicy)
    key_group: Callable[[bytes | None], str] | None = None

    @property
    def sources(self) -> list[str]:
        """Everything that is read: the topics and the requests about their dead letters."""
        return [*self.topics, *(replay_topic(self.group, topic) for topic in self.topics)]

    def settings_of(self, topic: str, config: ConsumerConfig) -> QueueSettings:
        """How the queues of a topic are worked off.

        Raises:
            ConfigError: the parts do not go together.
        """
        route = self.routes[topic]
        return QueueSettings(
            policy=route.retry or self.policy,
            order=self.order,
            null_keys=self.null_keys,
            metadata_bytes_max=config.metadata_bytes_max,
            parked_keys_max=config.parked_keys_max,
        )


def check_topics(connections: ConsumerConnections, plan: ConsumerPlan) -> None:
    """Look at every topic that the consumer reads or writes.

    Raises:
        TopicMismatchError: one is missing, or has another number of partitions than the topic that it belongs to.
    """
    for topic in plan.topics:
        found = connections.topic_limits(topic)
        if found is None:
            raise TopicMismatchError(
                "the topic does not exist", topic=topic, expected="a topic to consume", found="none"
            )
        count = found.partition_count
        for own in (dead_letter_topic(plan.group, topic), replay_topic(plan.group, topic)):
            limits = connections.topic_limits(own)
            if limits is None or limits.partition_count != count:
                raise TopicMismatchError(
                    f"`txlayer topics apply --group {plan.group} --topic {topic}` creates it",
                    topic=own, expected=f"{count} partitions, as {topic} has",
                    found="none" if limits is None else f"{limits.partition_count} partitions",
                )  # fmt: skip
