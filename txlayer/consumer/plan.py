"""What a consumer consumes, and how: topics, order, policies and start positions."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Literal

from txlayer.adapters.connect import ConsumerConnections
from txlayer.adapters.ports import StoredOffset, TopicPartition
from txlayer.adapters.telemetry import Log
from txlayer.config import ConsumerConfig
from txlayer.consumer.handlers import Route
from txlayer.consumer.pull import Desk
from txlayer.core.dead_letters import dead_letter_topic, replay_topic
from txlayer.core.key_queue import NullKeys, QueueOrder, QueueSettings, Start
from txlayer.core.progress import NOTHING, Foreign, decode
from txlayer.core.retry import AfterExhausted, BreakerPolicy, RetryPolicy
from txlayer.errors import ConfigError, NotAuthorisedError, TopicMismatchError

logger = Log("txlayer.consumer")

StartAt = Literal["earliest", "latest"] | datetime  # where a group begins if it has stored no offset


def check_start(start_at: StartAt | None) -> StartAt | None:
    """Return the start position if it is valid; ConfigError: it is not one of the allowed values."""
    is_right = start_at is None or start_at in ("earliest", "latest")
    if isinstance(start_at, datetime):
        is_right = start_at.tzinfo is not None and start_at.timestamp() >= 0
    if not is_right:
        raise ConfigError(
            "no place where a group can begin that has stored nothing",
            name="start_at",
            value=start_at,
            expected="'earliest', 'latest', a datetime with a time zone, or None",
        )
    return start_at


def writers_of(offsets: Mapping[TopicPartition, StoredOffset | None]) -> set[str]:
    """Names of the dead-letter writers in stored metadata; "" for metadata without one."""
    found = (decode(stored.offset, stored.metadata) for stored in offsets.values() if stored is not None)
    return {"" if isinstance(each, Foreign) else each.writer for each in found}


def starts_of(
    connections: ConsumerConnections,
    stored: Mapping[TopicPartition, StoredOffset | None],
    *,
    group: str,
    replays: Sequence[TopicPartition],
    start_at: StartAt | None,
) -> dict[TopicPartition, Start]:
    """The start offset of each source.

    Without a stored offset, replay requests are read from the first one on, because an operator may have written some
    before the group first ran.

    Raises:
        ConfigError: no offset is stored and no start position is given, or the stored offset is no longer in the log.
        TxLayerError: the brokers gave no answer.
    """
    new = [tp for tp, found in stored.items() if found is None]
    new_topics = [tp for tp in new if tp not in replays]
    if new_topics and start_at is None:
        topic, partition = new_topics[0]
        raise ConfigError(
            f"the group {group} has stored no offset for {topic}-{partition}, and start_at does not say where to begin",
            name="start_at",
            expected="'earliest', 'latest' or a datetime",
        )
    first = connections.start_offsets(list(stored))
    begin = {tp: first[tp] for tp in new}
    if new_topics and start_at == "latest":
        begin.update(connections.end_offsets(new_topics))
    elif new_topics and isinstance(start_at, datetime):
        at_ms = int(start_at.timestamp() * 1000)
        begin.update(connections.offsets_at(new_topics, at_ms=at_ms))
    starts = {tp: Start(offset) for tp, offset in begin.items()}
    for tp, found in stored.items():
        if found is not None:
            starts[tp] = _start_of(tp, found, first=first[tp], group=group, is_replay=tp in replays)
    return starts


def _start_of(tp: TopicPartition, stored: StoredOffset, *, first: int, group: str, is_replay: bool) -> Start:
    if stored.offset < first and not is_replay:
        raise ConfigError(
            f"{group} is to go on at {tp[0]}-{tp[1]}@{stored.offset}, but the log begins at {first}: the messages "
            "between are gone. Say where to go on with `txlayer consumer reset`",
            name="stored offset",
            value=stored.offset,
            expected=f"at least {first}",
        )
    found = decode(stored.offset, stored.metadata)
    if isinstance(found, Foreign):
        logger.warning(
            "metadata.foreign", extra={"group": group, "topic": tp[0], "partition": tp[1], "reason": found.why}
        )
        return Start(max(stored.offset, first))
    if found is NOTHING:  # nothing is known of what ended, also if retention took the first requests
        return Start(max(stored.offset, first))
    if stored.offset < first:
        # Requests that are older than the retention of their topic can no longer be answered. Of later ones, the ends are known.
        finished = tuple((max(start, first), end) for start, end in found.finished if end > first)
        return Start(first, replace(found, finished=finished))
    return Start(stored.offset, found)


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerPlan:
    """The settings of one consumer."""

    group: str
    topics: tuple[str, ...]
    routes: Mapping[str, Route]
    order: QueueOrder = QueueOrder.KEY
    null_keys: NullKeys = NullKeys.ORDERED
    start_at: StartAt | None = None
    policy: RetryPolicy = field(default_factory=RetryPolicy)
    key_group: Callable[[bytes | None], str] | None = None
    is_broadcast: bool = False
    """The group has one member, which gets all partitions; it has no dead letters, and no requests to replay them."""
    keeps_position: bool = True  # False: the group's progress is in this process's memory alone
    breakers: Mapping[str, BreakerPolicy] = field(default_factory=dict)
    desk: Desk | None = None  # Where messages wait for a program that takes them itself. None: handlers get them.

    @property
    def sources(self) -> list[str]:
        """All topics that are read: the consumed topics and the replay topics."""
        if self.is_broadcast:
            return list(self.topics)
        return [*self.topics, *(replay_topic(self.group, topic) for topic in self.topics)]

    def settings_of(self, topic: str, config: ConsumerConfig) -> QueueSettings:
        """Settings for the queues of a topic; ConfigError: the settings contradict each other."""
        policy = self.routes[topic].retry or self.policy
        if self.is_broadcast and policy.after_exhausted is AfterExhausted.PARK:
            raise ConfigError(name="after_exhausted", value="park", expected="go-on: a broadcast has no dead letters")
        return QueueSettings(
            policy=policy,
            order=self.order,
            null_keys=self.null_keys,
            metadata_bytes_max=config.metadata_bytes_max,
            parked_keys_max=config.parked_keys_max,
        )


def check_topics(connections: ConsumerConnections, plan: ConsumerPlan) -> dict[str, str]:
    """Check every topic that the consumer reads or writes. Returns {topic that it reads: its id}.

    Raises:
        TopicMismatchError: a topic is missing, or its partition count differs from that of the topic it belongs to.
        NotAuthorisedError: no right to describe a topic that the consumer reads.
    """
    ids: dict[str, str] = {}
    for topic in plan.topics:
        found = connections.topic_limits(topic)
        if found is None:
            raise TopicMismatchError(
                "the topic does not exist", topic=topic, expected="a topic to consume", found="none"
            )
        ids[topic], count = found.topic_id, found.partition_count
        if plan.is_broadcast:
            continue
        for own in (dead_letter_topic(plan.group, topic), replay_topic(plan.group, topic)):
            try:
                limits = connections.topic_limits(own)
            except NotAuthorisedError as exc:
                if own == replay_topic(plan.group, topic):
                    raise
                # Only its dead letters wait for the right.
                logger.warning("topics.not_seen", extra={"group": plan.group, "topic": own, "reason": str(exc)})
                continue
            if limits is None or limits.partition_count != count:
                raise TopicMismatchError(
                    f"`txlayer topics apply --group {plan.group} --topic {topic}` creates it",
                    topic=own,
                    expected=f"{count} partitions, as {topic} has",
                    found="none" if limits is None else f"{limits.partition_count} partitions",
                )
    return ids
